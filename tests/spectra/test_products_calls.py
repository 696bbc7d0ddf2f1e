"""Calls for long products: layouts, leading axes, bad factors, threads, errors, Ctrl-C."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from interrupts import needs_signals, output_after_control_c
from problems import assert_same_bits

import depthgauge as dg

Array = npt.NDArray[Any]


def test_any_layout_is_read(backend: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    factors = rng.standard_normal((2, 3, 9, 9)).astype(dtype)
    want = dg.log_singular_values(factors, backend=backend)
    wide = np.zeros((2, 3, 18, 27), dtype)
    wide[:, :, ::2, ::3] = factors
    views = {
        "strided": wide[:, :, ::2, ::3],
        "transposed": np.ascontiguousarray(factors.swapaxes(-1, -2)).swapaxes(-1, -2),
        "Fortran": np.asfortranarray(factors),
        "reversed": np.ascontiguousarray(factors[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1],
        "swapped": factors.astype(dtype.newbyteorder()),
    }
    for name, view in views.items():
        before = view.copy()
        assert_same_bits(dg.log_singular_values(view, backend=backend), want, name)
        np.testing.assert_array_equal(view, before)
    listed = [np.ascontiguousarray(factors[:, layer]) for layer in range(3)]
    assert_same_bits(dg.log_singular_values(listed, backend=backend), want, "list")


def test_leading_axes_of_a_list_broadcast(backend: str, rng: np.random.Generator) -> None:
    first, second, third = (
        rng.standard_normal((4, 1, 3, 2)),
        rng.standard_normal((5, 3)),
        rng.standard_normal((3, 2, 5)),
    )
    got = dg.log_singular_values([first, second, third], backend=backend)
    assert got.shape == (4, 3, 2)
    for i, j in np.ndindex(4, 3):
        assert_same_bits(got[i, j], dg.log_singular_values([first[i, 0], second, third[j]], backend=backend))


def test_leading_axes_take_no_memory_of_their_own() -> None:
    """Stacks whose leading axes do not merge into one are read where they are."""
    a = np.broadcast_to(np.eye(64), (3, 400, 64, 64)).swapaxes(0, 1)
    factors = [np.random.default_rng(0).standard_normal((3, 1, 2, 64)), np.ones((400, 2, 2))]
    tracemalloc.start()
    try:
        dg.singular_values(a[:, :, :2], accuracy="relative", backend="native")
        dg.log_singular_values(factors, backend="native")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 400_000  # one factor copied is 1.2 MB


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_factor_that_is_not_finite_spoils_its_own_product(value: float, backend: str, dtype: np.dtype[Any]) -> None:
    factors = np.random.default_rng(3).standard_normal((4, 5, 6, 6)).astype(dtype)
    clean = dg.log_singular_values(factors, prefixes=True, backend=backend)
    factors[1, 2, 3, 4] = value
    factors[3, 0, 0, 0] = value
    got = dg.log_singular_values(factors, prefixes=True, backend=backend)
    assert_same_bits(got[[0, 2]], clean[[0, 2]])
    assert_same_bits(got[1, :2], clean[1, :2])
    assert np.all(np.isnan(got[1, 2:]))
    assert np.all(np.isnan(got[3]))
    last = dg.log_singular_values(factors, backend=backend)
    assert_same_bits(last, np.ascontiguousarray(got[:, -1]))


def test_a_value_that_is_not_finite_counts_under_a_zero_too(backend: str) -> None:
    first, second = np.diag([0.0, 1.0]), np.array([[np.nan, 1.0], [0.0, 1.0]])
    assert np.all(np.isnan(dg.log_singular_values([first, second], backend=backend)))


def test_bits_depend_on_neither_threads_nor_batch(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    factors = rng.standard_normal((11, 10, 13, 13)) * (rng.random((11, 10, 1, 13)) < 0.9)
    factors[3] *= 10.0 ** rng.uniform(-5, 5, 13)
    factors[6, 4] = np.nan
    factors[8, 2] = 0
    want = dg.log_singular_values(factors, prefixes=True, backend="native", threads=1)
    for threads in (2, 3, 7):
        got = dg.log_singular_values(factors, prefixes=True, backend="native", threads=threads)
        assert_same_bits(got, want, f"{threads} threads")
    for member in range(11):
        assert_same_bits(dg.log_singular_values(factors[member], prefixes=True, backend="native"), want[member])


@pytest.mark.parametrize("prefixes", [False, True])
def test_empty_axes(prefixes: bool, backend: str, dtype: np.dtype[Any]) -> None:
    def shape(factors: Any) -> tuple[int, ...]:
        logs = dg.log_singular_values(factors, prefixes=prefixes, backend=backend)
        assert logs.dtype == np.float64
        assert logs.flags.owndata
        assert logs.flags.writeable
        return logs.shape

    def expected(leading: tuple[int, ...], depth: int, count: int) -> tuple[int, ...]:
        return (*leading, depth, count) if prefixes else (*leading, count)

    assert shape(np.ones((2, 0, 3, 3), dtype)) == expected((2,), 0, 3)
    assert shape(np.ones((0, 4, 3, 3), dtype)) == expected((0,), 4, 3)
    assert shape(np.ones((2, 4, 0, 0), dtype)) == expected((2,), 4, 0)
    assert shape([np.ones((0, 3), dtype)]) == expected((), 1, 0)
    assert shape([np.ones((3, 0), dtype), np.ones((2, 3), dtype)]) == expected((), 2, 0)
    assert shape(np.ones((5, 1, 3, 2), dtype)) == expected((5,), 1, 2)
    if not prefixes:
        assert np.all(dg.log_singular_values(np.ones((2, 0, 3, 3), dtype), backend=backend) == 0)


def test_errors_name_the_argument() -> None:
    a = np.eye(3)
    calls: list[tuple[Any, type[Exception], str]] = [
        ([], ValueError, "factors is empty"),
        (np.eye(3), ValueError, r"factors must have shape \(\.\.\., L, d, d\).*\(3, 3\)"),
        (np.ones((4, 3, 2)), ValueError, r"list of matrices that chain; got \(4, 3, 2\)"),
        ([a, np.ones((2, 4))], ValueError, r"factors\[1\] must have as many columns as factors\[0\] has rows"),
        ([a, np.ones(3)], ValueError, r"factors\[1\] must have shape \(\.\.\., m, n\); got \(3,\)"),
        ([np.ones((2, 3, 3)), np.ones((4, 3, 3))], ValueError, "leading axes of factors do not broadcast"),
        ([a, a.astype(np.float32)], TypeError, r"factors\[1\] is float32 but factors\[0\] is float64"),
        ([a, a.astype(int)], TypeError, r"factors\[1\] has dtype int64"),
        (np.ones((2, 3, 3), np.float16), TypeError, "factors has dtype float16"),
    ]
    for factors, error, message in calls:
        with pytest.raises(error, match=message):
            dg.log_singular_values(factors)
    with pytest.raises(TypeError, match="prefixes must be True or False"):
        dg.log_singular_values([a], prefixes=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads=0"):
        dg.log_singular_values([a], threads=0)
    with pytest.raises(ValueError, match="backend='gpu'"):
        dg.log_singular_values([a], backend="gpu")


def test_the_extension_checks_again() -> None:
    core = pytest.importorskip("depthgauge._core")
    a, logs = np.ones((2, 3, 3)), np.empty((2, 3))
    calls: Sequence[tuple[Any, ...]] = [
        ([], False, logs, "", 1),
        ([a.astype(np.float32)], False, logs, "", 1),
        ([a, np.ones((2, 3, 4))], False, logs, "", 1),
        ([a, np.ones((1, 3, 3))], False, logs, "", 1),
        ([a[0]], False, logs, "", 1),
        ([a], True, logs, "", 1),
        ([a], False, np.empty(2), "", 1),
        ([a], False, np.empty((3, 3)), "", 1),
        ([a], False, logs[:, ::-1], "", 1),
        ([a], False, logs, "", 0),
        ([a], False, logs, "v9", 1),
    ]
    for arguments in calls:
        with pytest.raises(ValueError, match=r"."):
            core.log_singular_values_float64(*arguments)
    # Fewer logs than there are, or more, are no fault.
    small, large = np.empty((2, 1)), np.empty((2, 5))
    core.log_singular_values_float64([a], False, small, "", 1)
    core.log_singular_values_float64([a], False, large, "", 1)
    assert np.all(small[:, 0] == large[:, 0])
    assert np.all(np.isnan(large[:, 3:]))


LONG_CALL = """
import sys
import numpy as np
import depthgauge as dg

rng = np.random.default_rng(0)
calls = {
    "deep": np.broadcast_to(rng.standard_normal((64, 64)), (400, 500, 64, 64)),
    "wide": rng.standard_normal((1, 1500, 1500)),
}
print("ready", flush=True)
try:
    dg.log_singular_values(calls[sys.argv[1]])
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert np.allclose(dg.log_singular_values([np.eye(3)]), 0)
print("works", flush=True)
"""


@needs_signals
@pytest.mark.parametrize("call", ["deep", "wide"])
def test_control_c_stops_a_call_and_the_next_one_works(call: str) -> None:
    words = output_after_control_c(LONG_CALL, call, after=0.3, environment={"DEPTHGAUGE_BACKEND": "native"})
    assert words == ["interrupted", "works"]
