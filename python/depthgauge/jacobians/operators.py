"""The Jacobian of a stack at one example as a linear operator: products with it, without the matrix."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, float_array, require_dtype
from depthgauge._common.results import shaped
from depthgauge.backends import get_backend
from depthgauge.equation import Block
from depthgauge.stacks.binding import AnyWeights, check_kinds
from depthgauge.stacks.propagation import forward


class JacobianOperator:
    """The Jacobian at one example as a linear operator, from `jacobian_operator`.

    It has what `estimate_spread` and SciPy's ``aslinearoperator`` look for.  Vectors are columns, and so is what the
    four products return, in the operator's dtype.

    Attributes
    ----------
    shape : (int, int)
        (d, d): features of the output, features of the input.
    dtype : dtype
        That of the weights, and of all vectors.
    """

    def __init__(
        self,
        block: Block,
        weights: AnyWeights,
        example: Array,
        *,
        backend: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.shape = (weights.width, weights.width)
        self.dtype = weights.dtype
        self._threads = threads
        self._forward = forward(block, weights, example, backend=backend, threads=threads)
        replicates = self._forward.output.shape[:-2]
        if replicates:
            raise ValueError(
                f"jacobian_operator takes one stack, but the weights have replicate axes {replicates}; make an "
                "operator for each replicate"
            )

    def matmat(self, X: npt.ArrayLike) -> Array:
        """Return ``J @ X`` for `X` of shape (d, p), in that shape."""
        return self._product(self._columns("X", X), transposed=False)

    def rmatmat(self, Y: npt.ArrayLike) -> Array:
        """Return ``J.T @ Y`` for `Y` of shape (d, p), in that shape."""
        return self._product(self._columns("Y", Y), transposed=True)

    def matvec(self, x: npt.ArrayLike) -> Array:
        """Return ``J @ x`` for `x` of shape (d,) or (d, 1), in that shape."""
        vector = self._vector("x", x)
        return shaped(self._product(vector.reshape(-1, 1), transposed=False), vector.shape)

    def rmatvec(self, y: npt.ArrayLike) -> Array:
        """Return ``J.T @ y`` for `y` of shape (d,) or (d, 1), in that shape."""
        vector = self._vector("y", y)
        return shaped(self._product(vector.reshape(-1, 1), transposed=True), vector.shape)

    def _columns(self, name: str, value: npt.ArrayLike) -> Array:
        array = float_array(name, value)
        require_dtype(name, array, self.dtype, "the operator")
        if array.ndim != 2 or len(array) != self.shape[0]:
            raise ValueError(f"{name} must have shape ({self.shape[0]}, p), vectors as columns; got {array.shape}")
        return array

    def _vector(self, name: str, value: npt.ArrayLike) -> Array:
        array = float_array(name, value)
        require_dtype(name, array, self.dtype, "the operator")
        width = self.shape[0]
        if array.shape not in ((width,), (width, 1)):
            raise ValueError(f"{name} must have shape ({width},) or ({width}, 1); got {array.shape}")
        return array

    def _product(self, columns: Array, *, transposed: bool) -> Array:
        backend, workers = get_backend(self._forward.backend), arguments.thread_count(self._threads)
        tapes = self._forward._tapes("derivatives")
        segments = self._forward._segments(workers, backward=transposed)
        vectors = columns.T
        for tape, (_, stack) in zip(reversed(tapes) if transposed else tapes, segments, strict=True):
            vectors = backend.products(stack, tape, vectors, transposed=transposed, threads=workers)
        return np.array(vectors.T, order="C")

    def __repr__(self) -> str:
        return f"JacobianOperator(shape={self.shape}, dtype={self.dtype}, depth={self._forward.weights.depth})"


def jacobian_operator(
    block: Block, weights: AnyWeights, x: npt.ArrayLike, *, backend: str | None = None, threads: int | None = None
) -> JacobianOperator:
    """Return the Jacobian of a stack at one example as a linear operator, for widths too large to hold it.

    The states of the example are computed and kept once; then a product with p vectors costs as much as a JVP or VJP
    of p examples.

    Parameters
    ----------
    block : Block
        The equation of a block.
    weights : Weights or GeneratedWeights
        The weights of L blocks of width d, without replicate axes.
    x : array_like, shape (d,) or (1, d)
        The example, in the dtype of the weights.
    backend : {"native", "reference"}, optional
        None means the environment's ``DEPTHGAUGE_BACKEND``, or native.
    threads : int, optional
        None means the environment's ``DEPTHGAUGE_NUM_THREADS``, or the CPUs this process may use; no more than those
        are used.

    Returns
    -------
    JacobianOperator
        Of shape (d, d), for `estimate_spread` and, by ``aslinearoperator``, for SciPy's iterative methods.

    Raises
    ------
    TypeError
        If a dtype is not float32 or float64, dtypes differ, or an argument is of the wrong kind.
    ValueError
        If `x` is not one example, the weights have replicate axes, or they lack what the branch needs.

    Examples
    --------
    >>> import numpy as np
    >>> import depthgauge as dg
    >>> block = dg.Block(branch_scale=0.1)
    >>> weights = dg.initialize(block, 24, 128, rng=np.random.default_rng(0))
    >>> operator = dg.jacobian_operator(block, weights, np.ones(128))
    >>> operator
    JacobianOperator(shape=(128, 128), dtype=float64, depth=24)
    >>> round(float(dg.estimate_spread(operator).effective_rank))
    125
    """
    check_kinds(block, weights)
    example = float_array("x", x)
    require_dtype("x", example, weights.dtype, "weights")
    width = weights.width
    if example.shape not in ((width,), (1, width)):
        raise ValueError(
            f"x must be one example, shape ({width},) or (1, {width}); got {example.shape}; make an operator for each "
            "example and replicate"
        )
    return JacobianOperator(block, weights, example.reshape(1, width), backend=backend, threads=threads)
