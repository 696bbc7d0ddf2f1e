"""States, cotangents and tangents pushed through a stack in NumPy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge._common.results import shaped
from depthgauge.backends.protocol import BackwardArrays, ForwardArrays, Keep, Stack, TangentArrays, flat_vectors
from depthgauge.backends.reference import statistics
from depthgauge.backends.reference.block import Layer, Passage

# Thresholds on |phi'(z)|, rounded to the dtype of the states before they are compared.
_LIVE = 0.1
_SATURATED = 0.01


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
    """Push `x`, shape (X, B, d), through the stack; the tape holds the states, shape (R, L+1, B, d), R flat."""
    del threads  # NumPy's matrix products have threads of their own
    h = np.array(x[x_of], order="C")
    replicates, batch, width = h.shape
    tape = np.empty((replicates, stack.depth + 1, batch, width), stack.dtype) if keep != "nothing" else None
    at_states = _Columns(stack.replicates, stack.depth + 1)
    at_blocks = _Columns(stack.replicates, stack.depth)
    with np.errstate(all="ignore"):
        for index in range(stack.depth + 1):
            if tape is not None:
                tape[:, index] = h
            at_states.put(index, _state_statistics(h, quantiles, cosine))
            if index < stack.depth:
                passage = Layer(stack, index).forward(h)
                at_blocks.put(index, _block_statistics(stack.block.activation, passage, quantiles))
                h = passage.next
    return ForwardArrays(
        output=shaped(h, stack.replicates + h.shape[1:]),
        rms=at_states["rms"],
        max_abs=at_states["max_abs"],
        batch_mean_norm=at_states["batch_mean_norm"],
        nonfinite=at_states["nonfinite"].astype(np.int64),
        branch_rms=at_blocks["branch_rms"],
        live_fraction=at_blocks["live_fraction"],
        dead_units=at_blocks["dead_units"],
        saturation=at_blocks["saturation"],
        state_quantiles=at_states.quantiles("quantiles", quantiles),
        derivative_quantiles=at_blocks.quantiles("quantiles", quantiles),
        cosine=at_states["cosine"] if cosine else None,
        tape=tape,
    )


def states(tape: Any) -> Array:
    """Return a copy of the states on a tape, shape (R, L+1, B, d), replicates flat."""
    return np.array(tape)


def vjp(
    stack: Stack,
    tape: Any,
    cotangent: Array,
    *,
    weight_grads: Literal[False, True, "rms"],
    quantiles: tuple[float, ...],
    threads: int,
) -> BackwardArrays:
    """Pull `cotangent`, shape (P, R, B, d), back; each block is evaluated again from its state."""
    del threads
    g = np.array(flat_vectors(stack, cotangent), order="C")
    at_states = _Columns(cotangent.shape[:-2], stack.depth + 1, flat_axes=2)
    at_blocks = _Columns(stack.replicates, stack.depth)
    sums = _zero_gradients(stack) if weight_grads is True else None
    with np.errstate(all="ignore"):
        at_states.put(stack.depth, _gradient_statistics(g, quantiles))
        for index in reversed(range(stack.depth)):
            layer = Layer(stack, index)
            gradients: dict[str, Array] | None = {} if weight_grads else None
            g = layer.vjp(layer.forward(tape[:, index]), g, gradients)
            at_states.put(index, _gradient_statistics(g, quantiles))
            if gradients is None:
                continue
            at_blocks.put(index, {name: gradients[name][0] for name in ("branch_scale", "skip_scale")})
            own = {name: gradients[name][0] for name in stack.parameters}
            at_blocks.put(index, {f"rms of {name}": _parameter_rms(gradient) for name, gradient in own.items()})
            if sums is not None:
                for name, gradient in own.items():
                    np.add.at(sums[name][:, index], stack.set_of, gradient)
        weights = None if sums is None else {name: total.astype(stack.dtype) for name, total in sums.items()}
    return BackwardArrays(
        input_gradient=shaped(g, cotangent.shape),
        rms=at_states["rms"],
        max_abs=at_states["max_abs"],
        nonfinite=at_states["nonfinite"].astype(np.int64),
        gradient_quantiles=at_states.quantiles("quantiles", quantiles),
        weights=weights,
        weight_rms={name: at_blocks[f"rms of {name}"] for name in stack.parameters} if weight_grads == "rms" else None,
        branch_scale=at_blocks["branch_scale"] if weight_grads is True else None,
        skip_scale=at_blocks["skip_scale"] if weight_grads is True else None,
    )


def jvp(stack: Stack, tape: Any, tangent: Array, *, threads: int) -> TangentArrays:
    """Push `tangent`, shape (P, R, B, d), forward; each block is evaluated again from its state."""
    del threads
    t = np.array(flat_vectors(stack, tangent), order="C")
    at_states = _Columns(tangent.shape[:-2], stack.depth + 1, flat_axes=2)
    with np.errstate(all="ignore"):
        at_states.put(0, {"rms": statistics.rms(t)})
        for index in range(stack.depth):
            layer = Layer(stack, index)
            t = layer.jvp(layer.forward(tape[:, index]), t)
            at_states.put(index + 1, {"rms": statistics.rms(t)})
    return TangentArrays(output=shaped(t, tangent.shape), rms=at_states["rms"])


def _state_statistics(h: Array, quantiles: tuple[float, ...], cosine: bool) -> dict[str, Array]:
    found: dict[str, Array] = _gradient_statistics(h, quantiles)
    found["batch_mean_norm"] = statistics.batch_mean_norm(h)
    if cosine:
        found["cosine"] = statistics.mean_cosine(h)
    return found


def _gradient_statistics(g: Array, quantiles: tuple[float, ...]) -> dict[str, Array]:
    found: dict[str, Array] = {
        "rms": statistics.rms(g),
        "max_abs": statistics.max_abs(g),
        "nonfinite": statistics.nonfinite(g),
    }
    if quantiles:
        found["quantiles"] = statistics.quantiles_of_magnitude(g, quantiles)
    return found


def _block_statistics(activation: str, at: Passage, quantiles: tuple[float, ...]) -> dict[str, Array]:
    steepness = np.abs(at.slope)
    known = ~np.isnan(at.z)  # shares count a NaN in neither
    live = known & (at.z > 0 if activation == "relu" else steepness > steepness.dtype.type(_LIVE))
    found: dict[str, Array] = {
        "branch_rms": statistics.rms(at.r),
        "live_fraction": statistics.share(live),
        "dead_units": statistics.dead_units(live),
        "saturation": statistics.share(known & (steepness < steepness.dtype.type(_SATURATED))),
    }
    if quantiles:
        found["quantiles"] = statistics.quantiles_of_magnitude(steepness, quantiles)
    return found


def _parameter_rms(gradient: Array) -> Floats:
    """Return the RMS of each replicate's gradient, shape (R, 1, n) or (R, n) or (R, p, q), as (R,)."""
    return statistics.rms(gradient if gradient.ndim == 3 else gradient[:, None, :])


