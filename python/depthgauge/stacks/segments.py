"""A stack a segment of layers at a time, as much of it as is in memory at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from depthgauge._common import arguments
from depthgauge.backends.protocol import Parameter, Stack
from depthgauge.equation import Block
from depthgauge.stacks.binding import AnyWeights, build_stack, stack_with
from depthgauge.stacks.generated_weights import GeneratedWeights

# Generated weights in memory at once.
_SEGMENT_BYTES = 32 << 20


def segments(
    block: Block,
    weights: AnyWeights,
    of_x: tuple[int, ...],
    *,
    backward: bool = False,
    backend: str | None = None,
    threads: int | None = None,
) -> Iterator[tuple[int, Stack]]:
    """Yield stacks of consecutive blocks, each with the number of blocks before it.

    Stored weights make one stack, also of no blocks.  Generated weights make several, whose arrays are good until the
    next one is asked for, in the same memory.  They go first to last, or `backward` last to first; `of_x` are the
    replicate axes of the input.  `backend` and `threads` are what generates.

    Raises
    ------
    ValueError
        As `build_stack`.
    """
    if isinstance(weights, GeneratedWeights):
        return _generated(block, weights, of_x, backward, backend, arguments.thread_count(threads))
    return iter(((0, build_stack(block, weights, of_x)),))


def _generated(
    block: Block,
    weights: GeneratedWeights,
    of_x: tuple[int, ...],
    backward: bool,
    backend: str | None,
    threads: int,
) -> Iterator[tuple[int, Stack]]:
    whole = stack_with(block, weights, weights.matrices, {}, weights.replicates, of_x)
    sizes = {name: whole.sets * math.prod(shape) for name, shape in weights.matrices.items()}
    layer_bytes = weights.dtype.itemsize * sum(sizes.values())
    longest = max(1, min(whole.depth, _SEGMENT_BYTES // max(layer_bytes, 1)))
    memory = {name: np.zeros(longest * size, weights.dtype) for name, size in sizes.items()}
    sets = np.arange(whole.sets, dtype=np.int64)
    firsts = range(0, max(whole.depth, 1), longest)
    for first in reversed(firsts) if backward else firsts:
        depth = min(longest, whole.depth - first)
        fields = {
            name: memory[name][: depth * sizes[name]].reshape(whole.sets, depth, *shape)
            for name, shape in weights.matrices.items()
        }
        weights.fill(fields, first, backend, threads)
        layers = slice(first, first + depth)
        yield (
            first,
            replace(
                whole,
                depth=depth,
                parameters={name: Parameter(array, sets) for name, array in fields.items()},
                branch_scale=whole.branch_scale[layers],
                skip_scale=whole.skip_scale[layers],
            ),
        )
