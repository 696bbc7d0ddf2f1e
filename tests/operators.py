"""Operators known by their products, dense matrices with given singular values, and estimates compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import depthgauge as dg

Array = npt.NDArray[Any]


class Products:
    """An operator with its products alone, that counts the vectors it is applied to."""

    def __init__(self, matrix: Array) -> None:
        self.matrix, self.shape, self.dtype = matrix, matrix.shape, matrix.dtype
        self.applications = 0

    def matmat(self, x: Array) -> Array:
        self.applications += x.shape[1]
        return self.matrix @ x

    def rmatmat(self, y: Array) -> Array:
        self.applications += y.shape[1]
        return self.matrix.T @ y


def rotated(values: Array, seed: int = 0) -> Array:
    """A dense matrix with these singular values."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((len(values), len(values))))[0] for _ in range(2))
    matrix: Array = (left * values) @ right
    return matrix


def assert_same(one: dg.Estimate, other: dg.Estimate) -> None:
    for name, value in one.to_dict().items():
        np.testing.assert_array_equal(value, other.to_dict()[name], err_msg=name)
