"""Singular values to high relative accuracy, of one matrix and of a product of many, in NumPy.

A product is kept as Q D U: Q has orthonormal columns and is held as Householder reflectors, D is a diagonal of powers
of two that no floating-point range holds, U has rows of about unit size.  A factor F makes it F Q D U; a pivoted QR of
F Q D gives the new Q and D, and a triangle to multiply U by.  In the end only D U is left to take singular values of.

Nothing small is ever added to something large that does not belong to it.  Scales of rows and columns are integers
beside the numbers and meet them only as ratios.  Householder QR that pivots columns by norm, and brings the large rows
to the top, is backward stable row by row and does not see the scales of columns (Cox and Higham, "Stability of
Householder QR factorization for weighted least squares problems", 1998), so that what it loses is relative to each
singular value; and one-sided Jacobi finds them to the relative accuracy that D U determines (Demmel and Veselic,
"Jacobi's method is more accurate than QR", 1992), after two more QRs that bring it close to diagonal (Drmac and
Veselic, "New fast and accurate Jacobi SVD algorithm", 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from depthgauge._common.arrays import Array, Floats, Indices

EPS = float(np.finfo(np.float64).eps)

# A column is exchanged for one whose squared norm is twice as large, a row for one whose entry is 4 times as large.
COLUMN_GAIN = 1.0
ROW_GAIN = 4.0
# A factor whose columns differ by more than this power of two is applied in two steps, the scales of its columns first:
# F Q would bury the small ones under the large.
COLUMN_SPREAD = 6
MAX_SWEEPS = 40

# Stands for the exponent of zero: less than any other, and small enough to add a few.
_NOTHING = -(2**60)


class Product(NamedTuple):
    """A product of factors, as Q D U.

    Q is ``(H_0 H_1 ...)[:, pivots]`` on the rows `live` of the product and zero elsewhere, with
    ``H_k = 1 - betas[k] * outer(reflectors[k], reflectors[k])``.
    """

    live: Indices  # (m,)
    reflectors: Floats  # (rank, m)
    betas: Floats  # (rank,)
    pivots: Indices  # (rank,)
    exponents: Indices  # (rank,) of D
    rows: Floats  # (rank, n) U


@np.errstate(all="ignore")
def log_singular_values(factors: Sequence[Array], *, prefixes: bool, threads: int) -> Floats:
    """Return the logs for factors (..., m, n) that chain, N of each, shape (N, k), or (N, L, k) with `prefixes`.

    k is the smaller size of the product, with `prefixes` of the largest; what a smaller product lacks is NaN.
    """
    del threads
    factors = [_flat(factor) for factor in factors]
    width = factors[0].shape[-1]
    counts = [min(factor.shape[-2], width) for factor in factors]
    depths = range(len(factors)) if prefixes else [len(factors) - 1]
    logs: Floats = np.full((len(factors[0]), len(depths), max(counts[depth] for depth in depths)), np.nan)
    for member, out in enumerate(logs):
        product = identity(width)
        for depth, factor in enumerate(factors):
            matrix = np.asarray(factor[member], np.float64)
            if not np.all(np.isfinite(matrix)):
                break
            product = multiply(matrix, product)
            if depth in depths:
                exponents, values = singular_values(product)
                found = out[depths.index(depth), : counts[depth]]
                found[:] = -np.inf
                found[: len(values)] = exponents * np.log(2.0) + np.log(values)
    return logs if prefixes else logs[:, 0]


@np.errstate(all="ignore")
def relative_singular_values(a: Array, *, threads: int) -> Array:
    """Return the singular values of matrices (..., n, k), each to high relative accuracy, shape (N, min(n, k))."""
    del threads
    matrices = _flat(a)
    found: Array = np.zeros((len(matrices), min(a.shape[-2:])), a.dtype)
    for matrix, out in zip(matrices, found, strict=True):
        if np.all(np.isfinite(matrix)):
            exponents, values = singular_values(multiply(np.asarray(matrix, np.float64), identity(a.shape[-1])))
            out[: len(values)] = _scaled(values, exponents).astype(a.dtype)
        else:
            out[:] = np.nan
    return found


def _flat(a: Array) -> Array:
    return a.reshape(math.prod(a.shape[:-2]), *a.shape[-2:])


def singular_values(product: Product) -> tuple[Indices, Floats]:
    """Return the singular values of a product as ``values * 2.0**exponents``, descending; NaN past the sweep cap."""
    exponents, rows = product.exponents, product.rows
    for _ in range(2 if len(exponents) else 0):
        tall = np.array(rows.T, order="C")
        exponents, rows = _factor(tall, np.zeros(len(tall), np.int64), exponents, len(exponents))[-2:]
    return _jacobi(exponents, rows)


def identity(n: int) -> Product:
    """Return the product of no factors, of `n` rows."""
    return Product(np.arange(n), np.zeros((0, n)), np.zeros(0), np.arange(n), np.zeros(n, np.int64), np.eye(n))


def multiply(factor: Floats, product: Product) -> Product:
    """Return ``factor @ product``."""
    f = factor[:, product.live]
    row_exponents, column_exponents = _equilibrate(f)
    used = column_exponents > _NOTHING
    if len(product.reflectors) == 0:
        # Q is the identity: the scales of the columns of F go straight to D.
        product = product._replace(exponents=product.exponents + np.where(used, column_exponents, 0))
    elif used.any() and np.ptp(column_exponents[used]) > COLUMN_SPREAD:
        scales = np.zeros(factor.shape[1], np.int64)
        scales[product.live] = column_exponents
        product = _absorb(np.eye(len(used))[used], column_exponents[used], product.live[used], len(used), product)
        f, column_exponents = factor[:, product.live], scales[product.live]
        used = np.ones(len(column_exponents), bool)
    else:
        column_exponents = np.zeros_like(column_exponents)
    rows = np.flatnonzero(row_exponents > _NOTHING)
    scaled = _scaled(f[rows], -(row_exponents[rows, None] + np.where(used, column_exponents, 0)))
    return _absorb(scaled, row_exponents[rows], rows, int(np.sum(used)), product)


def _absorb(left: Floats, exponents: Indices, owners: Indices, rank: int, product: Product) -> Product:
    """Return ``2.0**exponents[:, None] * left`` times the product, whose rank is at most `rank`.

    `owners` says which row of the result each row of `left` is; the others are zero.
    """
    for reflector, beta in zip(product.reflectors, product.betas, strict=True):
        left = left - np.outer(left @ (beta * reflector), reflector)
    left = left[:, product.pivots]
    tops = _exponent(np.max(np.abs(left), axis=1, initial=0.0))
    live = np.flatnonzero(tops > _NOTHING)
    left = _scaled(left[live], -tops[live, None])
    reflectors, betas, pivots, d, triangle = _factor(left, exponents[live] + tops[live], product.exponents, rank)
    u = triangle @ product.rows
    sizes = _exponent(np.max(np.abs(u), axis=1, initial=0.0))
    return Product(owners[live], reflectors, betas, pivots, d + sizes, _scaled(u, -sizes[:, None]))


def _equilibrate(f: Floats) -> tuple[Indices, Indices]:
    """Return exponents of rows and columns that bring the largest entry of each near one; of zeros `_NOTHING`."""
    sizes = _exponent(f)
    rows = np.max(sizes, axis=1, initial=_NOTHING)
    relative = np.where(sizes > _NOTHING, sizes - rows[:, None], _NOTHING)
    return rows, np.max(relative, axis=0, initial=_NOTHING)


def _factor(b: Floats, r: Indices, d: Indices, rank: int) -> tuple[Floats, Floats, Indices, Indices, Floats]:
    """Factor ``2.0**r[:, None] * b * 2.0**d`` by QR with pivoting of columns by norm, of rows by entry.

    Returns
    -------
    reflectors, betas, pivots : ndarray
        Q, as `Product` holds it.
    exponents : ndarray, shape (k,)
    triangle : ndarray, shape (k, n)
        R is ``2.0**exponents[:, None] * triangle``.  The columns of `triangle` are in the order of `b`, and its entries
        at most about 1.  k is `rank`, or less where only zeros are left.
    """
    b, r, d = b.copy(), r.copy(), d.copy()
    m, n = b.shape
    row_order, column_order = np.arange(m), np.arange(n)
    steps = min(m, n, rank)
    reflectors, betas = np.zeros((steps, m)), np.zeros(steps)
    for k in range(steps):
        norms = _column_norms(b[k:, k:], r[k:], d[k:])
        best = int(np.argmax(norms))
        if norms[best] == -np.inf:
            steps = k
            break
        if norms[best] > norms[0] + COLUMN_GAIN:
            for array in (b.T, d, column_order):
                array[[k, k + best]] = array[[k + best, k]]
        # The pivot column, scaled to a largest entry near 1.
        top = int(np.max(_exponent(b[k:, k]) + r[k:]))
        x = _scaled(b[k:, k], r[k:] - top)
        largest = int(np.argmax(np.abs(x)))
        if abs(x[largest]) > ROW_GAIN * abs(x[0]):
            x[[0, largest]] = x[[largest, 0]]
            for array in (b, r, row_order, reflectors.T):
                array[[k, k + largest]] = array[[k + largest, k]]
        sigma = -np.copysign(np.sqrt(x @ x), x[0])
        x[0] -= sigma
        betas[k] = -1.0 / (sigma * x[0])
        reflectors[k, k:] = x
        # In units of its own row, an entry of x is that of b; the weights turn b into the same units as x.
        weights = np.where(x == 0.0, 0.0, x * _scaled(np.ones(m - k), np.minimum(r[k:] - top, 1000)))
        own = b[k:, k].copy()
        own[0] = _scaled(x[:1], top - r[k : k + 1])[0]
        b[k:, k + 1 :] -= np.outer(own, betas[k] * (weights @ b[k:, k + 1 :]))
        b[k, k] = _scaled(np.array([sigma]), top - r[k : k + 1])[0]
        b[k + 1 :, k] = 0.0
    pivots = np.diagonal(b)[:steps]
    exponents = _exponent(pivots) + r[:steps] + d[:steps]
    triangle = np.zeros((steps, n))
    triangle[:, column_order] = _scaled(b[:steps], r[:steps, None] + d - exponents[:, None])
    unordered = np.zeros_like(reflectors)
    unordered[:, row_order] = reflectors
    return unordered[:steps], betas[:steps], row_order[:steps], exponents, triangle


def _column_norms(b: Floats, r: Indices, d: Indices) -> Floats:
    """Return what orders the columns of ``2.0**r[:, None] * b * 2.0**d`` by norm: about the log2 of their squares."""
    sizes = _exponent(b)
    tops = np.max(np.where(sizes > _NOTHING, sizes + r[:, None], _NOTHING), axis=0)
    scaled = _scaled(b, r[:, None] - tops)
    fractions, exponents = np.frexp(np.sum(scaled * scaled, axis=0))
    norms: Floats = np.where(tops > _NOTHING, 2.0 * (tops + d) + exponents + fractions, -np.inf)
    return norms


def _jacobi(exponents: Indices, rows: Floats) -> tuple[Indices, Floats]:
    """Return the singular values of ``2.0**exponents[:, None] * rows``, by rotations of pairs of rows."""
    e, u = exponents.copy(), rows.copy()
    squares = np.sum(u * u, axis=1)
    tolerance = EPS * np.sqrt(max(u.shape[1], 1))
    for _ in range(MAX_SWEEPS):
        rotations = 0
        for p in range(len(e) - 1):
            for q in range(p + 1, len(e)):
                if _larger(e[q], squares[q], e[p], squares[p]):
                    for array in (e, u, squares):
                        array[[p, q]] = array[[q, p]]
                dot = u[p] @ u[q]
                if not abs(dot) > tolerance * np.sqrt(squares[p] * squares[q]):
                    continue
                rotations += 1
                _rotate(e, u, squares, p, q, dot)
        if rotations == 0:
            break
    else:
        squares[:] = np.nan
    fractions, sizes = np.frexp(np.sqrt(squares))
    e += sizes
    order = np.lexsort((fractions, e))[::-1]
    return e[order], fractions[order]


def _larger(e1: int, s1: float, e2: int, s2: float) -> bool:
    """Whether a row of exponent `e1` and sum of squares `s1` is larger than another."""
    gap = int(np.clip(e1 - e2, -500, 500))
    return bool(np.ldexp(s1, 2 * gap) > s2)


def _rotate(e: Indices, u: Floats, squares: Floats, p: int, q: int, dot: float) -> None:
    """Make rows p and q orthogonal, where row p is the larger.

    With ``ratio = 2.0**(e[q] - e[p])`` the tangent of the angle is ``ratio * t``; t stays in range where the ratio does
    not, and only its square multiplies numbers.
    """
    ratio2 = float(np.ldexp(1.0, 2 * max(int(e[q] - e[p]), -600)))
    zeta = (ratio2 * squares[q] - squares[p]) / (2.0 * dot)
    t = np.copysign(1.0, zeta) / (abs(zeta) + np.sqrt(ratio2 + zeta * zeta))
    cosine = 1.0 / np.sqrt(1.0 + ratio2 * t * t)
    u[p], u[q] = cosine * (u[p] - (ratio2 * t) * u[q]), cosine * (u[q] + t * u[p])
    for i in (p, q):
        size = np.frexp(np.max(np.abs(u[i])))[1]
        u[i] = np.ldexp(u[i], -size)
        e[i] += size
        squares[i] = u[i] @ u[i]


def _exponent(a: Floats) -> Indices:
    """Return the powers of two just above the magnitudes; of zeros `_NOTHING`."""
    return np.where(a == 0.0, _NOTHING, np.frexp(a)[1].astype(np.int64))


def _scaled(a: Floats, exponents: Indices) -> Floats:
    """Return ``a * 2.0**exponents``, for exponents of any size."""
    scaled: Floats = np.ldexp(a, np.clip(exponents, -5000, 5000).astype(np.int32))
    return scaled
