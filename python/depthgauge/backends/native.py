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
    _function("reverse", stack)(
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
    _function("tangent", stack)(
        _problem(stack, batch),
        tape.arrays,
        flat_vectors(stack, tangent),
        {"output": output, "rms": rms},
        _target(),
        threads,
    )
    return TangentArrays(output, rms)


def products(stack: Stack, tape: Any, vectors: Array, *, transposed: bool, threads: int) -> Array:
    """Return the Jacobian at the one example of a tape, or its transpose, times vectors (V, d)."""
    # The tape has that example in every lane of its one group, so that it is one of as many examples, too: vectors go
    # through in lanes, and beyond those as probes.
    count, width = vectors.shape
    lanes = max(min(count, _LINE // vectors.itemsize), 1)
    probes = -(-count // lanes)
    padded: Array = np.zeros((probes * lanes, width), vectors.dtype)
    padded[:count] = vectors
    padded = padded.reshape(probes, lanes, width)
    if transposed:
        found = vjp(stack, tape, padded, weight_grads=False, quantiles=(), threads=threads).input_gradient
    else:
        found = jvp(stack, tape, padded, threads=threads).output
    return found.reshape(probes * lanes, width)[:count]


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
        [_problem(stack, h.shape[1]) for stack, h in zip(stacks, states, strict=True)],
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
