"""The tied head: logits against the embedding, and mean cross entropy with its derivative."""

from __future__ import annotations

import numpy as np

from depthgauge._common.arrays import Array, Indices

# Logits that exist at once, 16 MiB of them.
_LOGITS = 1 << 21


def mean_cross_entropy(
    y: Array, embedding: Array, targets: Indices, *, gradients: bool
) -> tuple[float, Array, Array | None]:
    """Return the mean natural-log cross entropy of the logits ``y @ embedding.T``, with its derivatives.

    Rows are taken in small batches, so the logits of a large vocabulary never exist all at once, and each is made only
    once for loss and derivative.

    Parameters
    ----------
    y : ndarray, shape (T, d)
    embedding : ndarray, shape (V, d)
    targets : ndarray of int64, shape (T,)
    gradients : bool
        Whether to find the derivative with respect to the embedding.

    Returns
    -------
    float
        The loss.
    ndarray, shape (T, d)
        Its derivative with respect to `y`.
    ndarray, shape (V, d), or None
        With `gradients`, that with respect to `embedding`.
    """
    count, step = len(y), max(1, _LOGITS // len(embedding))
    losses, g_y = np.empty(count), np.empty(y.shape)
    g_embedding = np.zeros(embedding.shape) if gradients else None
    for first in range(0, count, step):
        rows = slice(first, first + step)
        p = y[rows] @ embedding.T
        at_target = (np.arange(len(p)), targets[rows])
        p -= np.max(p, axis=1, keepdims=True)
        chosen = p[at_target]
        np.exp(p, out=p)
        total = np.sum(p, axis=1, keepdims=True)
        losses[rows] = np.log(total[:, 0]) - chosen
        p /= total
        p[at_target] -= 1.0
        p /= count
        np.matmul(p, embedding, out=g_y[rows])
        if g_embedding is not None:
            g_embedding += p.T @ y[rows]
    return float(np.mean(losses)), g_y, g_embedding