def _zero_gradients(stack: Stack) -> dict[str, Floats]:
    return {name: np.zeros((stack.sets, *parameter.array.shape[1:])) for name, parameter in stack.parameters.items()}


class _Columns:
    """Statistics filled in one column, a state or a block, at a time: float64 arrays (*leading, columns[, Q]).

    The values put there have their leading axes flattened to `flat_axes` axes.
    """

    def __init__(self, leading: tuple[int, ...], columns: int, flat_axes: int = 1) -> None:
        self._leading, self._flat_axes = leading, flat_axes
        self._shape = (*leading, columns)
        self._arrays: dict[str, Floats] = {}

    def put(self, column: int, values: dict[str, Array]) -> None:
        for name, value in values.items():
            rest = value.shape[self._flat_axes :]
            if name not in self._arrays:
                self._arrays[name] = np.empty(self._shape + rest)
            self._arrays[name][(slice(None),) * len(self._leading) + (column,)] = value.reshape(self._leading + rest)

    def __getitem__(self, name: str) -> Floats:
        # With no columns, nothing was put.
        return self._arrays.get(name, np.empty(self._shape))

    def quantiles(self, name: str, levels: tuple[float, ...]) -> Floats | None:
        if not levels:
            return None
        return self._arrays.get(name, np.empty((*self._shape, len(levels))))
