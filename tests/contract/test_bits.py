"""What the bits of every public function depend on: neither threads, nor batch, nor neighbors, nor other calls."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from calls import Call, Case, Sizes, along, axis_of
from problems import Array, assert_close, assert_same_bits
from registry import CALLS

pytest.importorskip("depthgauge._core")

native_calls = pytest.mark.parametrize(
    "call", [call for call in CALLS if call.takes_options], ids=lambda call: call.name
)
calls_of_a_batch = pytest.mark.parametrize(
    "call", [call for call in CALLS if any("B" in axes for axes in call.arrays.values())], ids=lambda call: call.name
)
calls_of_replicates = pytest.mark.parametrize(
    "call",
    [call for call in CALLS if call.takes_options and any("R" in axes for axes in call.arrays.values())],
    ids=lambda call: call.name,
)
every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)

# Beside the widths of vectors, and more examples than a tile has.
SIZES = Sizes(depth=3, width=19, hidden=23, batch=35)


@pytest.fixture(autouse=True)
def seven_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow more threads than the machine may have CPUs."""
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")


def assert_same(got: dict[str, Array], want: dict[str, Array], what: str = "") -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert_same_bits(got[name], array, f"{what}: {name}")


def assert_part(case: Case, letter: str, index: slice, whole: dict[str, Array], got: dict[str, Array]) -> None:
    """Compare the results of some examples, or replicates, with the same part of all results."""
    compared = 0
    for name, axes in case.call.results.items():
        if letter in axes.split():
            want = along(whole[name], axes, letter, index)
            assert_same_bits(got[name], want, f"{name} of {index}")
            compared += 1
    assert compared


@native_calls
def test_any_number_of_threads_gives_the_same_bits(call: Call, dtype: np.dtype[Any]) -> None:
    case = call.case(Sizes(3, 19, 23, 13, replicates=(3,)), dtype)
    want = case.found(backend="native", threads=1)
    for threads in (2, 3, 7):
        assert_same(case.found(backend="native", threads=threads), want, f"{threads} threads")


@calls_of_a_batch
def test_an_example_has_the_same_bits_in_any_batch(call: Call, dtype: np.dtype[Any]) -> None:
    case = call.case(SIZES, dtype)
    whole = case.found(backend="native")
    parts = (slice(0, 1), slice(34, 35), slice(3, 5), slice(6, 10), slice(1, 20), slice(None, None, -1))
    for index in parts:
        part = case.part("B", index)
        assert_part(case, "B", index, whole, part.found(backend="native", threads=1))


@calls_of_replicates
def test_a_replicate_has_the_same_bits_alone(call: Call, dtype: np.dtype[Any]) -> None:
    case = call.case(Sizes(3, 7, 9, 3, replicates=(3,)), dtype)
    whole = case.found(backend="native")
    for replicate in range(3):
        index = slice(replicate, replicate + 1)
        assert_part(case, "R", index, whole, case.part("R", index).found(backend="native", threads=1))


@calls_of_a_batch
def test_values_that_are_not_finite_stay_with_their_example(call: Call, dtype: np.dtype[Any], backend: str) -> None:
    case = call.case(Sizes(2, 7, 9, 9), dtype)
    clean = case.found(backend=backend)
    others = np.arange(9) != 4
    for name, axes in case.call.arrays.items():
        axis = axis_of("B", axes)
        if axis is None:
            continue
        for value in (np.nan, np.inf, np.finfo(dtype).max):
            array = case[name].copy()
            member = np.moveaxis(array, axis, 0)[4]
            member[(0,) * member.ndim] = value
            with np.errstate(all="raise"):
                got = case.replace(**{name: array}).found(backend=backend)
            spoiled = []
            for result, result_axes in call.results.items():
                at = axis_of("B", result_axes)
                if at is not None:
                    mine, theirs = (np.moveaxis(found[result], at, 0) for found in (got, clean))
                    assert_same_bits(mine[others].copy(), theirs[others].copy(), f"{value} in {name}: {result}")
                    spoiled.append(mine.dtype.kind == "f" and bool(np.any(np.isnan(mine[4]))))
            assert any(spoiled) or not np.isnan(value), name


@native_calls
def test_backends_agree(call: Call, dtype: np.dtype[Any]) -> None:
    case = call.case(Sizes(3, 7, 9, 4, replicates=(2,)), dtype)
    want, got = case.found(backend="reference"), case.found(backend="native")
    assert got.keys() == want.keys()
    for name, array in want.items():
        if array.dtype.kind == "f":
            assert_close(got[name], array, 1e-3 if dtype == np.float32 else 1e-11, what=name)
        else:
            np.testing.assert_array_equal(got[name], array, err_msg=name)


@every_call
def test_several_threads_may_call_at_once(call: Call, dtype: np.dtype[Any]) -> None:
    cases = [call.case(Sizes(), dtype, seed) for seed in range(4)]
    want = [case.found(backend="native") for case in cases]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for got, serial in zip(pool.map(lambda case: case.found(backend="native"), cases), want, strict=True):
                assert_same(got, serial)


def results_of(index: int) -> dict[str, Array]:
    return CALLS[index].case(Sizes(), np.dtype(np.float64)).found(backend="native")


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_works() -> None:
    indices = [index for index, call in enumerate(CALLS) if call.sized]
    want = [results_of(index) for index in indices]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for index, mine, theirs in zip(indices, want, pool.map_async(results_of, indices).get(timeout=60), strict=True):
            assert_same(theirs, mine, CALLS[index].name)


@native_calls
def test_the_floating_point_mode_is_left_alone(call: Call) -> None:
    case = call.case(Sizes(), np.dtype(np.float64))
    case.replace(**{name: np.full_like(array, 5e-310) for name, array in case.arrays.items()}).run(backend="native")
    assert (np.array([5e-324]) * 1.0)[0] == 5e-324  # no flush to zero
    with np.errstate(all="ignore"):
        assert (np.array([1e308]) * 10)[0] == np.inf  # no traps
    assert np.array([2.5, 3.5]).round().tolist() == [2.0, 4.0]
    assert (np.array([1.0]) + 2.0**-53)[0] == 1.0  # nearest, ties to even
    assert (np.array([-1.0]) - 2.0**-53)[0] == -1.0
