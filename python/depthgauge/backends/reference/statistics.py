"""Statistics over the last two axes, examples and features, in float64.

NaN if any value is NaN, else infinite if any value is, else finite: a power of two is taken out before anything is
squared.  Statistics of nothing are NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge._common.scaling import split_exponent

_PAIR = (-2, -1)


def rms(a: Array) -> Floats:
    """Return the root mean square, shape (...)."""
    count = a.shape[-1] * a.shape[-2]
    if not count:
        return np.full(a.shape[:-2], np.nan)
    scaled, exponent = split_exponent(a, _PAIR)
    return np.asarray(np.ldexp(np.sqrt(np.sum(scaled**2, axis=_PAIR) / count), exponent[..., 0, 0]))


def max_abs(a: Array) -> Floats:
    """Return the largest magnitude, shape (...)."""
    if not a.shape[-1] * a.shape[-2]:
        return np.full(a.shape[:-2], np.nan)
    return np.asarray(np.max(np.abs(a), axis=_PAIR), np.float64)


def nonfinite(a: Array) -> Indices:
    """Return the number of values that are NaN or infinite, shape (...)."""
    return np.asarray(np.count_nonzero(~np.isfinite(a), axis=_PAIR), np.int64)


def batch_mean_norm(a: Array) -> Floats:
    """Return the Euclidean norm of the mean over examples, shape (...)."""
    if not a.shape[-1] * a.shape[-2]:
        return np.full(a.shape[:-2], np.nan)
    scaled, exponent = split_exponent(a, _PAIR)
    mean = np.sum(scaled, axis=-2) / a.shape[-2]
    norm = np.ldexp(np.sqrt(np.sum(mean**2, axis=-1)), exponent[..., 0, 0])
    # Opposite infinities would cancel to NaN.
    return np.where(np.isnan(a).any(axis=_PAIR), np.nan, np.where(np.isinf(a).any(axis=_PAIR), np.inf, norm))


def share(mask: npt.NDArray[np.bool_]) -> Floats:
    """Return the share of true values, shape (...)."""
    count = mask.shape[-1] * mask.shape[-2]
    return np.count_nonzero(mask, axis=_PAIR) / count if count else np.full(mask.shape[:-2], np.nan)


def dead_units(live: npt.NDArray[np.bool_]) -> Floats:
    """Return the share of units, on the last axis, that are not live in any example."""
    if not live.shape[-1] * live.shape[-2]:
        return np.full(live.shape[:-2], np.nan)
    return np.asarray(np.mean(~np.any(live, axis=-2), axis=-1))


def mean_cosine(a: Array) -> Floats:
    """Return the mean cosine over pairs of distinct examples, shape (...).

    With unit rows `e`, the sum over pairs follows from ``|sum e|**2 = sum |e|**2 + sum over ordered pairs``.  A row of
    zeros has cosine 0 with every other; fewer than two examples, or a value that is not finite, give NaN.
    """
    examples = a.shape[-2]
    if examples < 2 or not a.shape[-1]:
        return np.full(a.shape[:-2], np.nan)
    scaled, _ = split_exponent(a, -1)
    length = np.sqrt(np.sum(scaled**2, axis=-1, keepdims=True))
    units = scaled / np.where(length == 0, 1.0, length)
    pairs = np.sum(np.sum(units, axis=-2) ** 2, axis=-1) - np.sum(units**2, axis=_PAIR)
    return np.asarray(pairs / (examples * (examples - 1)))


def quantiles_of_magnitude(a: Array, levels: tuple[float, ...]) -> Floats:
    """Return quantiles of the magnitudes, shape (..., Q), by linear interpolation between order statistics."""
    count = a.shape[-1] * a.shape[-2]
    if not count:
        return np.full((*a.shape[:-2], len(levels)), np.nan)
    ordered = np.sort(np.abs(a).astype(np.float64).reshape(*a.shape[:-2], count), axis=-1)
    position = np.asarray(levels) * (count - 1)
    lower = np.floor(position).astype(np.int64)
    upper = np.minimum(lower + 1, count - 1)
    low, high, weight = ordered[..., lower], ordered[..., upper], position - lower
    # Between equal neighbours, and at weight 0, nothing is added: infinity minus infinity would be NaN.
    step = np.where((low == high) | (weight == 0), 0.0, (high - low) * weight)
    # NaN sorts last.
    return np.where(np.isnan(ordered[..., -1:]), np.nan, low + step)
