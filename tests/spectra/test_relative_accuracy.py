"""Singular values to high relative accuracy, whatever the scales of rows and columns."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from exact_products import exact_singular_values
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import assert_same_bits

from depthgauge.backends import get_backend

Array = npt.NDArray[Any]


def relative(a: Array, backend: str, threads: int = 1) -> Array:
    values: Array = get_backend(backend).relative_singular_values(np.asarray(a), threads=threads)
    return values.reshape(*a.shape[:-2], values.shape[-1])


def worst_error(a: Array, got: Array) -> float:
    """Return the largest relative error, in eps of the dtype; below the normal range errors are not relative."""
    info = np.finfo(a.dtype)
    worst = 0.0
    for value, want in zip(got.tolist(), exact_singular_values(a), strict=False):
        spacing = max(want * float(info.eps), float(info.smallest_subnormal))
        worst = max(worst, float(abs(value - want) / spacing))
    return worst


@functools.cache
def graded() -> Array:
    return 10.0 ** (-8.0 * np.arange(6))[:, None] * (np.eye(6) + 0.1 * np.random.default_rng(8).standard_normal((6, 6)))


@pytest.mark.parametrize("seed", range(6))
def test_graded_rows_and_columns_in_any_order(seed: int, backend: str) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = (np.arange(6), np.arange(6)) if seed == 0 else (rng.permutation(6), rng.permutation(6))
    if seed == 1:
        rows = np.arange(6)[::-1]
    a = graded()[rows][:, columns]
    want = exact_singular_values(graded())
    for matrix in (a, np.ascontiguousarray(a.T)):
        got = relative(matrix, backend)
        assert max(float(abs(value - w) / w) for value, w in zip(got.tolist(), want, strict=True)) < 1e-13
    # float32 has no room for 1e-40: half the exponents.
    single = (10.0 ** (-4.0 * np.arange(6))[:, None] * (np.eye(6) + graded() / graded().max())).astype(np.float32)
    assert worst_error(single, relative(single[rows][:, columns], backend)) < 8


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 3), (6, 6), (5, 9), (9, 5), (17, 8), (8, 17)])
@pytest.mark.parametrize("scales", [(0, 0), (20, 0), (0, 20), (15, 15), (60, 70)])
def test_scaled_rows_and_columns(shape: tuple[int, int], scales: tuple[int, int], backend: str) -> None:
    rng = np.random.default_rng([*shape, *scales])
    a = rng.standard_normal(shape)
    a *= 10.0 ** rng.uniform(-scales[0], scales[0], (shape[0], 1)) * 10.0 ** rng.uniform(
        -scales[1], scales[1], shape[1]
    )
    assert worst_error(a, relative(a, backend)) < 200


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 6), st.sampled_from([5, 100, 300]))
def test_entries_over_the_whole_range(seed: int, n: int, k: int, spread: int) -> None:
    # Each entry at a scale of its own: what the leading terms of the determinants decide.
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((n, k)) * 10.0 ** rng.uniform(-spread, spread, (n, k))
    for backend in ("native", "reference"):
        got = relative(a, backend)
        assert np.all(got[:-1] >= got[1:])
        # Of determinants that nearly cancel little is left.
        assert worst_error(a, got) < 1e6


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e-160, 1e160, 3e307])
def test_ends_of_the_range(size: float, backend: str, rng: np.random.Generator) -> None:
    a = np.round(rng.uniform(-1000, 1000, (5, 4))) * (size if size < 1 else size / 1000)
    assert worst_error(a, relative(a, backend)) < 20
    a = np.ldexp(np.float32(1), np.array([[-149, 127], [-149, -149]])).astype(np.float32)
    assert worst_error(a, relative(a, backend)) <= 1


def test_values_beyond_the_range_are_infinite_or_zero(backend: str, dtype: np.dtype[Any]) -> None:
    top, least = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    a = np.full((4, 4), top, dtype)
    with np.errstate(over="raise", under="raise"):
        got = relative(a, backend)
        assert got[0] == np.inf
        assert relative(np.array([[least, 0], [0, top]], dtype), backend).tolist() == [top, least]
        tiny = relative(np.array([[1, 1], [least, -least]], dtype), backend)
    assert tiny[1] in (least, 2 * least)


def test_powers_of_two_change_no_bit(backend: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    a = rng.standard_normal((3, 7, 5)).astype(dtype)
    want = relative(a, backend)
    for power in (-90, -1, 40, 100):
        assert_same_bits(relative(np.ldexp(a, power), backend), np.ldexp(want, power))


def test_special_matrices(backend: str, dtype: np.dtype[Any]) -> None:
    eps = float(np.finfo(dtype).eps)

    def values(a: Any) -> list[float]:
        got = relative(np.array(a, dtype), backend)
        assert got.dtype == dtype
        return [float(value) for value in got]

    assert values(np.zeros((4, 3))) == [0, 0, 0]
    assert values(np.eye(5)) == [1] * 5
    assert values(np.diag([1, 0, 3, 2])) == [3, 2, 1, 0]
    assert values([[0, 0, 4], [0, 0, 3]]) == [pytest.approx(5, rel=2 * eps), 0]
    ones = values(np.ones((6, 6)))
    assert ones[0] == pytest.approx(6, rel=4 * eps)
    assert max(ones[1:]) < 10 * eps
    for shape in [(0, 0), (0, 3), (3, 0)]:
        assert values(np.zeros(shape)) == []
    q = np.linalg.qr(np.random.default_rng(1).standard_normal((20, 20)))[0]
    assert np.max(np.abs(np.array(values(q)) - 1)) < 10 * eps


def test_matrices_that_are_not_finite_keep_to_themselves(backend: str, dtype: np.dtype[Any]) -> None:
    a = np.random.default_rng(2).standard_normal((7, 6, 9)).astype(dtype)
    want = relative(a, backend)
    a[1, 2, 3], a[4, 0, 0], a[6] = np.nan, np.inf, np.nan
    got = relative(a, backend)
    assert np.all(np.isnan(got[[1, 4, 6]]))
    assert_same_bits(got[[0, 2, 3, 5]], want[[0, 2, 3, 5]])


def test_bits_depend_on_neither_threads_nor_batch(dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    a = rng.standard_normal((9, 11, 10)).astype(dtype)
    want = relative(a, "native")
    for threads in (2, 5):
        assert_same_bits(relative(a, "native", threads), want)
    for member in range(9):
        assert_same_bits(relative(a[member], "native"), want[member])
    assert_same_bits(relative(np.asfortranarray(a), "native"), want)
    assert_same_bits(relative(a[:, ::-1].copy()[:, ::-1], "native"), want)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 33, 64, 65])
def test_native_matches_reference_at_every_width(d: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((d, d)) * 10.0 ** rng.uniform(-8, 8, (d, 1))
    np.testing.assert_allclose(relative(a, "native"), relative(a, "reference"), rtol=1e-11)


def test_the_extension_checks_again() -> None:
    core = pytest.importorskip("depthgauge._core")
    a, values = np.ones((2, 4, 3)), np.empty((2, 3))
    for arguments in [
        (a.astype(np.float32), values, "", 1),
        (a[0], values, "", 1),
        (a, np.empty((2, 4)), "", 1),
        (a, np.empty((2, 3), np.float32), "", 1),
        (a, values, "", 0),
    ]:
        with pytest.raises(ValueError, match=r"."):
            core.relative_singular_values_float64(*arguments)
