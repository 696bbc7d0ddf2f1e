"""The C++ backend: fused kernels on stacks that are bound once."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from depthgauge import _core
from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge.backends.protocol import Keep, Results, SingularArrays, Stack, flat_vectors

# The kernels hold a group of examples, a cache line wide, side by side.
_LINE = 64


def forward(
    stack: Stack,
    x: Array,
    x_of: Indices,
    *,
    keep: Keep,
    quantiles: tuple[float, ...],
    cosine: bool,
    threads: int,
) -> tuple[Results, Any]:
    """Push `x`, shape (X, B, d), through the stack."""
    found: tuple[Results, Any] = _bound(stack).forward(x, x_of, keep, quantiles, cosine, _target(), threads)
    return found


def states(tape: Any) -> Array:
    """Return the states on a tape, shape (R, L+1, B, d)."""
    rows: Array = tape.states()
    return rows


def vjp(
    stack: Stack,
    tape: Any,
    cotangent: Array,
    *,
    weight_grads: Literal[False, True, "rms"],
    quantiles: tuple[float, ...],
    threads: int,
) -> Results:
    """Pull `cotangent`, shape (P, R, B, d), back."""
    gradients = {False: "none", True: "all", "rms": "rms"}[weight_grads]
    flat = flat_vectors(stack, cotangent)
    found: Results = _bound(stack).vjp(tape, cotangent.shape[:-2], flat, gradients, quantiles, _target(), threads)
    return found


def jvp(stack: Stack, tape: Any, tangent: Array, *, threads: int) -> Results:
    """Push `tangent`, shape (P, R, B, d), forward."""
    flat = flat_vectors(stack, tangent)
    found: Results = _bound(stack).jvp(tape, tangent.shape[:-2], flat, _target(), threads)
    return found


def products(stack: Stack, tape: Any, vectors: Array, *, transposed: bool, threads: int) -> Array:
    """Return the Jacobian at the one example of a tape, or its transpose, times vectors (V, d)."""
    # Vectors go through in the lanes of the example's group, and beyond those as probes.
    count, width = vectors.shape
    lanes = max(min(count, _LINE // vectors.itemsize), 1)
    probes = -(-count // lanes)
    padded: Array = np.zeros((probes * lanes, width), vectors.dtype)
    padded[:count] = vectors
    padded = padded.reshape(probes, lanes, width)
    copies = tape.of_copies(lanes)
    if transposed:
        found = vjp(stack, copies, padded, weight_grads=False, quantiles=(), threads=threads)["input_gradient"]
    else:
        found = jvp(stack, copies, padded, threads=threads)["output"]
    products: Array = found.reshape(probes * lanes, width)[:count]
    return products


class _JacobianAccumulator:
    """See `depthgauge.backends.protocol.JacobianAccumulator`."""

    def __init__(self, count: int, width: int, dtype: np.dtype[Any], max_order: int | None, threads: int) -> None:
        self._count, self._width, self._dtype = count, width, dtype
        self._parts = 1 if max_order is None else max_order + 1
        self.call = (_target(), threads)  # an accumulator stays with its instruction set
        self.core = _core_name("JacobianAccumulator", dtype)(
            self.call[0], width, count, self._parts, max_order is not None
        )

    def jacobians(self) -> tuple[Array, Indices]:
        matrices = _core.empty((self._count, self._parts, self._width, self._width), self._dtype)
        exponents: Indices = np.empty(self._count, np.int64)
        self.core.copy(matrices, exponents, *self.call)
        return matrices, exponents

    def singular_values(self) -> SingularArrays:
        found = _singular_arrays(self._count * self._parts, self._width, self._dtype)
        self.core.singular_values(*found, *self.call)
        return found

    def squares(self) -> tuple[Floats, Floats]:
        branch: Floats = np.empty((self.core.passed, self._count))
        post: Floats = np.empty_like(branch)
        self.core.squares(branch, post)
        return branch, post


class _GradedAccumulator:
    """See `depthgauge.backends.protocol.GradedAccumulator`."""

    def __init__(self, count: int, width: int, hidden: int, dtype: np.dtype[Any], threads: int) -> None:
        self._count, self._width = count, width
        self.call = (_target(), threads)
        self.core = _core_name("GradedAccumulator", dtype)(self.call[0], width, hidden, count)

    def log_singular_values(self) -> Floats:
        logs: Floats = np.empty((self._count, self._width))
        self.core.log_singular_values(logs, *self.call)
        return logs


def jacobian_accumulator(
    count: int, width: int, dtype: np.dtype[Any], *, max_order: int | None, threads: int
) -> _JacobianAccumulator:
    """Begin with the identity at `count` examples."""
    return _JacobianAccumulator(count, width, dtype, max_order, threads)


def graded_accumulator(
    count: int, width: int, hidden: int, dtype: np.dtype[Any], *, threads: int
) -> _GradedAccumulator:
    """Begin like `jacobian_accumulator`."""
    return _GradedAccumulator(count, width, hidden, dtype, threads)


def propagate(
    stacks: Sequence[Stack],
    states: Sequence[Array],
    accumulators: Sequence[Sequence[Any]],
    first: int,
    blocks: int,
    *,
    threads: int,
) -> None:
    """Take states, (R, B, d) each, and accumulators through some blocks of their stacks."""
    _function("propagate", stacks[0])(
        [_bound(stack) for stack in stacks],
        states[0].shape[1],
        list(states),
        [[each.core for each in some] for some in accumulators],
        first,
        blocks,
        accumulators[0][0].call[0],
        threads,
    )


def singular_values(a: Array, *, threads: int) -> SingularArrays:
    """Return the singular values of each matrix of `a`, shape (..., n, k)."""
    *leading, rows, columns = a.shape
    found = _singular_arrays(math.prod(leading), min(rows, columns), a.dtype)
    _function("singular_values", a)(a, *found, _target(), threads)
    return found


def _singular_arrays(count: int, values: int, dtype: np.dtype[Any]) -> SingularArrays:
    return SingularArrays(
        values=np.empty((count, values), dtype),
        exponent=np.empty(count, np.int64),
        converged=np.empty(count, np.bool_),
    )


def log_singular_values(factors: Sequence[Array], *, prefixes: bool, threads: int) -> Floats:
    """Return the logs of the singular values of the product of `factors`, shapes (..., m, n)."""
    *leading, _, width = factors[0].shape
    members = math.prod(leading)
    ends = [min(factor.shape[-2], width) for factor in factors]
    logs: Floats = np.empty((members, len(factors), max(ends)) if prefixes else (members, ends[-1]))
    _function("log_singular_values", factors[0])(list(factors), prefixes, logs, _target(), threads)
    return logs


def relative_singular_values(a: Array, *, threads: int) -> Array:
    """Return the singular values of each matrix of `a`, shape (..., n, k), to high relative accuracy."""
    *leading, rows, columns = a.shape
    values: Array = np.empty((math.prod(leading), min(rows, columns)), a.dtype)
    _function("relative_singular_values", a)(a, values, _target(), threads)
    return values


def fill_normals(
    out: Array, seeds: npt.NDArray[np.uint64], *, first_layer: int, matrix: int, deviation: float, threads: int
) -> None:
    """Fill `out`, shape (S, L, n), with normals times `deviation`."""
    _function("normals", out)(out, seeds, first_layer, matrix, deviation, _target(), threads)


def _function(name: str, of: Stack | Array) -> Any:
    return _core_name(name, of.dtype)


def _core_name(name: str, dtype: np.dtype[Any]) -> Any:
    return getattr(_core, f"{name}_float{8 * dtype.itemsize}")  # dtype.name takes ten times as long


def _target() -> str:
    return os.environ.get("DEPTHGAUGE_TARGET", "")


def _bound(stack: Stack) -> Any:
    """Return what the extension made of the stack at its first call."""
    bound = stack.bound.get("native")
    if bound is None:
        bound = _function("Stack", stack)(
            block=stack.block,
            depth=stack.depth,
            width=stack.width,
            hidden=stack.hidden,
            replicates=stack.replicates,
            set_of=stack.set_of,
            sets=stack.sets,
            branch_scale=stack.branch_scale,
            skip_scale=stack.skip_scale,
            parameters=stack.parameters,
        )
        stack.bound["native"] = bound
    return bound
