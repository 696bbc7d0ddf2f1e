"""The largest singular values of an operator, by randomized subspace iteration.

Halko, Martinsson and Tropp, Finding structure with randomness, SIAM Rev. 53 (2011), algorithms 4.4 and 5.1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from depthgauge._common.arrays import Floats, Indices
from depthgauge.spectra.linear_operators import Operator

_ITERATIONS = 2
# What is left of A v outside the subspace, relative to the singular value, for it to count as found. The value itself
# is off by half the square of this.
_RESIDUAL = 0.05


class TopPart(NamedTuple):
    """The k largest singular values with their left and right vectors as rows, shapes (k,), (k, m) and (k, n)."""

    values: Floats
    left: Floats
    right: Floats

    def extended(self, other: TopPart) -> TopPart:
        """Return both together; what was found later is smaller, but for rounding."""
        return TopPart(*(np.concatenate(parts) for parts in zip(self, other, strict=True)))


def products_for(count: Indices) -> Indices:
    """Return how often `next_part` applies the operator, or its transpose, for `count` values."""
    products: Indices = (2 * _ITERATIONS + 3) * _sketch_size(count)
    return products


def next_part(operator: Operator, count: int, rng: np.random.Generator, removed: TopPart) -> TopPart:
    """Return up to `count` of the largest singular values after those removed: the leading ones that are found well."""
    size = min(_sketch_size(count), operator.columns - len(removed.values))
    right = _orthonormal(rng.standard_normal((size, operator.columns)), removed.right)
    for _ in range(_ITERATIONS):
        left = _orthonormal(operator.forward(right), removed.left)
        right = _orthonormal(operator.adjoint(left), removed.right)
    left = _orthonormal(operator.forward(right), removed.left)
    rotation, values, right = np.linalg.svd(_projected(operator.adjoint(left), removed.right), full_matrices=False)
    left = rotation.T @ left
    values, left, right = values[:count], left[:count], right[:count]
    images = _projected(operator.forward(right), removed.left)
    residuals = np.linalg.norm(images - values[:, None] * left, axis=1)
    found = int(np.argmin(np.append(residuals <= _RESIDUAL * values, False)))
    return TopPart(values[:found], left[:found], right[:found])


def _sketch_size(count: Any) -> Any:
    return count + count // 4 + 8


def _orthonormal(vectors: Floats, removed: Floats) -> Floats:
    """Return orthonormal rows, orthogonal to those removed, that span what is left of the rows of `vectors`."""
    for _ in range(2):  # rounding in the first pass matters where little is left
        vectors = np.linalg.qr(_projected(vectors, removed).T)[0].T
    return np.ascontiguousarray(vectors)


def _projected(vectors: Floats, removed: Floats) -> Floats:
    return vectors - (vectors @ removed.T) @ removed
