"""How spread out a spectrum is: measures of singular values, in float64 and free of their scale.

With r = s / max(s) and sums over r, the effective rank exp(-sum p ln p), p = r / sum r, is
``sum(r) * exp(-sum(r ln r) / sum(r))``, which neither overflows nor cancels; that of squares has r² for r, where
r² ln r² = 2 r (r ln r).
"""

from __future__ import annotations

import math

import numpy as np

from depthgauge._common.arrays import Array, Floats, Indices

# Up to this many values a matrix, sums go over columns, each a vector of all matrices; beyond, along rows.
_SHORT = 8
# Values a block: what is computed of them stays in cache.
_BLOCK = 1 << 14
# exp(-800) is 0, so this stands in for the logarithm of 0 in 0 ln 0 = 0.
_LEAST_LOG = -800.0

MEASURES = (
    "effective_rank",
    "effective_rank_of_squares",
    "stable_rank",
    "participation_ratio",
    "condition",
    "log_spread",
    "log_max",
)


def measures_of_values(values: Array, exponent: Indices) -> dict[str, Floats]:
    """Return the measures of the singular values ``values * 2**exponent``.

    Parameters
    ----------
    values : ndarray, shape (N, p)
        Descending and finite, or a row of NaN.
    exponent : ndarray, shape (N,)

    Returns
    -------
    dict of ndarray
        Each of `MEASURES`, shape (N,), and "log_singular_values", shape (N, p).
    """
    found = _unmeasured(*values.shape)
    for block in _blocks(*values.shape):
        s = _columns(values[block])
        r = s / np.where(s[0] > 0, s[0], 1)
        log_s, log_r = np.log(s), np.log(r)
        tiny = np.finfo(np.float64).tiny
        if np.any(r[-1] < tiny):  # a quotient below the normal range says little or nothing of its logarithm
            log_r = np.where((r < tiny) & (s > 0), log_s - log_s[0], log_r)
        log_s += exponent[block] * math.log(2)
        _measure({name: array[block] for name, array in found.items()}, r, log_r, log_s, s[0] / s[-1])
    return found


def measures_of_logs(logs: Array) -> dict[str, Floats]:
    """Return the measures of the singular values ``exp(logs)``, of any size, as `measures_of_values` does.

    Rows of `logs`, shape (N, p), are descending and less than inf, -inf for values of 0; or all NaN.
    """
    found = _unmeasured(*logs.shape)
    for block in _blocks(*logs.shape):
        log_s = _columns(logs[block])
        log_r = log_s - np.where(log_s[0] > -np.inf, log_s[0], 0)
        _measure({name: array[block] for name, array in found.items()}, np.exp(log_r), log_r, log_s, np.exp(-log_r[-1]))
    return found


def _measure(into: dict[str, Floats], r: Array, log_r: Array, log_s: Array, condition: Array) -> None:
    """Fill `into` from r = s / max(s) and logarithms, each (p, N)."""
    full = len(r)
    squares = r * r
    r_log_r = np.maximum(log_r, _LEAST_LOG)
    r_log_r *= r
    sum_r, sum_squares = _sum(r), _sum(squares)
    into["effective_rank"][:] = _clip(sum_r * np.exp(-_sum(r_log_r) / sum_r), full)
    r_log_r *= r
    into["effective_rank_of_squares"][:] = _clip(sum_squares * np.exp(-2 * _sum(r_log_r) / sum_squares), full)
    into["stable_rank"][:] = sum_squares
    squares *= squares
    into["participation_ratio"][:] = _clip(sum_squares * sum_squares / _sum(squares), full)
    into["condition"][:] = condition
    into["log_spread"][:] = 0 - log_r[-1]  # not the -0.0 of a negated 0
    into["log_max"][:] = log_s[0]
    into["log_singular_values"][:] = log_s.T
    zero = r[0] == 0
    if np.any(zero):
        for name in ("effective_rank", "effective_rank_of_squares", "stable_rank", "participation_ratio"):
            into[name][zero] = 0
        for name in ("condition", "log_spread"):
            into[name][zero] = np.nan


def _unmeasured(count: int, full: int) -> dict[str, Floats]:
    """Return arrays for the measures, filled with those of an empty matrix."""
    found = {name: np.full(count, np.nan) for name in MEASURES}
    found["effective_rank"][:] = 0
    return found | {"log_singular_values": np.empty((count, full))}


def _blocks(count: int, full: int) -> list[slice]:
    if not full:
        return []
    size = max(_BLOCK // full, 1)
    return [slice(start, start + size) for start in range(0, count, size)]


def _columns(rows: Array) -> Array:
    """Return (N, p) as (p, N) in float64, laid out for `_sum`."""
    return np.array(rows.T, np.float64, order="C" if rows.shape[1] <= _SHORT else "F")


def _sum(columns: Array) -> Array:
    """Sum (p, N) over p, in an order that depends on p alone."""
    if len(columns) > _SHORT:
        total: Array = np.sum(columns, axis=0)
        return total
    total = columns[0].copy()
    for column in columns[1:]:
        total += column
    return total


def _clip(rank: Array, full: int) -> Array:
    """Undo what rounding did beyond the bounds."""
    return np.minimum(np.maximum(rank, 1), full)
