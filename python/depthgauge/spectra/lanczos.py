"""Golub-Kahan-Lanczos bidiagonalization from several starting vectors at once, and Gauss quadrature by it.

Golub and Kahan, Calculating the singular values and pseudo-inverse of a matrix, SIAM J. Numer. Anal. 2 (1965); Golub
and Meurant, Matrices, Moments and Quadrature with Applications (2010), chapter 3.
"""

from __future__ import annotations

import numpy as np

from depthgauge._common.arrays import Floats, Indices
from depthgauge.spectra.linear_operators import Operator
from depthgauge.spectra.quadrature import Measure
from depthgauge.spectra.range_finder import TopPart


class Bidiagonalization:
    """A V = U B and Aᵀ U = V Bᵀ + remainder, for each of P starting vectors v by itself.

    The columns of V and U are orthonormal, B is upper bidiagonal, V starts with v.  The squared first entries of B's
    right singular vectors and its singular values are weights and nodes of the Gauss quadrature of the measure that v
    puts on the singular values of A.  Working on A, not on AᵀA, keeps the small ones.

    All starting vectors advance together, in one product a step, but share nothing else: a vector whose Krylov space
    is exhausted stops alone.

    Parameters
    ----------
    operator : Operator
        A, m x n with m >= n.
    start : ndarray, shape (P, n)
        The vectors v, of any length but 0.
    steps : int
        The most that `advance` will be asked for, at most n.
    removed : TopPart
        Singular values of A and their vectors, which are projected out on both sides.

    Attributes
    ----------
    lengths : ndarray of int, shape (P,)
        How many steps each vector has made.
    """

    def __init__(
        self,
        operator: Operator,
        start: Floats,
        steps: int,
        removed: TopPart,
    ) -> None:
        count = len(start)
        self._operator = operator
        self._removed = removed
        self._u = np.empty((count, steps, operator.rows))
        self._v = np.empty((count, steps, operator.columns))
        self._diagonal = np.zeros((count, steps))
        self._off_diagonal = np.zeros((count, steps))
        self._largest = np.full(count, np.max(removed.values, initial=0.0))
        self._running = np.arange(count)
        for _ in range(2):
            start = start - (start @ removed.right.T) @ removed.right
        self._v[:, 0] = start / np.linalg.norm(start, axis=1, keepdims=True)
        self.lengths: Indices = np.zeros(count, np.int64)
        # Rounding leaves about this much of a vector that is zero in exact arithmetic, relative to the norm of A. To
        # stop there is to perturb A by as little.
        self._tolerance = 4.0 * float(np.finfo(operator.dtype).eps) * np.sqrt(operator.rows)

    def advance(self, steps: int) -> None:
        """Go on until each vector has made `steps` steps, or stopped."""
        for step in range(int(np.max(self.lengths)), steps):
            if step and len(self._running):
                self._next_right(step)
            if len(self._running):
                self._next_left(step)

    def quadrature(self, steps: int) -> Measure:
        """Return nodes, descending, and weights of each vector after at most `steps` of its steps.

        A vector that stopped before the others has its last node repeated, with weight 0.
        """
        sizes = np.minimum(self.lengths, steps)
        nodes = np.empty((len(sizes), int(np.max(sizes))))
        weights = np.zeros_like(nodes)
        for probe, size in enumerate(sizes):
            bidiagonal = np.diag(self._diagonal[probe, :size]) + np.diag(self._off_diagonal[probe, : size - 1], 1)
            _, values, right = np.linalg.svd(bidiagonal)
            nodes[probe, :size], nodes[probe, size:] = values, values[-1]
            weights[probe, :size] = right[:, 0] ** 2
        return Measure(nodes, weights, self._operator.columns - len(self._removed.values))

    def _next_right(self, step: int) -> None:
        """v[step] from Aᵀ u[step-1] = diagonal[step-1] v[step-1] + off_diagonal[step-1] v[step]."""
        running = self._running
        vectors = self._operator.adjoint(self._u[running, step - 1])
        if step == 1:
            self._check_adjoint(vectors)
        vectors -= self._diagonal[running, step - 1, None] * self._v[running, step - 1]
        norms = self._append(self._v, self._removed.right, step, vectors)
        self._off_diagonal[running, step - 1] = norms
        self._running = running[norms > 0]

    def _next_left(self, step: int) -> None:
        """u[step] from A v[step] = off_diagonal[step-1] u[step-1] + diagonal[step] u[step]."""
        running = self._running
        vectors = self._operator.forward(self._v[running, step])
        if step:
            vectors -= self._off_diagonal[running, step - 1, None] * self._u[running, step - 1]
        norms = self._append(self._u, self._removed.left, step, vectors)
        self._diagonal[running, step] = norms
        self.lengths[running] += 1
        self._running = running[norms > 0]

    def _check_adjoint(self, images: Floats) -> None:
        """Refuse an operator whose adjoint is not one: v Aᵀ u must be u A v, which the first entry of B is."""
        expected = self._diagonal[self._running, 0]
        error = np.abs(np.sum(images * self._v[self._running, 0], axis=1) - expected)
        # Where A v is mostly rounding, so is its direction u, and the error is small beside Aᵀ u.
        if np.any((error > 0.1 * expected) & (error > 1e-3 * np.linalg.norm(images, axis=1))):
            forward, adjoint = self._operator.names
            raise ValueError(
                f"{adjoint} must multiply by the transpose of what {forward} multiplies by, but inner products with "
                f"them differ by {float(np.max(error / expected)):.0%}"
            )

    def _append(self, basis: Floats, removed: Floats, step: int, vectors: Floats) -> Floats:
        """Orthogonalize, normalize and store `vectors`; return their norms, 0 where only rounding is left."""
        vectors -= (vectors @ removed.T) @ removed
        norms = np.empty(len(vectors))
        for index, (probe, vector) in enumerate(zip(self._running, vectors, strict=True)):
            norm = _orthogonalize(vector, basis[probe, :step], removed)
            self._largest[probe] = max(self._largest[probe], norm)
            norms[index] = norm if norm > self._tolerance * self._largest[probe] else 0.0
            if norms[index]:
                basis[probe, step] = vector / norm
        return norms


def _orthogonalize(vector: Floats, basis: Floats, removed: Floats) -> float:
    """Orthogonalize `vector` to the rows of `basis`, in place; return its norm.

    Where much of the vector goes, what is left is mostly rounding, and goes through once more: twice is enough
    (Parlett, The Symmetric Eigenvalue Problem, 1998, section 6.9).
    """
    before = float(np.linalg.norm(vector))
    vector -= (basis @ vector) @ basis
    after = float(np.linalg.norm(vector))
    if after < 0.7 * before:
        vector -= (basis @ vector) @ basis
        vector -= (removed @ vector) @ removed
        after = float(np.linalg.norm(vector))
    return after
