"""A stack a stretch of layers at a time, as much of it as is in memory at once."""

from __future__ import annotations

from collections.abc import Iterator

from depthgauge._stack import build_stack
from depthgauge.backends import Stack
from depthgauge.equation import Block
from depthgauge.weights import Weights


def stretches(block: Block, weights: Weights, of_x: tuple[int, ...]) -> Iterator[tuple[int, Stack]]:
    """Yield stacks of consecutive blocks, first to last, each with the number of blocks before it.

    Stored weights make one stack, also of no blocks; `of_x` are the replicate axes of the input.

    Raises
    ------
    ValueError
        As `build_stack`.
    """
    yield 0, build_stack(block, weights, of_x)
