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


class _Passage:
    """The states of N examples on their way, and a walk of the kernels that follows them."""

    def __init__(self, x: Array, x_of: Indices, threads: int) -> None:
        self._x, self._x_of, self._threads = x, x_of, threads
        self.count, self.width, self.dtype = len(x_of) * x.shape[1], x.shape[2], x.dtype
        self._call = (_target(), threads)  # a walk stays with its instruction set
        self._stack: tuple[Any, ...] = ()
        self._passed = self._depth = 0

    def enter(self, stack: Stack) -> None:
        """Push the states through the blocks of `stack`."""
        batch = self._x.shape[1]
        found, tape = forward(
            stack, self._x, self._x_of, keep="states", quantiles=(), cosine=False, threads=self._threads
        )
        self._stack = _bound(stack), tape
        self._passed, self._depth = 0, stack.depth
        self._x = found["output"].reshape(len(self._x_of), batch, self.width)
        self._x_of = np.arange(len(self._x_of))

    def advance(self, walk: Any, blocks: int) -> None:
        if not blocks:
            return
        walk.advance(*self._stack, self._passed, blocks, *self._call)
        self._passed += blocks
        if self._passed == self._depth:
            self._stack = ()  # which holds states of all blocks, while many walks may be under way

    def call(self, function: Any, *arrays: Array) -> None:
        function(*arrays, *self._call)


class _JacobianWalk:
    """See `depthgauge.backends.JacobianWalk`."""

    def __init__(self, x: Array, x_of: Indices, max_order: int | None, threads: int) -> None:
        self._passage = at = _Passage(x, x_of, threads)
        self._parts = 1 if max_order is None else max_order + 1
        orders = max_order is not None
        self._walk = _function("Walk", x)(_target(), at.width, at.count, self._parts, orders)
        self._blocks = 0

    def enter(self, stack: Stack) -> None:
        self._passage.enter(stack)

    def advance(self, blocks: int) -> None:
        self._passage.advance(self._walk, blocks)
        self._blocks += blocks

    def jacobians(self) -> tuple[Array, Indices]:
        at = self._passage
        matrices = _core.empty((at.count, self._parts, at.width, at.width), at.dtype)
        exponents: Indices = np.empty(at.count, np.int64)
        at.call(self._walk.copy, matrices, exponents)
        return matrices, exponents

    def singular_values(self) -> SingularArrays:
        at = self._passage
        found = _singular_arrays(at.count * self._parts, at.width, at.dtype)
        at.call(self._walk.singular_values, *found)
        return found

    def squares(self) -> tuple[Floats, Floats]:
        branch: Floats = np.empty((self._blocks, self._passage.count))
        post: Floats = np.empty_like(branch)
        self._walk.squares(branch, post)
        return branch, post


class _JacobianWalks:
    """See `depthgauge.backends.JacobianWalks`."""

    def __init__(self, x: Array, x_of: Indices, count: int, threads: int) -> None:
        self._batch, self._width, self._dtype = *x.shape[1:], x.dtype
        self._examples = len(x_of) * self._batch
        self._call = (_target(), threads)  # walks stay with their instruction set
        # Where each walk is; the kernels move it on.
        self._states = [np.array(x[x_of], order="C") for _ in range(count)]
        make = _function("Walk", x)
        self._walks = [make(_target(), self._width, self._examples, 1, False) for _ in range(count)]
        self._advance = _function("advance_walks", x)

    def enter(self, stacks: Sequence[Stack]) -> None:
        self._stacks = [_bound(stack) for stack in stacks]
        self._passed = 0

    def advance(self, blocks: int) -> None:
        self._advance(self._walks, self._stacks, self._batch, self._states, self._passed, blocks, *self._call)
        self._passed += blocks

    def singular_values(self, index: int) -> SingularArrays:
        found = _singular_arrays(self._examples, self._width, self._dtype)
        self._walks[index].singular_values(*found, *self._call)
        return found


class _GradedWalk:
    """See `depthgauge.backends.GradedWalk`."""

    def __init__(self, x: Array, x_of: Indices, threads: int) -> None:
        self._passage = _Passage(x, x_of, threads)
        self._walk: Any = None

    def enter(self, stack: Stack) -> None:
        at = self._passage
        at.enter(stack)
        if self._walk is None:
            self._walk = _function("GradedWalk", stack)(_target(), at.width, stack.hidden, at.count)

    def advance(self, blocks: int) -> None:
        self._passage.advance(self._walk, blocks)

    def log_singular_values(self) -> Floats:
        at = self._passage
        logs: Floats = np.zeros((at.count, at.width))
        if self._walk is not None:
            at.call(self._walk.log_singular_values, logs)
        return logs


def jacobian_walk(x: Array, x_of: Indices, *, max_order: int | None, threads: int) -> _JacobianWalk:
    """Begin with the identity at the states of `x`, shape (X, B, d)."""
    return _JacobianWalk(x, x_of, max_order, threads)


def jacobian_walks(x: Array, x_of: Indices, count: int, *, threads: int) -> _JacobianWalks:
    """Begin so many walks like `jacobian_walk`."""
    return _JacobianWalks(x, x_of, count, threads)


def graded_walk(x: Array, x_of: Indices, *, threads: int) -> _GradedWalk:
    """Begin like `jacobian_walk`."""
    return _GradedWalk(x, x_of, threads)


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
    return getattr(_core, f"{name}_float{8 * of.dtype.itemsize}")  # dtype.name takes ten times as long


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
