"""From a block, weights and replicates to the flat `Stack` that backends take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

import numpy as np

from depthgauge._common.arguments import shape_text
from depthgauge._common.arrays import Array, Indices, broadcast_shapes
from depthgauge.backends.protocol import Parameter, Stack
from depthgauge.equation import BRANCH_MATRICES, Block, field_names
from depthgauge.stacks.generated_weights import GeneratedWeights
from depthgauge.stacks.weights import Weights, leading_shape

AnyWeights = Weights | GeneratedWeights

Arrays = tuple[tuple[int, tuple[int, ...]], ...]

# The last stack of each Weights alive, and the block, axes of x and arrays of weights, by identity and shape, that it
# is for: calls in a loop repeat them, and in short calls the checks of a stack are a good part.  Arrays may be given
# other shapes in place; while a stack is kept, none of its arrays goes, so that no other has its identity.
_latest: WeakKeyDictionary[Weights, tuple[Block, tuple[int, ...], Arrays, Stack]] = WeakKeyDictionary()


def build_stack(block: Block, weights: Weights, of_x: tuple[int, ...]) -> Stack:
    """Check that a block and weights fit, and flatten them over their replicate axes broadcast with those of x.

    No weights are copied.

    Raises
    ------
    ValueError
        If replicate axes do not broadcast, a matrix is missing or superfluous, or a scale does not have one value a
        layer.
    """
    latest = _latest.get(weights)
    fields = dict(weights.items())
    arrays = tuple((id(array), array.shape) for array in fields.values())
    if latest is not None and latest[0] is block and latest[1:3] == (of_x, arrays):
        return latest[3]
    leading = {name: leading_shape(name, array) for name, array in fields.items()}
    sets = broadcast_shapes(*leading.values())
    index = {shape: flat_indices(shape, sets) for shape in set(leading.values())}
    parameters = {
        name: Parameter(_flattened(array, leading[name]), index[leading[name]]) for name, array in fields.items()
    }
    stack = stack_with(block, weights, fields, parameters, sets, of_x)
    _latest[weights] = block, of_x, arrays, stack
    return stack


def stack_with(
    block: Block,
    weights: AnyWeights,
    fields: Iterable[str],
    parameters: Mapping[str, Parameter],
    sets: tuple[int, ...],
    of_x: tuple[int, ...],
) -> Stack:
    """Return the stack of a block and weights with `fields` and replicate axes `sets`, checked.

    Raises
    ------
    ValueError
        As `build_stack`.
    """
    replicates = _broadcast_replicates(sets, of_x)
    _check_fields(block, weights, fields)
    with np.errstate(over="ignore", under="ignore"):
        branch_scale, skip_scale = (layer_scale(name, block, weights) for name in ("branch_scale", "skip_scale"))
    return Stack(
        block=block,
        depth=weights.depth,
        width=weights.width,
        hidden=weights.hidden,
        dtype=weights.dtype,
        parameters=parameters,
        replicates=replicates,
        set_of=flat_indices(sets, replicates),
        sets=math.prod(sets),
        branch_scale=branch_scale,
        skip_scale=skip_scale,
    )


def _flattened(array: Array, leading: tuple[int, ...]) -> Array:
    return array.reshape(math.prod(leading), *array.shape[len(leading) :])


def _broadcast_replicates(of_weights: tuple[int, ...], of_x: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return broadcast_shapes(of_weights, of_x)
    except ValueError:
        raise ValueError(
            f"the leading (replicate) axes of x, {of_x}, do not broadcast with those of the weights, {of_weights}"
        ) from None


def check_kinds(block: object, weights: object) -> None:
    """Refuse what is not a `Block` and `Weights` or `GeneratedWeights`."""
    if not isinstance(block, Block):
        raise TypeError(f"block must be a Block; got {type(block).__name__}")
    if not isinstance(weights, AnyWeights):
        raise TypeError(
            f"weights must be a Weights, as Weights(up, down), or a GeneratedWeights; got {type(weights).__name__}"
        )


def flat_indices(leading: tuple[int, ...], broadcast: tuple[int, ...]) -> Indices:
    """Return, for each flat position of the shape `broadcast`, the flat position in `leading` that it reads."""
    positions = np.arange(math.prod(leading), dtype=np.int64)
    if leading == broadcast:
        return positions
    return np.broadcast_to(positions.reshape(leading), broadcast).flatten()


def _check_fields(block: Block, weights: AnyWeights, present: Iterable[str]) -> None:
    for name in BRANCH_MATRICES[block.branch]:
        if name not in present:
            raise ValueError(f"branch={block.branch!r} needs weights with {name}, which is absent")
    unused = sorted(set(present) - set(field_names(block.branch)))
    if unused:
        raise ValueError(f"branch={block.branch!r} has no use for the weights' {', '.join(unused)}")
    if block.branch == "linear" and weights.hidden != weights.width:
        shape = shape_text(("...", weights.depth, weights.width, weights.hidden))
        raise ValueError(f"up must have shape (..., L, d, d) for branch='linear'; got {shape}")


def layer_scale(name: str, block: Block, weights: AnyWeights) -> Array:
    """Return the scale of a block called `name`, one value a layer, rounded to the dtype of the weights."""
    scale = getattr(block, name)
    if isinstance(scale, tuple) and len(scale) != weights.depth:
        raise ValueError(
            f"{name} has {len(scale)} values, but the weights have {weights.depth} layers; "
            f"give one value a layer, shape {shape_text((weights.depth,))}, or a scalar"
        )
    rounded = np.empty(weights.depth, weights.dtype)
    rounded[:] = scale
    return rounded
