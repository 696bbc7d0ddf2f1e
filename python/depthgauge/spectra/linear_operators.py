"""Linear operators for iterative methods: read from a caller, tall or transposed, scaled to order one, counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, Floats, float_array, supported_dtype

# Rows of a matrix that one product takes: BLAS libraries split a product with few columns badly, and this is a quarter
# faster on a matrix of 4096 rows.
_ROWS = 512

Product = Callable[[Array], Array]


class NonFiniteError(ArithmeticError):
    """A product with the operator held a NaN or an infinity."""


class Operator:
    """A linear map A from n to m >= n features, times 2^-`exponent`, that takes and returns rows of float64.

    The exponent is chosen at the first product so that its largest value is between 1/2 and 1, and squares of whatever
    follows stay in range.  Both it and the shift that keeps the caller's own arithmetic in range are powers of two:
    scaling rounds nothing.

    Attributes
    ----------
    rows, columns : int
        m and n, exchanged if the caller's operator is wide: its transpose has the same singular values.
    dtype : dtype
        What the caller's operator computes in, float32 or float64.
    exponent : int
        0 until the first product.
    names : (str, str)
        What messages call the two products, as Operator has them.
    applications : int
        How many vectors the caller's operator, or its transpose, has been applied to.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        forward: Product,
        adjoint: Product,
        *,
        names: tuple[str, str],
    ) -> None:
        self.dtype = dtype
        self.exponent = 0
        self.applications = 0
        self._scaled = False
        self._shift = 0
        (self.rows, self.columns), products = shape, (forward, adjoint)
        if self.columns > self.rows:
            self.rows, self.columns = self.columns, self.rows
            products, names = products[::-1], names[::-1]
        self._forward, self._adjoint = products
        self.names = names

    def forward(self, vectors: Floats) -> Floats:
        """Return 2^-exponent A v for each row v of `vectors`, shape (k, n), as (k, m)."""
        if not self._scaled:
            return self._first(vectors)
        return self._product(self._forward, self.names[0], vectors, self.rows)

    def adjoint(self, vectors: Floats) -> Floats:
        """Return 2^-exponent Aᵀ u for each row u of `vectors`, shape (k, m), as (k, n); after a `forward`."""
        return self._product(self._adjoint, self.names[1], vectors, self.columns)

    def _first(self, vectors: Floats) -> Floats:
        half = np.finfo(self.dtype).maxexp // 2
        images = self._apply(self._forward, self.names[0], vectors, self.rows)
        # Sums of values near the ends of the range overflow (and then cancel to NaN) or lose digits.
        largest = float(np.max(np.abs(images)))
        if not largest < math.ldexp(1.0, half):
            self._shift = half
        elif largest <= math.ldexp(1.0, -half):
            self._shift = -half
        if self._shift:
            images = self._apply(self._forward, self.names[0], vectors, self.rows)
            largest = float(np.max(np.abs(images)))
        self._scaled = True
        self.exponent = math.frexp(largest)[1] + self._shift if 0.0 < largest < math.inf else 0
        return self._rescaled(images)

    def _product(self, product: Product, name: str, vectors: Floats, length: int) -> Floats:
        return self._rescaled(self._apply(product, name, vectors, length))

    def _apply(self, product: Product, name: str, vectors: Floats, length: int) -> Array:
        scaled = (vectors * math.ldexp(1.0, -self._shift)).astype(self.dtype, copy=False)
        images = float_array(name, product(scaled.T))
        if images.shape != (length, len(vectors)):
            raise ValueError(
                f"{name} must return shape {(length, len(vectors))} for {len(vectors)} columns; got {images.shape}"
            )
        self.applications += len(vectors)
        return images.T

    def _rescaled(self, images: Array) -> Floats:
        result: Floats = np.ascontiguousarray(images, np.float64) * math.ldexp(1.0, self._shift - self.exponent)
        if not np.all(np.isfinite(result)):
            raise NonFiniteError
        return result


def read_operator(value: object) -> Operator:
    """Return a matrix or a SciPy-like operator as an `Operator`.

    Raises
    ------
    TypeError
        If `value` is neither, or its dtype is not float32 or float64.
    ValueError
        If it has not two axes.
    """
    if callable(getattr(value, "matmat", None)) and callable(getattr(value, "rmatmat", None)):
        return _from_products(value)
    if hasattr(value, "shape") and not any(hasattr(value, name) for name in ("__array__", "__dlpack__")):
        raise TypeError(
            f"operator of type {type(value).__module__}.{type(value).__name__} must be an array, or have shape, dtype, "
            "matmat and rmatmat; scipy.sparse.linalg.aslinearoperator makes such an operator of a sparse matrix"
        )
    return _from_array(float_array("operator", value))


def _from_products(value: Any) -> Operator:
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise ValueError(f"operator.shape must be (m, n); got {shape!r}")
    rows, columns = (arguments.integer("operator.shape", size, minimum=0) for size in shape)
    dtype = supported_dtype("operator.dtype", getattr(value, "dtype", None))
    names = ("operator.matmat(X)", "operator.rmatmat(Y)")
    return Operator((rows, columns), dtype, value.matmat, value.rmatmat, names=names)


def _from_array(array: Array) -> Operator:
    if array.ndim != 2:
        raise ValueError(f"operator must be one matrix, shape (m, n); got {arguments.shape_text(array.shape)}")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = np.ascontiguousarray(array)  # once, instead of at every product
    if array.flags.c_contiguous:
        forward, adjoint = _product(array), _transposed_product(array)
    else:
        forward, adjoint = _transposed_product(array.T), _product(array.T)
    return Operator(array.shape, array.dtype, forward, adjoint, names=("operator @ X", "operator.T @ Y"))


def _product(matrix: Array) -> Product:
    """Return the function from X to matrix @ X, for C-order."""

    def product(columns: Array) -> Array:
        result = np.empty((len(matrix), columns.shape[1]), matrix.dtype)
        for start in range(0, len(matrix), _ROWS):
            np.matmul(matrix[start : start + _ROWS], columns, out=result[start : start + _ROWS])
        return result

    return product


def _transposed_product(matrix: Array) -> Product:
    """Return the function from Y to matrix.T @ Y, for C-order."""
    return lambda columns: (columns.T @ matrix).T
