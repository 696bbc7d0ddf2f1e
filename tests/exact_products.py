"""Singular values of products in exact integer and multiprecision arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
mpmath = pytest.importorskip("mpmath")


def exact_product(factors: Sequence[Array]) -> tuple[Array, int]:
    """Return integers, as an object array, and an exponent: the product is ``integers * 2**exponent``, exactly."""
    product, exponent = np.empty(0, object), 0
    for index, factor in enumerate(factors):
        fractions, powers = np.frexp(np.asarray(factor, np.float64))
        lowest = int(np.min(powers, initial=0, where=factor != 0))
        shifts = np.where(factor != 0, powers - lowest, 0)
        integers = (fractions * 2.0**53).astype(np.int64).astype(object) << shifts.astype(object)
        product = integers.dot(product) if index else integers
        exponent += lowest - 53
    return product, exponent


def exact_log_singular_values(factors: Sequence[Array], spread: float = 0.0) -> npt.NDArray[np.float64]:
    """Return the logs, descending, rounded once; -inf below any that could be told from 0.

    `spread` is the ratio of the largest value to the smallest that is not 0, as a power of ten: so many digits are
    kept, and some more.
    """
    integers, exponent = exact_product(factors)
    bits = max((int(abs(value)).bit_length() for value in integers.flat), default=0)
    with mpmath.workdps(int(1.2 * spread) + 60):
        unit = mpmath.mpf(2) ** -bits
        matrix = mpmath.matrix([[mpmath.mpf(value) * unit for value in row] for row in integers.tolist()])
        values = mpmath.svd_r(matrix, compute_uv=False)
        floor = mpmath.mpf(10) ** -(1.1 * spread + 40)
        shift = (bits + exponent) * mpmath.log(2)
        logs = [float(mpmath.log(value) + shift) if value > floor else -np.inf for value in values]
    return np.sort(np.array(logs))[::-1]


def exact_singular_values(matrix: Array, digits: int = 700) -> list[Any]:
    """Return the singular values of one matrix of any range, descending, as multiprecision numbers."""
    mpmath.mp.dps = digits
    values = mpmath.svd_r(mpmath.matrix(np.asarray(matrix, np.float64).tolist()), compute_uv=False)
    return sorted(values, reverse=True)
