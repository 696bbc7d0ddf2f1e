"""From a block, weights and replicates to the flat `Stack` that backends take."""

from __future__ import annotations

import math

import numpy as np

from depthgauge._arguments import shape_text
from depthgauge.backends import Array, Floats, Indices, Parameter, Stack
from depthgauge.equation import Block
from depthgauge.weights import Weights, leading_shape

_MATRICES = {"linear": ("up",), "mlp": ("up", "down"), "gated": ("up", "down", "gate")}
_BIASES = {"linear": ("b_up",), "mlp": ("b_up", "b_down"), "gated": ("b_up", "b_down", "b_gate")}


def build_stack(block: Block, weights: Weights, replicates: tuple[int, ...]) -> Stack:
    """Check that a block and weights fit, and flatten them over `replicates`, which the weights' own broadcast to.

    Raises
    ------
    TypeError
        If `block` or `weights` is something else.
    ValueError
        If a matrix is missing or superfluous, or a scale does not have one value a layer.
    """
    check_kinds(block, weights)
    _check_fields(block, weights)
    sets = weights.replicates
    return Stack(
        block=block,
        depth=weights.depth,
        width=weights.width,
        hidden=weights.hidden,
        dtype=weights.dtype,
        parameters={name: _flattened(name, array, sets) for name, array in weights.items()},
        set_of=flat_indices(sets, replicates),
        sets=math.prod(sets),
        branch_scale=_layer_scale("branch_scale", block, weights),
        skip_scale=_layer_scale("skip_scale", block, weights),
    )


def _flattened(name: str, array: Array, sets: tuple[int, ...]) -> Parameter:
    leading = leading_shape(name, array)
    flat = array.reshape(math.prod(leading), *array.shape[len(leading) :])
    return Parameter(flat, flat_indices(leading, sets))


def check_kinds(block: object, weights: object) -> None:
    """Refuse what is not a `Block` and `Weights`."""
    if not isinstance(block, Block):
        raise TypeError(f"block must be a Block; got {type(block).__name__}")
    if not isinstance(weights, Weights):
        raise TypeError(f"weights must be a Weights, as Weights(up, down); got {type(weights).__name__}")


def flat_indices(leading: tuple[int, ...], broadcast: tuple[int, ...]) -> Indices:
    """Return, for each flat position of the shape `broadcast`, the flat position in `leading` that it reads."""
    positions = np.arange(math.prod(leading), dtype=np.int64).reshape(leading)
    return np.ascontiguousarray(np.broadcast_to(positions, broadcast)).ravel()


def _check_fields(block: Block, weights: Weights) -> None:
    present = {name for name, _ in weights.items()}
    for name in _MATRICES[block.branch]:
        if name not in present:
            raise ValueError(f"branch={block.branch!r} needs weights with {name}, which is absent")
    norms = [f"{place}_{part}" for place in ("pre", "output", "post") for part in ("gain", "shift")]
    unused = sorted(present.difference(_MATRICES[block.branch], _BIASES[block.branch], norms))
    if unused:
        raise ValueError(f"branch={block.branch!r} has no use for the weights' {', '.join(unused)}")
    if block.branch == "linear" and weights.hidden != weights.width:
        raise ValueError(f"up must have shape (..., L, d, d) for branch='linear'; got {weights.up.shape}")


def _layer_scale(name: str, block: Block, weights: Weights) -> Floats:
    scale = getattr(block, name)
    if isinstance(scale, tuple) and len(scale) != weights.depth:
        raise ValueError(
            f"{name} has {len(scale)} values, but the weights have {weights.depth} layers; "
            f"give one value a layer, shape {shape_text((weights.depth,))}, or a scalar"
        )
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.asarray(scale, np.float64).astype(weights.dtype).astype(np.float64)
    return np.ascontiguousarray(np.broadcast_to(rounded, (weights.depth,)))
