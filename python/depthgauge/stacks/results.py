"""What is measured of states, cotangents and tangents on their way through a stack."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge._common.results import Result, shaped, span
from depthgauge.backends import get_backend
from depthgauge.backends.protocol import Stack
from depthgauge.equation import Block
from depthgauge.stacks.binding import AnyWeights, build_stack, layer_scale
from depthgauge.stacks.segments import segments
from depthgauge.stacks.weights import Weights


@dataclass(frozen=True, eq=False, repr=False)
class Forward(Result):
    """The states of a stack and their statistics, from `forward`.

    R stands for the replicate axes, those of weights and input broadcast (none for a single stack), L for the number
    of blocks, B for examples, d for features, Q for quantiles.  Statistics pool examples and features, in float64;
    index 0 along L+1 is the input.  They are NaN if any value is NaN, else infinite if any value is, and NaN of
    nothing.

    Attributes
    ----------
    block : Block
    weights : Weights or GeneratedWeights
        The very arguments of `forward`.
    output : ndarray, shape (R, B, d)
        The last state.
    rms, max_abs : ndarray, shape (R, L+1)
        Root mean square and largest magnitude of each state.
    batch_mean_norm : ndarray, shape (R, L+1)
        Euclidean norm of the mean of a state over examples.
    nonfinite : ndarray of int64, shape (R, L+1)
        How many values are NaN or infinite.
    branch_rms : ndarray, shape (R, L)
        RMS of r, the normed branch before `branch_scale`.
    live_fraction : ndarray, shape (R, L)
        Share of hidden units and examples with z > 0 for relu, else with |phi'(z)| > 0.1.  z is what the activation
        takes, the gate's in a gated branch.
    dead_units : ndarray, shape (R, L)
        Share of hidden units that are not live in any example.
    saturation : ndarray, shape (R, L)
        Share of hidden units and examples with |phi'(z)| < 0.01.  Both thresholds are rounded to the dtype.  A NaN
        counts as neither live nor saturated.
    quantiles : tuple of float
        The levels of the next two.
    state_quantiles : ndarray, shape (R, L+1, Q), or None
        Quantiles of |h|, linear between order statistics.
    derivative_quantiles : ndarray, shape (R, L, Q), or None
        Quantiles of |phi'(z)|.
    cosine : ndarray, shape (R, L+1), or None
        Mean cosine over pairs of distinct examples; a state of zeros has cosine 0 with every other.
    backend : str
        The backend that computed this, and that `vjp` and `jvp` use with it.
    """

    block: Block
    weights: AnyWeights
    output: Array
    rms: Floats
    max_abs: Floats
    batch_mean_norm: Floats
    nonfinite: Indices
    branch_rms: Floats
    live_fraction: Floats
    dead_units: Floats
    saturation: Floats
    quantiles: tuple[float, ...]
    state_quantiles: Floats | None
    derivative_quantiles: Floats | None
    cosine: Floats | None
    backend: str
    _stack: Stack | None = field(repr=False)  # of stored weights
    _tape: tuple[Any, ...] | None = field(repr=False)  # one a segment of layers; None when nothing is kept

    @cached_property
    def states(self) -> Array:
        """The states, ndarray of shape (R, L+1, B, d), made on first use.

        Raises
        ------
        ValueError
            If `forward` ran with ``keep="nothing"``.
        """
        tapes = self._tapes("its states")
        read = get_backend(self.backend).states
        *replicates, batch, width = self.output.shape
        shape = (*replicates, self.weights.depth + 1, batch, width)
        if len(tapes) == 1:
            return shaped(read(tapes[0]), shape)
        flat = np.empty((math.prod(replicates), *shape[-3:]), self.output.dtype)
        first = 0
        for tape in tapes:
            part = read(tape)
            # The last state of a segment is the first of the next.
            last = first + part.shape[1] - 1
            flat[:, first : last + 1] = part
            first = last
        return shaped(flat, shape)

    @cached_property
    def residual_ratio(self) -> Floats:
        """RMS of ``branch_scale * r`` over RMS of ``skip_scale * h``, (R, L), made on first use.

        It is infinite for a plain stack.
        """
        with np.errstate(all="ignore"):
            branch, skip = (layer_scale(name, self.block, self.weights) for name in ("branch_scale", "skip_scale"))
            return np.asarray(np.abs(branch * self.branch_rms / (skip * self.rms[..., :-1])))

    def table(self) -> list[dict[str, Any]]:
        """Return the statistics as rows, one a depth.

        Returns
        -------
        list of dict
            L+1 rows with `depth`, the number of blocks passed, then the statistics of that state and of the block
            that led to it, which are NaN in row 0.  Values are floats, or arrays of shape R if there are replicates.
        """
        at_states = ["rms", "max_abs", "batch_mean_norm", "nonfinite"] + ["cosine"] * (self.cosine is not None)
        at_blocks = ["branch_rms", "residual_ratio", "live_fraction", "dead_units", "saturation"]
        columns = {name: getattr(self, name) for name in at_states}
        for name in at_blocks:
            values = getattr(self, name)
            columns[name] = np.concatenate([np.full((*values.shape[:-1], 1), np.nan), values], axis=-1)
        return [
            {"depth": depth} | {name: _entry(values[..., depth]) for name, values in columns.items()}
            for depth in range(self.weights.depth + 1)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the block (as plain data) and statistics by name, arrays uncopied, absent ones left out."""
        found = super().to_dict() | {"block": self.block.to_dict(), "residual_ratio": self.residual_ratio}
        del found["weights"]
        return found

    def _tapes(self, what: str) -> tuple[Any, ...]:
        if self._tape is None:
            raise ValueError(f'this Forward kept nothing, so {what} cannot be had; run forward with keep="states"')
        return self._tape

    def _segments(self, threads: int, *, backward: bool) -> Iterator[tuple[int, Stack]]:
        if self._stack is not None:
            return iter(((0, self._stack),))
        of_x = self.output.shape[:-2]
        return segments(self.block, self.weights, of_x, backward=backward, backend=self.backend, threads=threads)

    def __getstate__(self) -> dict[str, Any]:
        # The states are on the tape, and the stack's arrays are views of the weights; neither is pickled twice.
        return {name: value for name, value in self.__dict__.items() if name not in ("states", "_stack")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        weights, of_x = state["weights"], state["output"].shape[:-2]
        stack = build_stack(state["block"], weights, of_x) if isinstance(weights, Weights) else None
        self.__dict__.update(state, _stack=stack)

    def __repr__(self) -> str:
        return self._line(
            depth=self.weights.depth,
            output=f"{self.output.dtype}{list(self.output.shape)}",
            rms=span(self.rms),
            nonfinite=int(np.sum(self.nonfinite[..., -1])),
            kept="nothing" if self._tape is None else "states",
            backend=self.backend,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Backward(Result):
    """A cotangent pulled back through a stack, from `vjp`.

    P stands for the probe axes of the cotangent, the other letters are those of `Forward`.

    Attributes
    ----------
    input_gradient : ndarray, shape (P, R, B, d)
        The gradient at the input.
    rms, max_abs : ndarray, shape (P, R, L+1)
        Root mean square and largest magnitude of the gradient at each state; index L is the cotangent itself.
    nonfinite : ndarray of int64, shape (P, R, L+1)
        How many values are NaN or infinite.
    quantiles : tuple of float
        The levels of `gradient_quantiles`.
    gradient_quantiles : ndarray, shape (P, R, L+1, Q), or None
        Quantiles of the magnitude of the gradient at each state.
    weights : Weights or None
        With ``weight_grads=True``, the gradients of the weights, in the given weights' own shapes: summed over
        examples, and over the replicate axes that a field lacks.
    branch_scale, skip_scale : ndarray, shape (R, L), or None
        With ``weight_grads=True``, the gradients of each layer's two scales.
    weight_rms : dict of str to ndarray, shape (R, L), or None
        With ``weight_grads="rms"``, the RMS of each replicate's gradient of each field of the weights.
    """

    input_gradient: Array
    rms: Floats
    max_abs: Floats
    nonfinite: Indices
    quantiles: tuple[float, ...]
    gradient_quantiles: Floats | None
    weights: Weights | None
    branch_scale: Floats | None
    skip_scale: Floats | None
    weight_rms: dict[str, Floats] | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, `weights` as a dict of arrays; what is absent is left out."""
        found = super().to_dict()
        if self.weights is not None:
            found["weights"] = dict(self.weights.items())
        return found

    def __repr__(self) -> str:
        gradients = "none" if self.weights is None else "all"
        return self._line(
            depth=self.rms.shape[-1] - 1,
            input_gradient=f"{self.input_gradient.dtype}{list(self.input_gradient.shape)}",
            rms=span(self.rms),
            weight_grads="rms" if self.weight_rms is not None else gradients,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Tangent(Result):
    """A tangent pushed forward through a stack, from `jvp`; letters are those of `Backward`.

    Attributes
    ----------
    output : ndarray, shape (P, R, B, d)
        The tangent at the output.
    rms : ndarray, shape (P, R, L+1)
        Root mean square of the tangent at each state; index 0 is the tangent given.
    """

    output: Array
    rms: Floats

    def __repr__(self) -> str:
        return self._line(
            depth=self.rms.shape[-1] - 1,
            output=f"{self.output.dtype}{list(self.output.shape)}",
            rms=span(self.rms),
        )


def _entry(values: Any) -> Any:
    return values if np.ndim(values) else values.item()
