"""Jacobians accumulated block after block in NumPy: multiplied out, and as graded products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge.backends.protocol import SingularArrays, Stack
from depthgauge.backends.reference import graded
from depthgauge.backends.reference.block import Intermediates, Layer
from depthgauge.backends.reference.propagation import forward, jvp, vjp
from depthgauge.backends.reference.singular import singular_values

# An example is rescaled once its largest derivative leaves 2^-30 ... 2^30.
_RANGE = 30


def products(stack: Stack, tape: Any, vectors: Array, *, transposed: bool, threads: int) -> Array:
    """Return the Jacobian at the one example of a tape, or its transpose, times vectors (V, d)."""
    # As those of copies of the example, of one number or another: NumPy's products round a row by how many there are.
    count, width = vectors.shape
    copies = 16 if count <= 16 else 64
    probes = -(-count // copies)
    padded: Array = np.zeros((probes * copies, width), vectors.dtype)
    padded[:count] = vectors
    padded = padded.reshape(probes, copies, width)
    x = np.repeat(tape[:, 0], copies, axis=1)
    at = forward(stack, x, np.arange(1), keep="states", quantiles=(), cosine=False, threads=threads)[1]
    if transposed:
        found = vjp(stack, at, padded, weight_grads=False, quantiles=(), threads=threads)["input_gradient"]
    else:
        found = jvp(stack, at, padded, threads=threads)["output"]
    products: Array = found.reshape(probes * copies, width)[:count]
    return products


def jacobian_accumulator(
    count: int, width: int, dtype: np.dtype[Any], *, max_order: int | None, threads: int
) -> JacobianAccumulator:
    """Begin with the identity at `count` examples of `width` features."""
    del threads
    return JacobianAccumulator(count, width, dtype, max_order)


def graded_accumulator(count: int, width: int, hidden: int, dtype: np.dtype[Any], *, threads: int) -> GradedAccumulator:
    """Begin like `jacobian_accumulator`."""
    del hidden, threads
    return GradedAccumulator(count, width, dtype)


@np.errstate(all="ignore")
def propagate(
    stacks: Sequence[Stack],
    states: Sequence[Array],
    accumulators: Sequence[Sequence[JacobianAccumulator | GradedAccumulator]],
    first: int,
    blocks: int,
    *,
    threads: int,
) -> None:
    """Take states, (R, B, d) each, and accumulators through some blocks of their stacks."""
    del threads
    for stack, h, followers in zip(stacks, states, accumulators, strict=True):
        for index in range(first, first + blocks):
            layer = Layer(stack, index)
            at = layer.forward(h)
            for follower in followers:
                follower.advance(layer, at)
            h[...] = at.next


class JacobianAccumulator:
    """Jacobians, or their path orders, multiplied out; see `depthgauge.backends.protocol.JacobianAccumulator`."""

    def __init__(self, count: int, width: int, dtype: np.dtype[Any], max_order: int | None) -> None:
        # Columns of the Jacobians are tangents: element (p, j, n, i) is d h_i / d x_j along paths of order p.
        self._unit = _unit_vectors(width, count, dtype)
        self._parts: Array = np.zeros((1 if max_order is None else max_order + 1, *self._unit.shape), dtype)
        self._parts[0] = self._unit
        self._exponents: Indices = np.zeros(count, np.int64)
        self._lost = np.zeros(count, np.bool_)
        self._orders = max_order is not None
        self._squares: list[tuple[Floats, Floats]] = []

    def advance(self, layer: Layer, at: Intermediates) -> None:
        """Pass one block."""
        self._lost |= _undefined(at.next)
        parts = self._parts.reshape(*self._parts.shape[:2], *at.h.shape)
        if self._orders:
            total = layer.skip_jvp(parts)
            total[1:] += layer.branch_jvp(at, parts[:-1])
            parts = layer.post_jvp(at, total)
            self._measure(layer, at)
        else:
            parts = layer.jvp(at, parts)
        self._parts = parts.reshape(self._parts.shape)
        self._parts[:, :, self._lost] = np.nan
        self._rescale()

    def jacobians(self) -> tuple[Array, Indices]:
        """Return matrices (N, P, d, d), and the exponents of two (N,) that belong to them."""
        return np.array(np.transpose(self._parts, (2, 0, 3, 1)), order="C"), self._exponents.copy()

    def singular_values(self) -> SingularArrays:
        """Return the singular values of each matrix."""
        matrices, exponents = self.jacobians()
        found = singular_values(matrices, threads=1)
        nonzero = found.values[:, :1] > 0
        of_matrix = np.repeat(exponents, matrices.shape[1])
        return found._replace(exponent=found.exponent + np.where(np.any(nonzero, axis=1), of_matrix, 0))

    def squares(self) -> tuple[Floats, Floats]:
        """Return |branch_scale J|² / d and |post'|² / d of the blocks passed, each (L, N)."""
        shape = (len(self._squares), self._exponents.size)
        branch, post = (np.array([pair[i] for pair in self._squares]).reshape(shape) for i in (0, 1))
        return branch, post

    def _measure(self, layer: Layer, at: Intermediates) -> None:
        unit = self._unit.reshape(len(self._unit), *at.h.shape)
        through_branch, through_post = layer.branch_jvp(at, unit), layer.post_jvp(at, unit)
        branch, post = (np.where(self._lost, np.nan, _mean_square(images)) for images in (through_branch, through_post))
        self._squares.append((branch, post))

    def _rescale(self) -> None:
        largest = np.max(np.abs(self._parts), axis=(0, 1, 3), initial=0)
        exponents = np.frexp(np.where(np.isfinite(largest), largest, 0))[1].astype(np.int64)
        exponents[np.abs(exponents) <= _RANGE] = 0
        self._parts = np.ldexp(self._parts, -exponents[:, None])
        self._exponents += exponents


