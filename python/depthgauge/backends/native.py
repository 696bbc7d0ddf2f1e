"""The C++ backend: fused kernels, whose results are allocated here."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from depthgauge import _core
from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge.backends.protocol import (
    BackwardArrays,
    ForwardArrays,
    Keep,
    SingularArrays,
    Stack,
    TangentArrays,
    flat_vectors,
)

# The kernels hold a group of examples, a cache line wide, side by side.
_LINE = 64


@dataclass(frozen=True, eq=False)
class Tape:
    """What the kernels keep of a forward pass.

    `arrays` are flat and aligned to cache lines; "states" is [replicate][layer][group][feature][example of the
    group], and the same on every instruction set.  `shape` is (R, L+1, B, d).
    """

    arrays: dict[str, Array]
    shape: tuple[int, int, int, int]

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrays = {name: _aligned(array.size, array.dtype) for name, array in state["arrays"].items()}
        for name, array in state["arrays"].items():
            arrays[name][:] = array
        object.__setattr__(self, "arrays", arrays)
        object.__setattr__(self, "shape", state["shape"])


def forward(
    stack: Stack,
    x: Array,
    x_of: Indices,
    *,
    keep: Keep,
    quantiles: tuple[float, ...],
    cosine: bool,
    threads: int,
) -> ForwardArrays:
    """Push `x`, shape (X, B, d), through the stack."""
    batch, width = x.shape[1:]
    at_states, at_blocks = (*stack.replicates, stack.depth + 1), (*stack.replicates, stack.depth)
    results: dict[str, Any] = {
        "output": np.empty((*stack.replicates, batch, width), stack.dtype),
        "rms": np.empty(at_states),
        "max_abs": np.empty(at_states),
        "batch_mean_norm": np.empty(at_states),
        "nonfinite": np.empty(at_states, np.int64),
        "branch_rms": np.empty(at_blocks),
        "live_fraction": np.empty(at_blocks),
        "dead_units": np.empty(at_blocks),
        "saturation": np.empty(at_blocks),
        "state_quantiles": np.empty((*at_states, len(quantiles))) if quantiles else None,
        "derivative_quantiles": np.empty((*at_blocks, len(quantiles))) if quantiles else None,
        "cosine": np.empty(at_states) if cosine else None,
    }
    kept = _function("forward", stack)(
        _problem(stack, batch), x, x_of, keep, results | {"quantiles": quantiles}, _target(), threads
    )
    tape = None if kept is None else Tape(kept, (len(x_of), stack.depth + 1, batch, width))
    return ForwardArrays(**results, tape=tape)


def states(tape: Any) -> Array:
    """Return the states on a tape, shape (R, L+1, B, d)."""
    flat = tape.arrays["states"]
    lanes = _LINE // flat.itemsize
    replicates, layers, batch, width = tape.shape
    groups = -(-batch // lanes)
    grouped = flat.reshape(replicates, layers, groups, width, lanes)
    rows = _core.empty(tape.shape, flat.dtype)
    for group in range(groups):
        first = group * lanes
        part = rows[:, :, first : first + lanes]
        part[...] = np.swapaxes(grouped[:, :, group, :, : part.shape[2]], -1, -2)
    return rows


def vjp(
    stack: Stack,
    tape: Any,
    cotangent: Array,
    *,
    weight_grads: Literal[False, True, "rms"],
    quantiles: tuple[float, ...],
    threads: int,
) -> BackwardArrays:
    """Pull `cotangent`, shape (P, R, B, d), back."""
    *leading, batch, _ = cotangent.shape
    at_states, at_blocks = (*leading, stack.depth + 1), (*stack.replicates, stack.depth)
    results: dict[str, Any] = {
        "input_gradient": np.empty(cotangent.shape, stack.dtype),
        "rms": np.empty(at_states),
        "max_abs": np.empty(at_states),
        "nonfinite": np.empty(at_states, np.int64),
        "gradient_quantiles": np.empty((*at_states, len(quantiles))) if quantiles else None,
    }
    shapes = {name: parameter.array.shape[1:] for name, parameter in stack.parameters.items()}
    if weight_grads == "rms":
        # What no example reaches stays as it is here: the RMS of zeros is 0, that of nothing NaN.
        results["weight_rms"] = {
            name: np.full(at_blocks, 0.0 if math.prod(shape[1:]) else np.nan) for name, shape in shapes.items()
        }
    elif weight_grads:
        # The kernels write the gradients that get a term, which are all of them unless there are no examples: weights
        # broadcast to the replicates, so that each set has one, if there are any.
        new = _core.empty if len(stack.set_of) * batch else np.zeros
        results["weights"] = {name: new((stack.sets, *shape), stack.dtype) for name, shape in shapes.items()}
        results["branch_scale"], results["skip_scale"] = np.zeros(at_blocks), np.zeros(at_blocks)
    _function("vjp", stack)(
        _problem(stack, batch),
        tape.arrays,
        flat_vectors(stack, cotangent),
        results | {"quantiles": quantiles},
        _target(),
        threads,
    )
    return BackwardArrays(**results)


def jvp(stack: Stack, tape: Any, tangent: Array, *, threads: int) -> TangentArrays:
    """Push `tangent`, shape (P, R, B, d), forward."""
    *leading, batch, _ = tangent.shape
    output: Array = np.empty(tangent.shape, stack.dtype)
    rms: Floats = np.empty((*leading, stack.depth + 1))
    _function("jvp", stack)(
        _problem(stack, batch),
        tape.arrays,
        flat_vectors(stack, tangent),
        {"output": output, "rms": rms},
        _target(),
        threads,
    )
    return TangentArrays(output, rms)


class _Passage:
    """The states of N examples on their way, and a walk of the kernels that follows them."""

    def __init__(self, x: Array, x_of: Indices, threads: int) -> None:
        self._x, self._x_of, self._threads = x, x_of, threads
        self.count, self.width, self.dtype = len(x_of) * x.shape[1], x.shape[2], x.dtype
        self._call = (_target(), threads)  # a walk stays with its instruction set
        self._stack: tuple[dict[str, Any], dict[str, Array]] = {}, {}
        self._passed = self._depth = 0

    def enter(self, stack: Stack) -> None:
        """Push the states through the blocks of `stack`."""
        batch = self._x.shape[1]
        found = forward(stack, self._x, self._x_of, keep="states", quantiles=(), cosine=False, threads=self._threads)
        self._stack = _problem(stack, batch), found.tape.arrays
        self._passed, self._depth = 0, stack.depth
        self._x = found.output.reshape(len(self._x_of), batch, self.width)
        self._x_of = np.arange(len(self._x_of))

    def advance(self, walk: Any, blocks: int) -> None:
        if not blocks:
            return
        walk.advance(*self._stack, self._passed, blocks, *self._call)
        self._passed += blocks
        if self._passed == self._depth:
            self._stack = {}, {}  # which holds states of all blocks, while many walks may be under way

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
        self._problems = [_problem(stack, self._batch) for stack in stacks]
        self._passed = 0

    def advance(self, blocks: int) -> None:
        self._advance(self._walks, self._problems, self._states, self._passed, blocks, *self._call)
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


def _problem(stack: Stack, batch: int) -> dict[str, Any]:
    """Return the stack as plain data for the extension."""
    block = stack.block
    return {
        "branch": block.branch,
        "activation": block.activation,
        "pre_norm": block.pre_norm,
        "output_norm": block.output_norm,
        "post_norm": block.post_norm,
        "eps": block.eps,
        "slope": block.slope,
        "dyt_alpha": block.dyt_alpha,
        "weight_scale": block.weight_scale,
        "depth": stack.depth,
        "width": stack.width,
        "hidden": stack.hidden,
        "sets": stack.sets,
        "set_of": stack.set_of,
        "replicates": len(stack.set_of),
        "examples": batch,
        "branch_scale": stack.branch_scale,
        "skip_scale": stack.skip_scale,
        "fields": stack.parameters,
    }


def _aligned(size: int, dtype: np.dtype[Any]) -> Array:
    """Return an uninitialized flat array that starts at a cache line."""
    count = size * dtype.itemsize
    memory = np.empty(count + _LINE, np.uint8)
    offset = -ctypes.addressof(ctypes.c_char.from_buffer(memory.data)) % _LINE
    return memory[offset : offset + count].view(dtype)
