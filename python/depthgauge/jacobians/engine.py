"""What the functions of Jacobians share: arguments checked, and walks that stop at the depths asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array
from depthgauge.backends import backend_name, get_backend
from depthgauge.backends.protocol import Backend, GradedWalk, JacobianWalk, JacobianWalks, Stack
from depthgauge.equation import Block
from depthgauge.stacks.binding import AnyWeights, check_kinds, flat_indices
from depthgauge.stacks.propagation import _rows
from depthgauge.stacks.segments import segments

Walk = TypeVar("Walk", JacobianWalk, GradedWalk)
Entered = TypeVar("Entered", contravariant=True)


@dataclass(frozen=True, eq=False)
class Start:
    """Checked arguments: where walks begin, and with what."""

    block: Block
    weights: AnyWeights
    x: Array  # (X, B, d)
    leading: tuple[int, ...]  # replicate axes of x, of size X
    name: str
    threads: int

    @property
    def backend(self) -> Backend:
        """The backend called `name`."""
        return get_backend(self.name)

    def segments(self) -> Iterator[tuple[int, Stack]]:
        """Iterate over the stack as `depthgauge.stacks.segments.segments` does."""
        return segments(self.block, self.weights, self.leading, backend=self.name, threads=self.threads)

    def jacobian_walk(self, stack: Stack, max_order: int | None = None) -> JacobianWalk:
        """Begin a walk through stacks that have the replicates of `stack`."""
        x_of = flat_indices(self.leading, stack.replicates)
        return self.backend.jacobian_walk(self.x, x_of, max_order=max_order, threads=self.threads)

    def jacobian_walks(self, stack: Stack, count: int) -> JacobianWalks:
        """Begin several like `jacobian_walk`."""
        x_of = flat_indices(self.leading, stack.replicates)
        return self.backend.jacobian_walks(self.x, x_of, count, threads=self.threads)

    def graded_walk(self, stack: Stack, examples: npt.NDArray[np.bool_]) -> GradedWalk:
        """Begin a walk of some of the examples; `examples`, shape (B,), says which."""
        x_of = flat_indices(self.leading, stack.replicates)
        return self.backend.graded_walk(self.x[:, examples], x_of, threads=self.threads)


def start(block: Block, weights: AnyWeights, x: npt.ArrayLike, backend: str | None, threads: int | None) -> Start:
    """Check the arguments that all functions of Jacobians take.

    Raises
    ------
    TypeError, ValueError
        As for `depthgauge.forward`, but for what `stretches` checks.
    """
    check_kinds(block, weights)
    name, workers = backend_name(backend), arguments.thread_count(threads)
    states = _rows("x", x, weights)
    leading = states.shape[:-2]
    flat = states.reshape(math.prod(leading), *states.shape[-2:])
    return Start(block, weights, flat, leading, name, workers)


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


class Journey(Generic[Walk]):
    """One walk through a whole stack.

    Attributes
    ----------
    walk : JacobianWalk or GradedWalk
    replicates : tuple of int
        The replicate axes of weights and input broadcast.
    """

    def __init__(self, begin: Callable[[Stack], Walk], through: Iterator[tuple[int, Stack]]) -> None:
        self._through = through
        self._next: tuple[int, Stack] | None = next(through)
        _, stack = self._next
        self.replicates = stack.replicates
        self.walk: Walk = begin(stack)

    def stops(self, depths: Sequence[int]) -> Iterator[int]:
        """Walk, yielding each of `depths`, ascending, when the walk is there."""
        entered, self._next = self._next, None
        while entered is not None and depths:
            before, stack = entered
            yield from stops(self.walk, stack, before, stack.depth, depths)
            entered = next(self._through, None) if before + stack.depth < depths[-1] else None


class _Passing(Protocol[Entered]):
    """A walk, or several, through stacks one after another."""

    def enter(self, stacks: Entered, /) -> None: ...

    def advance(self, blocks: int) -> None: ...


def stops(walk: _Passing[Entered], stack: Entered, before: int, length: int, depths: Sequence[int]) -> Iterator[int]:
    """Pass `stack`, or several, yielding each of `depths`, ascending, when the walk is there.

    It has `length` blocks, which `before` others precede.  After the last of `depths` the walk stays where it is.
    """
    after = before + length
    if before == 0 and 0 in depths:
        yield 0
    if before >= depths[-1]:
        return
    walk.enter(stack)
    at = before
    for depth in (depth for depth in depths if before < depth <= after):
        walk.advance(depth - at)
        at = depth
        yield depth
    if after < depths[-1]:
        walk.advance(after - at)
