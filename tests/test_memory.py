"""Memory of large tapes: handed out again only once nothing refers to it."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import depthgauge as dg

core: Any = pytest.importorskip("depthgauge._core")
MEGABYTE = 1 << 20


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 5)), max_size=40))
@settings(deadline=None, max_examples=50)
def test_arrays_that_live_never_share_memory(steps: list[tuple[bool, int, int]]) -> None:
    held: list[tuple[Any, int]] = []
    for number, (drop, size, which) in enumerate(steps):
        if drop and held:
            held.pop(which % len(held))
        else:
            memory = core.memory(size * MEGABYTE + which)
            memory[:: 1 << 12] = number % 251
            # What is viewed keeps all of it.
            held.append((memory[8:].view()[::2], number % 251))
            del memory
    for view, number in held:
        assert np.all(view[2044 :: 1 << 11] == number)


def test_memory_is_handed_out_again() -> None:
    gc.collect()
    size = 211 * MEGABYTE  # so large that nothing else of its size is kept
    first = core.memory(size)
    where = first.ctypes.data
    assert where % (2 * MEGABYTE) == 0
    assert first.flags.writeable
    kept = first[3:]
    del first
    other = core.memory(size)
    assert other.ctypes.data != where
    del other, kept
    again = core.memory(size)
    assert again.ctypes.data == where


def test_results_do_not_change_when_later_calls_reuse_memory() -> None:
    block = dg.Block(branch_scale=0.1)
    weights = dg.initialize(block, 4, 64, 1200, rng=1)
    x = np.random.default_rng(2).standard_normal((300, 64))
    results = []
    for scale in (1, 2, 3):
        forward = dg.forward(block, weights, scale * x)
        gradients = dg.vjp(block, weights, forward, x, weight_grads=True).weights
        assert gradients is not None
        up = dict(gradients.items())["up"]
        results.append((up[1:], up[1:].copy(), forward, forward.states[2].copy()))
        del forward, gradients, up
    for view, copied, forward, state in results:
        np.testing.assert_array_equal(view, copied)
        np.testing.assert_array_equal(forward.states[2], state)


def test_more_than_is_kept_goes_back_to_the_system() -> None:
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("reads /proc")

    def mapped() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    before = mapped()
    for size in range(100, 400, 20):
        core.memory(size * MEGABYTE)
    assert mapped() - before < 300 * MEGABYTE


def test_threads_take_and_give_back_at_once() -> None:
    failures = []

    def work(number: int) -> None:
        for _ in range(200):
            memory = core.memory(2 * MEGABYTE)
            memory[:: 1 << 14] = number
            if not np.all(memory[:: 1 << 14] == number):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_too_much_memory_raises() -> None:
    with pytest.raises(MemoryError):
        core.memory(1 << 60)
