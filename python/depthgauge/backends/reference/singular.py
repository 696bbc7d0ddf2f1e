"""Singular values by NumPy, with what LAPACK leaves to its caller: scaling, and members that are not finite."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array
from depthgauge.backends.protocol import SingularArrays


def singular_values(a: Array, *, threads: int) -> SingularArrays:
    """Return the singular values of each matrix of `a`, shape (..., n, k), by LAPACK."""
    del threads  # LAPACK has threads of its own
    *leading, rows, columns = a.shape
    if rows < columns:  # so that a matrix and its transpose have the same values to the bit
        a = a.swapaxes(-1, -2)
    matrices = a.reshape(math.prod(leading), *a.shape[-2:])
    values = np.full((len(matrices), min(rows, columns)), np.nan, a.dtype)
    converged = np.ones(len(matrices), np.bool_)
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(matrices), axis=(1, 2), initial=0)
        scalable = np.isfinite(largest) & (largest > 0)
        exponent = np.where(scalable, np.frexp(largest)[1] - 1, 0).astype(np.int64)
        finite = np.flatnonzero(np.isfinite(largest))
        if values[finite].size:
            scaled = np.ldexp(matrices[finite], -exponent[finite, None, None])
            values[finite], converged[finite] = _decompose(scaled)
    return SingularArrays(values, exponent, converged)


def _decompose(matrices: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return the singular values of finite matrices, and whether LAPACK found them."""
    try:
        # Without vectors LAPACK computes otherwise, and is off by up to 60 eps of the largest where values cluster;
        # with them by half as much.
        values = np.linalg.svd(matrices, full_matrices=False).S
        return values, np.ones(len(matrices), np.bool_)
    except np.linalg.LinAlgError:
        if len(matrices) == 1:
            return np.full((1, matrices.shape[-1]), np.nan, matrices.dtype), np.zeros(1, np.bool_)
    alone = [_decompose(matrix[None]) for matrix in matrices]
    return np.concatenate([values for values, _ in alone]), np.concatenate([flag for _, flag in alone])
