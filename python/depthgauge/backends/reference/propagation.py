"""States, cotangents and tangents pushed through a stack in NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge._common.results import shaped
from depthgauge.backends.protocol import Keep, Results, Stack, flat_vectors
from depthgauge.backends.reference import statistics
from depthgauge.backends.reference.block import Intermediates, Layer

# Thresholds on |phi'(z)|, rounded to the dtype of the states before they are compared.
_LIVE = 0.1
_SATURATED = 0.01

# Statistics of every gradient, of every state and of every block.
_OF_GRADIENTS = ("rms", "max_abs", "nonfinite")
_OF_STATES = (*_OF_GRADIENTS, "batch_mean_norm")
_OF_BLOCKS = ("branch_rms", "live_fraction", "dead_units", "saturation")


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
    """Push `x`, shape (X, B, d), through the stack; the tape holds the states, shape (R, L+1, B, d), R flat."""
    del threads  # NumPy's matrix products have threads of their own
    h = np.array(x[x_of], order="C")
    replicates, batch, width = h.shape
    tape = np.empty((replicates, stack.depth + 1, batch, width), stack.dtype) if keep != "nothing" else None
    at_states = _Columns(_OF_STATES, stack.replicates, stack.depth + 1)
    at_blocks = _Columns(_OF_BLOCKS, stack.replicates, stack.depth)
    with np.errstate(all="ignore"):
        for index in range(stack.depth + 1):
            if tape is not None:
                tape[:, index] = h
            at_states.put(index, _state_statistics(h, quantiles, cosine))
            if index < stack.depth:
                at = Layer(stack, index).forward(h)
                at_blocks.put(index, _block_statistics(stack.block.activation, at, quantiles))
                h = at.next
    results: Results = at_states.statistics() | at_blocks.statistics()
    results["output"] = shaped(h, stack.replicates + h.shape[1:])
    results["state_quantiles"] = at_states.quantiles(quantiles)
    results["derivative_quantiles"] = at_blocks.quantiles(quantiles)
    results["cosine"] = at_states["cosine"] if cosine else None
    return results, tape


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
) -> Results:
    """Pull `cotangent`, shape (P, R, B, d), back; each block is evaluated again from its state."""
    del threads
    g = np.array(flat_vectors(stack, cotangent), order="C")
    at_states = _Columns(_OF_GRADIENTS, cotangent.shape[:-2], stack.depth + 1, flat_axes=2)
    at_blocks = _Columns((), stack.replicates, stack.depth)
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
    results: Results = at_states.statistics()
    results["input_gradient"] = shaped(g, cotangent.shape)
    results["gradient_quantiles"] = at_states.quantiles(quantiles)
    results["weights"] = weights
    results["weight_rms"] = (
        {name: at_blocks[f"rms of {name}"] for name in stack.parameters} if weight_grads == "rms" else None
    )
    for scale in ("branch_scale", "skip_scale"):
        results[scale] = at_blocks[scale] if weight_grads is True else None
    return results


def jvp(stack: Stack, tape: Any, tangent: Array, *, threads: int) -> Results:
    """Push `tangent`, shape (P, R, B, d), forward; each block is evaluated again from its state."""
    del threads
    t = np.array(flat_vectors(stack, tangent), order="C")
    at_states = _Columns(("rms",), tangent.shape[:-2], stack.depth + 1, flat_axes=2)
    with np.errstate(all="ignore"):
        at_states.put(0, {"rms": statistics.rms(t)})
        for index in range(stack.depth):
            layer = Layer(stack, index)
            t = layer.jvp(layer.forward(tape[:, index]), t)
            at_states.put(index + 1, {"rms": statistics.rms(t)})
    return {"output": shaped(t, tangent.shape), "rms": at_states["rms"]}


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


def _block_statistics(activation: str, at: Intermediates, quantiles: tuple[float, ...]) -> dict[str, Array]:
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
    """Statistics filled in one column, a state or a block, at a time: arrays (*leading, columns[, Q]).

    The values put there have their leading axes flattened to `flat_axes` axes.  `names` are the statistics that there
    are even without columns.
    """

    def __init__(self, names: Iterable[str], leading: tuple[int, ...], columns: int, flat_axes: int = 1) -> None:
        self._names, self._leading, self._flat_axes = tuple(names), leading, flat_axes
        self._shape = (*leading, columns)
        self._arrays: dict[str, Array] = {}

    def put(self, column: int, values: dict[str, Array]) -> None:
        for name, value in values.items():
            rest = value.shape[self._flat_axes :]
            if name not in self._arrays:
                self._arrays[name] = np.empty(self._shape + rest, value.dtype)
            self._arrays[name][(slice(None),) * len(self._leading) + (column,)] = value.reshape(self._leading + rest)

    def __getitem__(self, name: str) -> Array:
        return self._arrays.get(name, np.empty(self._shape))

    def statistics(self) -> dict[str, Array]:
        return {name: self[name] for name in self._names}

    def quantiles(self, levels: tuple[float, ...]) -> Array | None:
        if not levels:
            return None
        return self._arrays.get("quantiles", np.empty((*self._shape, len(levels))))
