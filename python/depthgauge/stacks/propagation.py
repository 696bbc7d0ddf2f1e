"""States, cotangents and tangents pushed through a stack of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, Floats, Indices, broadcast_to, float_array, raw_array, require_dtype
from depthgauge._common.results import Result, shaped, span
from depthgauge.backends import backend_name, get_backend
from depthgauge.backends.protocol import BackwardArrays, ForwardArrays, Keep, Stack
from depthgauge.equation import Block
from depthgauge.stacks.binding import AnyWeights, build_stack, check_kinds, flat_indices, layer_scale
from depthgauge.stacks.joining import along_depth, joined_backward, joined_forward
from depthgauge.stacks.segments import stretches
from depthgauge.stacks.weights import Weights, leading_shape

_KEPT = get_args(Keep)

# In place of an output that the next stretch has taken, so that those of all stretches do not stay.
_GONE = np.empty(0)


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
    _tape: tuple[Any, ...] | None = field(repr=False)  # one a stretch of layers; None when nothing is kept

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
            # The last state of a stretch is the first of the next.
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

    def _stretches(self, threads: int, *, backward: bool) -> Iterator[tuple[int, Stack]]:
        if self._stack is not None:
            return iter(((0, self._stack),))
        of_x = self.output.shape[:-2]
        return stretches(self.block, self.weights, of_x, backward=backward, backend=self.backend, threads=threads)

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


def forward(
    block: Block,
    weights: AnyWeights,
    x: npt.ArrayLike,
    *,
    keep: Keep = "states",
    quantiles: float | Sequence[float] = (),
    cosine: bool = False,
    backend: str | None = None,
    threads: int | None = None,
) -> Forward:
    """Push states through a stack of blocks, measuring each.

    Parameters
    ----------
    block : Block
        The equation of a block.
    weights : Weights or GeneratedWeights
        The weights of L blocks of width d.
    x : array_like, shape (..., B, d)
        The input, one row an example, in the dtype of the weights.  Leading axes are replicates; they broadcast with
        those of the weights.
    keep : {"states", "activations", "nothing"}
        "activations" keeps the input of the last product beside the states, of m numbers an example and layer, where
        "native" has use for it: `vjp` with weight gradients then leaves out one product of five.  "nothing" takes
        memory for two layers of states only, and leaves no states for `vjp` and `jvp`.
    quantiles : float or sequence of float
        Levels in [0, 1] of the quantiles to compute.
    cosine : bool
        Whether to compute the mean cosine over pairs of examples.
    backend : {"native", "reference"}, optional
        None means the environment's ``DEPTHGAUGE_BACKEND``, or native.
    threads : int, optional
        None means the environment's ``DEPTHGAUGE_NUM_THREADS``, or the CPUs this process may use; no more than those
        are used.

    Returns
    -------
    Forward

    Raises
    ------
    TypeError
        If a dtype is not float32 or float64, dtypes differ, or an argument is of the wrong kind.
    ValueError
        If shapes disagree, the weights lack what the branch needs, or an option is unknown.
    """
    check_kinds(block, weights)
    arguments.choice("keep", keep, _KEPT)
    levels = arguments.quantile_levels(quantiles)
    with_cosine = arguments.flag("cosine", cosine)
    name, workers = backend_name(backend), arguments.thread_count(threads)

    states = _rows("x", x, weights)
    leading = states.shape[:-2]
    parts: list[ForwardArrays] = []
    for _, stack in stretches(block, weights, leading, backend=name, threads=workers):
        if parts:
            h = parts[-1].output
            h_of = np.arange(len(stack.set_of))
            parts[-1] = parts[-1]._replace(output=_GONE)
        else:
            h, h_of = states, flat_indices(leading, stack.replicates)
        flat = h.reshape(math.prod(h.shape[:-2]), *h.shape[-2:])
        parts.append(
            get_backend(name).forward(
                stack, flat, h_of, keep=keep, quantiles=levels, cosine=with_cosine, threads=workers
            )
        )
    found = joined_forward(parts)

    return Forward(
        block=block,
        weights=weights,
        output=found.output,
        rms=found.rms,
        max_abs=found.max_abs,
        batch_mean_norm=found.batch_mean_norm,
        nonfinite=found.nonfinite,
        branch_rms=found.branch_rms,
        live_fraction=found.live_fraction,
        dead_units=found.dead_units,
        saturation=found.saturation,
        quantiles=levels,
        state_quantiles=found.state_quantiles,
        derivative_quantiles=found.derivative_quantiles,
        cosine=found.cosine,
        backend=name,
        _stack=stack if isinstance(weights, Weights) else None,
        _tape=tuple(part.tape for part in parts) if keep != "nothing" else None,
    )


def vjp(
    block: Block,
    weights: AnyWeights,
    fwd_or_x: Forward | npt.ArrayLike,
    cotangent: npt.ArrayLike,
    *,
    weight_grads: Literal[False, True, "rms"] = False,
    quantiles: float | Sequence[float] = (),
    backend: str | None = None,
    threads: int | None = None,
) -> Backward:
    """Pull a cotangent of the output back to the input: the vector-Jacobian product, and gradients on the way.

    Parameters
    ----------
    block : Block
    weights : Weights
        As for `forward`.
    fwd_or_x : Forward or array_like, shape (..., B, d)
        The result of `forward` with this very block and these very weights, or its input, which is then run first.
    cotangent : array_like, shape (P, R, B, d)
        The gradient at the output, in the dtype of the weights.  Replicate axes may be missing from the left or have
        size 1, and broadcast; further axes in front are probes.
    weight_grads : bool or "rms"
        True for the gradients of all weights and scales; "rms" for their RMS alone, which needs no memory for them.
        Neither goes with probe axes.
    quantiles : float or sequence of float
        Levels in [0, 1] of the quantiles of the gradient's magnitude.
    backend : {"native", "reference"}, optional
        None means that of the Forward, or as for `forward`.
    threads : int, optional
        As for `forward`.

    Returns
    -------
    Backward

    Raises
    ------
    TypeError
        As for `forward`.
    ValueError
        As for `forward`; if a Forward is of another block, other weights or another backend, or kept nothing; or if
        probe axes meet `weight_grads`.
    """
    if weight_grads != "rms" or not isinstance(weight_grads, str):
        try:
            weight_grads = arguments.flag("weight_grads", weight_grads)
        except TypeError:
            raise ValueError(f'weight_grads={weight_grads!r} must be False, True or "rms"') from None
    levels = arguments.quantile_levels(quantiles)
    workers = arguments.thread_count(threads)
    fwd = _forward_of(block, weights, fwd_or_x, backend, threads)
    g = _vectors("cotangent", cotangent, fwd)
    if weight_grads and g.ndim > fwd.output.ndim:
        raise ValueError(
            f"weight_grads={weight_grads!r} takes no probe axes, but cotangent has shape {np.shape(cotangent)} for an "
            f"output of shape {fwd.output.shape}"
        )
    parts: list[BackwardArrays] = []
    tapes = reversed(fwd._tapes("derivatives"))
    for tape, (_, stack) in zip(tapes, fwd._stretches(workers, backward=True), strict=True):
        if parts:
            g = parts[-1].input_gradient
            parts[-1] = parts[-1]._replace(input_gradient=_GONE)
        parts.append(
            get_backend(fwd.backend).vjp(stack, tape, g, weight_grads=weight_grads, quantiles=levels, threads=workers)
        )
    found = joined_backward(parts[::-1])
    return Backward(
        input_gradient=found.input_gradient,
        rms=found.rms,
        max_abs=found.max_abs,
        nonfinite=found.nonfinite,
        quantiles=levels,
        gradient_quantiles=found.gradient_quantiles,
        weights=None if found.weights is None else _own_shapes(weights, found.weights),
        branch_scale=found.branch_scale,
        skip_scale=found.skip_scale,
        weight_rms=found.weight_rms,
    )


def jvp(
    block: Block,
    weights: AnyWeights,
    fwd_or_x: Forward | npt.ArrayLike,
    tangent: npt.ArrayLike,
    *,
    backend: str | None = None,
    threads: int | None = None,
) -> Tangent:
    """Push a tangent of the input forward to the output: the Jacobian-vector product.

    Parameters
    ----------
    block, weights, fwd_or_x, backend, threads
        As for `vjp`.
    tangent : array_like, shape (P, R, B, d)
        A direction at the input, in the dtype of the weights; its axes are those of `vjp`'s cotangent.

    Returns
    -------
    Tangent

    Raises
    ------
    TypeError, ValueError
        As for `vjp`.
    """
    workers = arguments.thread_count(threads)
    fwd = _forward_of(block, weights, fwd_or_x, backend, threads)
    t = _vectors("tangent", tangent, fwd)
    rms = []
    tapes = fwd._tapes("derivatives")
    for tape, (_, stack) in zip(tapes, fwd._stretches(workers, backward=False), strict=True):
        found = get_backend(fwd.backend).jvp(stack, tape, t, threads=workers)
        rms.append(found.rms)
        t = found.output
    return Tangent(output=t, rms=along_depth(rms, seam=1))


def _rows(name: str, value: object, weights: AnyWeights) -> Array:
    """Return states, cotangents or tangents as an array (..., B, d) that fits the weights."""
    array = float_array(name, value)
    require_dtype(name, array, weights.dtype, "weights")
    if array.ndim < 2 or array.shape[-1] != weights.width:
        hint = f"; give one example as one row, {name}[None]" if array.ndim == 1 else ""
        raise ValueError(f"{name} must have shape (..., B, {weights.width}); got {array.shape}{hint}")
    return array


def _forward_of(
    block: Block, weights: AnyWeights, fwd_or_x: Forward | npt.ArrayLike, backend: str | None, threads: int | None
) -> Forward:
    """Return the Forward given, checked, or that of the input given."""
    check_kinds(block, weights)
    if not isinstance(fwd_or_x, Forward):
        # Read here, so that messages call the argument by the name it has here.
        x = raw_array("fwd_or_x", fwd_or_x)
        if x.ndim == 0 and x.dtype.kind not in "fiubcV":  # no numbers, but some object
            raise TypeError(f"fwd_or_x must be a Forward or an input array; got {type(fwd_or_x).__name__}")
        return forward(block, weights, _rows("fwd_or_x", x, weights), backend=backend, threads=threads)
    if fwd_or_x.block != block:
        raise ValueError(f"this Forward is of another block: {fwd_or_x.block.formula()}; got {block.formula()}")
    if fwd_or_x.weights != weights:  # Weights are equal to themselves alone
        raise ValueError("this Forward is of other weights; pass the very Weights it was made with, its .weights")
    if backend is not None and backend_name(backend) != fwd_or_x.backend:
        raise ValueError(f"backend={backend!r}, but this Forward was made by backend={fwd_or_x.backend!r}")
    fwd_or_x._tapes("derivatives")
    return fwd_or_x


def _vectors(name: str, value: object, fwd: Forward) -> Array:
    """Return cotangents or tangents broadcast to (P, R, B, d)."""
    array = _rows(name, value, fwd.weights)
    probes = array.shape[: max(array.ndim - fwd.output.ndim, 0)]
    try:
        if array.shape[-2] == fwd.output.shape[-2]:  # examples do not broadcast
            return broadcast_to(array, probes + fwd.output.shape)
    except ValueError:
        pass
    raise ValueError(
        f"{name} must have shape (..., B, d) that broadcasts to {fwd.output.shape}, with probe axes in front if any; "
        f"got {array.shape}"
    )


def _own_shapes(weights: AnyWeights, gradients: Any) -> Weights:
    """Sum gradients of S weight sets to each field's own replicate axes."""
    if not isinstance(weights, Weights):
        own_shapes = {name: shaped(g, weights.replicates + g.shape[1:]) for name, g in gradients.items()}
        return Weights(**own_shapes)  # type: ignore[arg-type]  # keys are fields
    sets = weights.replicates
    summed: dict[str, Array] = {}
    for name, array in weights.items():
        own = leading_shape(name, array)
        padded = (1,) * (len(sets) - len(own)) + own
        axes = tuple(axis for axis, size in enumerate(padded) if size == 1 and sets[axis] != 1)
        total = gradients[name]
        if axes:
            by_set = total.reshape(sets + array.shape[len(own) :])
            with np.errstate(all="ignore"):
                total = np.sum(by_set, axis=axes, dtype=np.float64).astype(array.dtype)
        summed[name] = shaped(total, array.shape)
    return Weights(**summed)  # type: ignore[arg-type]  # keys are the fields of `weights`


def _entry(values: Any) -> Any:
    return values if np.ndim(values) else values.item()
