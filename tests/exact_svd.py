"""Singular values to compare with: one-sided Jacobi in more precision, for LAPACK is not the truth.

The benchmark of accuracy reads this file too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_SWEEPS = 60


def exact_singular_values(a: Array) -> Array:
    """Return the singular values of each matrix of a stack (..., n, k), descending, shape (..., min(n, k)).

    float32 is computed in float64, float64 in `numpy.longdouble`; errors are a few eps of that type times the largest
    value.  Entries must be finite.  Columns are rotated in pairs until all are orthogonal to working precision;
    disjoint pairs, in the order of a round-robin tournament, are rotated at once.
    """
    wide = np.dtype(np.float64 if a.dtype == np.float32 else np.longdouble)
    if a.shape[-2] < a.shape[-1]:
        a = a.swapaxes(-1, -2)
    *leading, rows, columns = a.shape
    # Columns of a matrix as rows here, so that each is contiguous; an odd one out gets a column of zeros to meet.
    x = np.zeros((int(np.prod(leading)), columns + columns % 2, rows), wide)
    x[:, :columns] = a.reshape(len(x), rows, columns).swapaxes(-1, -2)
    largest = np.max(np.abs(x), axis=(1, 2), initial=0)
    exponent = np.frexp(np.where(largest > 0, largest, 1))[1]
    x = np.ldexp(x, -exponent[:, None, None])
    if columns > 1:
        _orthogonalize(x)
    norms = np.sqrt(np.sum(x * x, axis=-1))
    values: Array = np.ldexp(-np.sort(-norms, axis=-1)[:, :columns], exponent[:, None])
    return np.reshape(values, (*leading, columns))


def _orthogonalize(x: Array) -> None:
    """Rotate pairs of the vectors ``x[member, i]``, an even number of them, until all are orthogonal."""
    count = x.shape[1]
    eps = np.finfo(x.dtype).eps
    # What an inner product may be before it counts, relative to the longer of its vectors.
    floor = eps * np.sqrt(np.max(np.sum(x * x, axis=-1), axis=-1))
    order = np.arange(count)
    active = np.arange(len(x))
    for _ in range(_SWEEPS):
        rotated = np.zeros(len(active), np.bool_)
        part = x[active]
        for _ in range(count - 1):
            rotated |= _rotate(part, order[: count // 2], order[: count // 2 - 1 : -1], eps, floor[active])
            order[1:] = np.roll(order[1:], 1)
        x[active] = part
        active = active[rotated]
        if not active.size:
            return
    raise AssertionError("Jacobi did not converge")


def _rotate(x: Array, first: Array, second: Array, eps: Any, floor: Array) -> Array:
    """Rotate the pairs (first, second) that are not orthogonal; return which members had any."""
    p, q = x[:, first], x[:, second]
    pp, qq, pq = np.sum(p * p, axis=-1), np.sum(q * q, axis=-1), np.sum(p * q, axis=-1)
    significant = np.maximum(eps * np.sqrt(x.shape[-1] * pp * qq), floor[:, None] * np.sqrt(np.maximum(pp, qq)))
    member, pair = np.nonzero(np.abs(pq) > significant)
    p, q = p[member, pair], q[member, pair]
    zeta = (qq[member, pair] - pp[member, pair]) / (2 * pq[member, pair])
    t = (np.where(zeta < 0, -1, 1) / (np.abs(zeta) + np.sqrt(1 + zeta * zeta)))[:, None]
    c = 1 / np.sqrt(1 + t * t)
    x[member, first[pair]], x[member, second[pair]] = c * (p - t * q), c * (q + t * p)
    rotated = np.zeros(len(x), np.bool_)
    rotated[member] = True
    return rotated


def kinds_of_matrices(rng: np.random.Generator, rows: int, columns: int) -> dict[str, Array]:
    """Return one float64 matrix of each kind that singular values are hard or instructive of."""
    small = min(rows, columns)

    def gaussian(n: int = rows, k: int = columns) -> Array:
        return rng.standard_normal((n, k))

    def with_values(values: Array) -> Array:
        left, right = np.linalg.qr(gaussian(rows, small))[0], np.linalg.qr(gaussian(columns, small))[0]
        return np.asarray((left * values) @ right.T)

    fall = 10.0 ** -np.linspace(0, 20, max(rows, columns))
    product, residual = gaussian(small), np.eye(small, columns)
    for _ in range(12):
        weights = gaussian(small, small) / np.sqrt(small)
        product = (np.sqrt(2) * weights * (rng.random((small, 1)) < 0.5)) @ product
        residual = residual + 0.3 * weights @ residual
    first = gaussian(rows, small)
    return {
        "gaussian": gaussian(),
        "rows graded": gaussian() * fall[:rows, None],
        "columns graded": gaussian() * fall[:columns],
        "columns rising": gaussian() * fall[:columns][::-1],
        "clustered": with_values(1 + 1e-10 * rng.standard_normal(small)),
        "two clusters": with_values(np.where(np.arange(small) < small // 2, 1, 1e-8)),
        "geometric": with_values(np.geomspace(1, 1e-18, small) if small > 1 else np.ones(small)),
        "rank-deficient": gaussian(rows, small // 2) @ gaussian(small // 2, columns),
        "orthogonal": with_values(np.ones(small)),
        "ones": np.ones((rows, columns)),
        "diagonal": np.eye(rows, columns) * rng.integers(1, 4, columns),
        "bidiagonal": np.triu(np.tril(np.ones((rows, columns)), 1)),
        "relu product": first @ product,
        "residual product": np.eye(rows, small) @ residual,
    }


def gaussians(count: int, rows: int, columns: int, dtype: Any, seed: int = 0) -> Array:
    """Return so many matrices of normals."""
    drawn = np.random.default_rng([seed, rows, columns]).standard_normal((count, rows, columns))
    return drawn.astype(dtype)
