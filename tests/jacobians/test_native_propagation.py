"""The kernels' accumulators of Jacobians: calls that do not fit raise, whatever Python checked before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import depthgauge as dg
from depthgauge.backends import native
from depthgauge.backends.protocol import Stack
from depthgauge.stacks.binding import build_stack

DEPTH, WIDTH, HIDDEN, BATCH = 3, 5, 7, 2


def make_stack(depth: int = DEPTH, width: int = WIDTH, hidden: int = HIDDEN, branch: str = "mlp") -> Stack:
    block = dg.Block(branch=branch)
    return build_stack(block, dg.initialize(block, depth, width, hidden, rng=0), ())


def states(stack: Stack, batch: int = BATCH) -> Any:
    return np.ones((1, batch, stack.width))


def accumulator(count: int = BATCH, width: int = WIDTH, max_order: int | None = None) -> Any:
    return native.jacobian_accumulator(count, width, np.dtype(np.float64), max_order=max_order, threads=1)


def graded(count: int = BATCH, hidden: int = HIDDEN) -> Any:
    return native.graded_accumulator(count, WIDTH, hidden, np.dtype(np.float64), threads=1)


@pytest.mark.parametrize("make", [accumulator, graded])
def test_layers_and_accumulators_must_fit_the_stack(make: Any) -> None:
    stack = make_stack()
    for first, blocks in ((0, DEPTH + 1), (1, DEPTH), (-1, 1), (0, -1), (DEPTH + 1, 0), (1 << 62, 1 << 62)):
        with pytest.raises(ValueError, match="does not have those layers"):
            native.propagate([stack], [states(stack)], [[make()]], first, blocks, threads=1)
    for misfit in (make(count=BATCH + 1), make(count=0)):
        with pytest.raises(ValueError, match="number of examples"):
            native.propagate([stack], [states(stack)], [[make(), misfit]], 0, 1, threads=1)


def test_sizes_are_checked_on_the_other_side() -> None:
    stack = make_stack()
    with pytest.raises(ValueError, match="accumulator's width"):
        native.propagate([stack], [states(stack)], [[accumulator(width=WIDTH - 1)]], 0, 1, threads=1)
    with pytest.raises(ValueError, match="more hidden units"):
        native.propagate([stack], [states(stack)], [[graded(hidden=HIDDEN - 1)]], 0, 1, threads=1)
    for wrong in (states(stack)[:, :, 1:], states(stack)[..., ::-1], states(stack).astype(np.float32)):
        with pytest.raises(ValueError, match="states must"):
            native.propagate([stack], [wrong], [[accumulator()]], 0, 1, threads=1)
    frozen = states(stack)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        native.propagate([stack], [frozen], [[accumulator()]], 0, 1, threads=1)


def test_stacks_side_by_side_must_be_alike_and_accumulators_of_one() -> None:
    one = make_stack()
    for other in (make_stack(hidden=HIDDEN + 1), make_stack(branch="gated"), make_stack(width=WIDTH + 1)):
        with pytest.raises(ValueError, match="same shapes and kind of branch"):
            native.propagate(
                [one, other], [states(one), states(other)], [[accumulator()], [accumulator()]], 0, 1, threads=1
            )
    twice = accumulator()
    for followers in ([[twice, twice], []], [[twice], [twice]]):
        with pytest.raises(ValueError, match="follows one stack"):
            native.propagate([one, one], [states(one), states(one)], followers, 0, 1, threads=1)


def test_what_follows_beside_changes_no_bit() -> None:
    stack = make_stack()
    alone, beside = accumulator(), accumulator()
    ends = []
    for followers in ([alone], [accumulator(max_order=2), beside]):
        h = states(stack)
        native.propagate([stack], [h], [followers], 0, 2, threads=1)
        native.propagate([stack], [h], [followers], 2, 1, threads=1)
        ends.append(h)
    assert np.array_equal(*ends)
    for a, b in zip(alone.jacobians(), beside.jacobians(), strict=True):
        assert np.array_equal(a, b)
