"""Memory of large arrays: handed out again only once nothing refers to it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import depthgauge as dg
from depthgauge import _core

MEGABYTE = 1 << 20


def taken(size: int) -> Any:
    return _core.empty((size,), np.dtype(np.uint8))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 5)), max_size=40))
@settings(deadline=None, max_examples=50)
def test_arrays_that_live_never_share_memory(steps: list[tuple[bool, int, int]]) -> None:
    held: list[tuple[Any, int]] = []
    for number, (drop, size, which) in enumerate(steps):
        if drop and held:
            held.pop(which % len(held))
        else:
            memory = taken(size * MEGABYTE + which)
            memory[:: 1 << 12] = number % 251
            # What is viewed keeps all of it.
            held.append((memory[8:].view()[::2], number % 251))
            del memory
    for view, number in held:
        assert np.all(view[2044 :: 1 << 11] == number)


def test_memory_is_handed_out_again() -> None:
    gc.collect()
    size = 211 * MEGABYTE  # so large that nothing else of its size is kept
    first = taken(size)
    where = first.ctypes.data
    assert where % (2 * MEGABYTE) == 0
    assert first.flags.writeable
    kept = first[3:]
    del first
    other = taken(size)
    assert other.ctypes.data != where
    del other, kept
    again = taken(size)
    assert again.ctypes.data == where


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_arrays_own_their_memory_as_any_other(dtype: Any) -> None:
    array = _core.empty((3, MEGABYTE), np.dtype(dtype))
    assert (array.shape, array.dtype, array.base) == ((3, MEGABYTE), dtype, None)
    assert all(array.flags[name] for name in ("OWNDATA", "WRITEABLE", "C_CONTIGUOUS", "ALIGNED"))
    array[:] = filled = np.tile(np.arange(MEGABYTE) % 97, (3, 1))
    for rows in (5, 2, 1, 4, 0):
        array.resize((rows, MEGABYTE), refcheck=False)
        kept = min(rows, len(filled))
        np.testing.assert_array_equal(array[:kept], filled[:kept])
        array[:] = filled = np.tile(np.arange(MEGABYTE) % (90 + rows), (rows, 1))


def test_only_arrays_asked_for_are_in_that_memory() -> None:
    get_handler_name: Any = pytest.importorskip("numpy._core.multiarray").get_handler_name
    usual = get_handler_name(np.ones(3))
    mine = taken(5 * MEGABYTE)
    assert get_handler_name(mine) == "depthgauge" != usual
    for other in (mine.copy(), mine[:5] + 1, np.empty(5 * MEGABYTE), np.empty(3)):
        assert get_handler_name(other) == usual
    with pytest.raises(MemoryError):
        taken(1 << 60)
    assert get_handler_name(np.empty(3)) == usual


def test_large_results_own_memory_that_is_used_again() -> None:
    get_handler_name: Any = pytest.importorskip("numpy._core.multiarray").get_handler_name
    block = dg.Block(branch_scale=0.1)
    weights = dg.initialize(block, 4, 64, 8192, rng=1)
    x = np.random.default_rng(2).standard_normal((3, 64))
    gradients = dg.vjp(block, weights, dg.forward(block, weights, x), x, weight_grads=True).weights
    assert gradients is not None
    for array in (*dict(gradients.items()).values(), dg.normal(1, (3, MEGABYTE))):
        assert array.flags.owndata
        assert get_handler_name(array) == ("depthgauge" if array.nbytes >= 4 * MEGABYTE else get_handler_name(x))


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
        taken(size * MEGABYTE)
    assert mapped() - before < 300 * MEGABYTE


def test_threads_take_and_give_back_at_once() -> None:
    failures = []

    def work(number: int) -> None:
        for _ in range(200):
            memory = taken(2 * MEGABYTE)
            memory[:: 1 << 14] = number
            if not np.all(memory[:: 1 << 14] == number):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("size", [1 << 60, (1 << 63) - (1 << 21) - 1, (1 << 63) - (1 << 21), (1 << 63) - 1])
def test_too_much_memory_raises(size: int) -> None:
    with pytest.raises(MemoryError):
        taken(size)
    with pytest.raises(MemoryError):
        dg.normal(1, (size // 8,))
    array = taken(5 * MEGABYTE)
    array[:] = 3
    with pytest.raises(MemoryError):
        array.resize((size,), refcheck=False)
    assert np.all(array == 3)


def test_what_is_kept_gives_way_where_memory_is_short() -> None:
    resource = pytest.importorskip("resource")
    if sys.platform != "linux":
        pytest.skip("limits the address space")
    # In a process of its own: the limit stays.
    code = f"""
import resource
import numpy as np
from depthgauge import _core

taken = lambda size: _core.empty((size,), np.dtype(np.uint8))
taken(200 * {MEGABYTE})
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * {resource.getpagesize()}
resource.setrlimit(resource.RLIMIT_AS, (mapped + 16 * {MEGABYTE},) * 2)
taken(210 * {MEGABYTE})[:] = 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)