class GradedAccumulator:
    """Jacobians as graded products; see `depthgauge.backends.protocol.GradedAccumulator`."""

    def __init__(self, count: int, width: int, dtype: np.dtype[Any]) -> None:
        self._products = [graded.identity(width) for _ in range(count)]
        self._known = np.ones(count, np.bool_)  # False from a factor on that is not finite
        self._unit = _unit_vectors(width, count, dtype)

    def advance(self, layer: Layer, at: Intermediates) -> None:
        """Pass one block."""
        self._known &= ~_undefined(at.next)
        unit = self._unit.reshape(len(self._unit), *at.h.shape)
        if layer.skip_scale:
            self._multiply(_matrices(layer.jvp(at, unit)))
        else:
            # The block is the branch alone, and can have no more ranks than that has live hidden units.
            up = _matrices(layer.hidden_jvp(at, unit))
            hidden = at.z.shape[-1]
            each = _unit_vectors(hidden, len(up), at.z.dtype).reshape(hidden, *at.z.shape)
            down = _matrices(layer.post_jvp(at, layer.down_jvp(at, each)))
            live = _live(at).reshape(len(up), up.shape[1])
            self._multiply([matrix[units] for matrix, units in zip(up, live, strict=True)])
            self._multiply([matrix[:, units] for matrix, units in zip(down, live, strict=True)])

    def log_singular_values(self) -> Floats:
        """Return the logs of the singular values, shape (N, d)."""
        width = self._unit.shape[-1]
        logs: Floats = np.full((len(self._products), width), -np.inf)
        with np.errstate(all="ignore"):
            for known, product, out in zip(self._known, self._products, logs, strict=True):
                exponents, values = graded.singular_values(product)
                out[: len(values)] = exponents * np.log(2.0) + np.log(values)
                if not known:
                    out[:] = np.nan
        return logs

    def _multiply(self, factors: Iterable[Array]) -> None:
        for member, factor in enumerate(factors):
            self._known[member] &= np.all(np.isfinite(factor))
            if self._known[member]:
                self._products[member] = graded.multiply(factor.astype(np.float64), self._products[member])


def _undefined(h: Array) -> npt.NDArray[np.bool_]:
    """Return whether there is a NaN in the state of each example, (N,).

    Dead units pass nothing on, not even that, so that from there on derivatives say nothing.
    """
    return np.asarray(np.any(np.isnan(h), axis=-1)).flatten()


def _unit_vectors(size: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Return the unit vectors for each example as tangents, (size, N, size)."""
    return np.repeat(np.eye(size, dtype=dtype)[:, None, :], count, axis=1)


def _matrices(images: Array) -> Array:
    """Return the matrix of each example, (N, m, n), from the images of n unit vectors, (n, R, B, m)."""
    matrices = np.moveaxis(images, 0, -1)
    return matrices.reshape(math.prod(matrices.shape[:2]), *matrices.shape[2:])


def _live(at: Intermediates) -> npt.NDArray[np.bool_]:
    """Return which hidden units pass anything on, (R, B, m); in a gated branch they have two ways to."""
    steep = at.slope if at.value is None else np.where(at.slope == 0, 0, at.slope * at.value)
    return np.asarray((steep != 0) | (False if at.value is None else at.phi != 0))


def _mean_square(images: Array) -> Floats:
    """Return the squared Frobenius norm over the columns of each example's matrix, (N,)."""
    columns, *_ = images.shape
    matrices = np.moveaxis(images, 0, -1).astype(np.float64)
    exponents = np.frexp(np.max(np.abs(matrices), axis=(-2, -1), initial=0))[1]
    total = np.sum(np.ldexp(matrices, -exponents[..., None, None]) ** 2, axis=(-2, -1))
    return np.asarray(np.ldexp(np.divide(total, columns), 2 * exponents)).flatten()
