"""States, cotangents and tangents pushed through a stack of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, broadcast_to, float_array, raw_array, require_dtype
from depthgauge._common.results import shaped
from depthgauge.backends import backend_name, get_backend
from depthgauge.backends.protocol import Keep, Results
from depthgauge.equation import Block
from depthgauge.stacks.binding import AnyWeights, check_kinds, flat_indices
from depthgauge.stacks.joining import joined
from depthgauge.stacks.results import Backward, Forward, Tangent
from depthgauge.stacks.segments import segments
from depthgauge.stacks.weights import Weights, leading_shape

_KEPT = get_args(Keep)


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

    states = read_rows("x", x, weights)
    leading = states.shape[:-2]
    parts: list[Results] = []
    depths, tapes = [], []
    for _, stack in segments(block, weights, leading, backend=name, threads=workers):
        h, h_of = states, flat_indices(leading, stack.replicates)
        if parts:
            # Taken from the segment before, so that the outputs of all do not stay.
            h, h_of = parts[-1].pop("output"), np.arange(len(stack.set_of))
        flat = h.reshape(math.prod(h.shape[:-2]), *h.shape[-2:])
        found, tape = get_backend(name).forward(
            stack, flat, h_of, keep=keep, quantiles=levels, cosine=with_cosine, threads=workers
        )
        parts.append(found)
        depths.append(stack.depth)
        tapes.append(tape)
    return Forward(
        block=block,
        weights=weights,
        output=parts[-1].pop("output"),
        quantiles=levels,
        backend=name,
        _stack=stack if isinstance(weights, Weights) else None,
        _tape=tuple(tapes) if keep != "nothing" else None,
        **joined(parts, depths),
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
    weights : Weights or GeneratedWeights
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
    parts: list[Results] = []
    depths = []
    tapes = reversed(fwd._tapes("derivatives"))
    for tape, (_, stack) in zip(tapes, fwd._segments(workers, backward=True), strict=True):
        if parts:
            g = parts[-1].pop("input_gradient")
        parts.append(
            get_backend(fwd.backend).vjp(stack, tape, g, weight_grads=weight_grads, quantiles=levels, threads=workers)
        )
        depths.append(stack.depth)
    gradient = parts[-1].pop("input_gradient")
    found = joined(parts[::-1], depths[::-1])
    if found["weights"] is not None:
        found["weights"] = _own_shapes(weights, found["weights"])
    return Backward(input_gradient=gradient, quantiles=levels, **found)


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
    parts, depths = [], []
    tapes = fwd._tapes("derivatives")
    for tape, (_, stack) in zip(tapes, fwd._segments(workers, backward=False), strict=True):
        parts.append(get_backend(fwd.backend).jvp(stack, tape, t, threads=workers))
        depths.append(stack.depth)
        t = parts[-1].pop("output")
    return Tangent(output=t, **joined(parts, depths))


def read_rows(name: str, value: object, weights: AnyWeights) -> Array:
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
        return forward(block, weights, read_rows("fwd_or_x", x, weights), backend=backend, threads=threads)
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
    array = read_rows(name, value, fwd.weights)
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
