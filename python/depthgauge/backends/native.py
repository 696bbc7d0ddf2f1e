"""The C++ backend: fused kernels, whose arrays are allocated here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from depthgauge import _core
from depthgauge.backends import Array, BackwardArrays, Floats, ForwardArrays, Indices, Stack, TangentArrays

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
    keep: bool,
    quantiles: tuple[float, ...],
    cosine: bool,
    threads: int,
) -> ForwardArrays:
    """Push `x`, shape (X, B, d), through the stack."""
    replicates, depth, (batch, width) = len(x_of), stack.depth, x.shape[1:]
    problem = _problem(stack, replicates, batch)
    tape = None
    if keep:
        sizes = _function("tape_sizes", stack)(problem)
        arrays = {
            name: _aligned(size, np.dtype(np.uint16) if name == "positive" else stack.dtype)
            for name, size in sizes.items()
            if size or name == "states"
        }
        tape = Tape(arrays, (replicates, depth + 1, batch, width))
    at_states, at_blocks = (replicates, depth + 1), (replicates, depth)
    out: dict[str, Any] = {"output": np.empty((replicates, batch, width), stack.dtype)}
    out |= {name: np.empty(at_states) for name in ("rms", "max_abs", "batch_mean_norm")}
    out |= {name: np.empty(at_blocks) for name in ("branch_rms", "live_fraction", "dead_units", "saturation")}
    out["nonfinite"] = np.empty(at_states, np.int64)
    requested: dict[str, Any] = {}
    if quantiles:
        requested["state_quantiles"] = np.empty((*at_states, len(quantiles)))
        requested["derivative_quantiles"] = np.empty((*at_blocks, len(quantiles)))
    if cosine:
        requested["cosine"] = np.empty(at_states)
    _function("forward", stack)(
        problem,
        x,
        x_of,
        None if tape is None else tape.arrays,
        out | requested | {"quantiles": quantiles},
        _target(),
        threads,
    )
    names = ("state_quantiles", "derivative_quantiles", "cosine")
    return ForwardArrays(**out, **{name: requested.get(name) for name in names}, tape=tape)


def states(tape: Any) -> Array:
    """Return the states on a tape, shape (R, L+1, B, d)."""
    flat = tape.arrays["states"]
    lanes = _LINE // flat.itemsize
    replicates, layers, batch, width = tape.shape
    groups = -(-batch // lanes)
    grouped = flat.reshape(replicates, layers, groups, width, lanes)
    rows: Array = np.empty(tape.shape, flat.dtype)
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
    probes, replicates, batch, _ = cotangent.shape
    at_states, at_blocks = (probes, replicates, stack.depth + 1), (replicates, stack.depth)
    out: dict[str, Any] = {
        "input_gradient": np.empty(cotangent.shape, stack.dtype),
        "rms": np.empty(at_states),
        "max_abs": np.empty(at_states),
        "nonfinite": np.empty(at_states, np.int64),
    }
    if quantiles:
        out["gradient_quantiles"] = np.empty((*at_states, len(quantiles)))
    # A sum over no examples is 0, and the kernels add nothing to it.
    empty = batch == 0 or stack.sets == 0 or replicates < stack.sets
    new = np.zeros if empty else np.empty
    if weight_grads == "rms":
        out["weight_rms"] = {
            name: np.full(at_blocks, 0.0 if parameter.array[0, 0].size else np.nan)
            if parameter.array.size
            else np.full(at_blocks, np.nan)
            for name, parameter in stack.parameters.items()
        }
    elif weight_grads:
        out["weights"] = {
            name: new((stack.sets, *parameter.array.shape[1:]), stack.dtype)
            for name, parameter in stack.parameters.items()
        }
        out["branch_scale"], out["skip_scale"] = np.zeros(at_blocks), np.zeros(at_blocks)
    _function("reverse", stack)(
        _problem(stack, replicates, batch), tape.arrays, cotangent, out | {"quantiles": quantiles}, _target(), threads
    )
    names = ("gradient_quantiles", "weights", "weight_rms", "branch_scale", "skip_scale")
    return BackwardArrays(**{name: None for name in names} | out)


def jvp(stack: Stack, tape: Any, tangent: Array, *, threads: int) -> TangentArrays:
    """Push `tangent`, shape (P, R, B, d), forward."""
    probes, replicates, batch, _ = tangent.shape
    output: Array = np.empty(tangent.shape, stack.dtype)
    rms: Floats = np.empty((probes, replicates, stack.depth + 1))
    _function("tangent", stack)(
        _problem(stack, replicates, batch), tape.arrays, tangent, {"output": output, "rms": rms}, _target(), threads
    )
    return TangentArrays(output, rms)


def _function(name: str, stack: Stack) -> Any:
    return getattr(_core, f"{name}_{stack.dtype.name}")


def _target() -> str:
    return os.environ.get("DEPTHGAUGE_TARGET", "")


def _problem(stack: Stack, replicates: int, batch: int) -> dict[str, Any]:
    """Return the stack as plain data for the extension."""
    block = stack.block
    names = ("branch", "activation", "pre_norm", "output_norm", "post_norm", "eps", "slope", "dyt_alpha")
    problem: dict[str, Any] = {name: getattr(block, name) for name in (*names, "weight_scale")}
    problem |= {name: getattr(stack, name) for name in ("depth", "width", "hidden", "sets", "set_of")}
    return problem | {
        "replicates": replicates,
        "examples": batch,
        "branch_scale": stack.branch_scale.astype(stack.dtype),
        "skip_scale": stack.skip_scale.astype(stack.dtype),
        "fields": {name: (parameter.array, parameter.index) for name, parameter in stack.parameters.items()},
    }


def _aligned(size: int, dtype: np.dtype[Any]) -> Array:
    """Return an uninitialized flat array that starts at a cache line."""
    memory = np.empty(size * dtype.itemsize + _LINE, np.uint8)
    offset = -memory.__array_interface__["data"][0] % _LINE
    return memory[offset : offset + size * dtype.itemsize].view(dtype)
