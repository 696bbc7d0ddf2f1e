"""What the functions of Jacobians share: arguments checked, and accumulators taken through stacks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge.backends import backend_name, get_backend
from depthgauge.backends.protocol import Accumulator, GradedAccumulator, JacobianAccumulator, Stack
from depthgauge.equation import Block
from depthgauge.stacks.binding import AnyWeights, check_kinds, flat_indices, layer_scale
from depthgauge.stacks.propagation import read_rows
from depthgauge.stacks.segments import segments


class Propagation:
    """A block, weights and an input, checked: what accumulators can be taken through.

    Attributes
    ----------
    replicates : tuple of int
        The replicate axes of weights and input broadcast, of size `count`.
    count, batch, width : int
        The replicates in all, the examples of each, and their features.

    Raises
    ------
    TypeError, ValueError
        As `depthgauge.forward`.
    """

    def __init__(
        self, block: Block, weights: AnyWeights, x: npt.ArrayLike, backend: str | None, threads: int | None
    ) -> None:
        check_kinds(block, weights)
        self._block, self._weights = block, weights
        self._name, self._threads = backend_name(backend), arguments.thread_count(threads)
        self._backend = get_backend(self._name)
        states = read_rows("x", x, weights)
        self._leading = states.shape[:-2]
        self.batch, self.width = states.shape[-2:]
        # A copy, for the caller may change the input before an iteration ends.
        self._x = np.array(states.reshape(math.prod(self._leading), self.batch, self.width), order="C")
        all_segments = self._segments()
        first = next(all_segments)
        self.replicates = first[1].replicates
        self.count = math.prod(self.replicates)
        self._entered: Iterator[tuple[int, Stack]] | None = itertools.chain([first], all_segments)

    def accumulator(self, max_order: int | None = None) -> JacobianAccumulator:
        """Return what begins with the identity for every example."""
        examples = self.count * self.batch
        return self._backend.jacobian_accumulator(
            examples, self.width, self._weights.dtype, max_order=max_order, threads=self._threads
        )

    def graded_accumulator(self, examples: npt.NDArray[np.bool_]) -> GradedAccumulator:
        """Return the same for some examples of each replicate; `examples`, shape (B,), says which."""
        count = self.count * int(np.sum(examples))
        return self._backend.graded_accumulator(
            count, self.width, self._weights.hidden, self._weights.dtype, threads=self._threads
        )

    def stops(
        self,
        depths: Sequence[int],
        accumulators: Sequence[Sequence[Accumulator]],
        *,
        blocks: Sequence[Block] | None = None,
        examples: npt.NDArray[np.bool_] | slice = slice(None),
    ) -> Iterator[int]:
        """Take accumulators forward from the input, yielding each of `depths`, ascending, when they are there.

        `accumulators` holds those that follow each of `blocks`, which all have these weights; None stands for the one
        block given.  `examples` are those that accumulators have.
        """
        if not depths:
            return
        if depths[0] == 0:
            yield 0
        x = self._x[:, examples][flat_indices(self._leading, self.replicates)]
        states = [x.copy() for _ in accumulators]
        entered, self._entered = self._entered or self._segments(), None
        wanted, last, passed = set(depths), depths[-1], 0
        for before, stack in entered:
            stacks = [stack] if blocks is None else [self._with_block(stack, block, before) for block in blocks]
            after = before + stack.depth
            for stop in sorted(wanted | {after}):
                if not passed < stop <= min(after, last):
                    continue
                self._backend.propagate(
                    stacks, states, accumulators, passed - before, stop - passed, threads=self._threads
                )
                passed = stop
                if stop in wanted:
                    yield stop
            if passed == last:
                return

    def _segments(self) -> Iterator[tuple[int, Stack]]:
        return segments(self._block, self._weights, self._leading, backend=self._name, threads=self._threads)

    def _with_block(self, stack: Stack, block: Block, before: int) -> Stack:
        """Return some of the layers, before which there are others, with another block."""
        layers = slice(before, before + stack.depth)
        return replace(
            stack,
            block=block,
            branch_scale=layer_scale("branch_scale", block, self._weights)[layers],
            skip_scale=layer_scale("skip_scale", block, self._weights)[layers],
        )


def depth_list(depths: Sequence[int] | None, total: int) -> list[int]:
    """Return `depths`, checked; None stands for all, 0 to `total`."""
    if depths is None:
        return list(range(total + 1))
    try:
        items = list(depths)
    except TypeError:
        raise TypeError(
            f"depths must be a sequence of integers from 0 to {total}, numbers of blocks passed, or None; "
            f"got {depths!r}; give one depth as [{depths!r}]"
        ) from None
    found = [arguments.integer(f"depths[{index}]", item, minimum=0) for index, item in enumerate(items)]
    for index, depth in enumerate(found):
        if depth > total:
            raise ValueError(f"depths[{index}]={depth} must be at most {total}, the number of blocks")
    return found
