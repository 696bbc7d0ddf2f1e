"""The measures of a spectrum, against mpmath, and their laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import Array, assert_same_bits

import depthgauge as dg

mp = pytest.importorskip("mpmath")

MEASURES = (
    "effective_rank",
    "effective_rank_of_squares",
    "stable_rank",
    "participation_ratio",
    "condition",
    "log_spread",
    "log_max",
)
RANKS = MEASURES[:4]


def by_definition(values: Array) -> dict[str, float]:
    """Return the measures as they are defined, in 40 digits."""
    with mp.workdps(40):
        s = [mp.mpf(float(value)) for value in values]

        def effective_rank(weights: list[Any]) -> Any:
            total = mp.fsum(weights)
            return mp.exp(-mp.fsum(w / total * mp.log(w / total) for w in weights if w))

        squares = [x * x for x in s]
        found = {
            "effective_rank": effective_rank(s),
            "effective_rank_of_squares": effective_rank(squares),
            "stable_rank": mp.fsum(squares) / max(squares),
            "participation_ratio": mp.fsum(squares) ** 2 / mp.fsum(x * x for x in squares),
            "condition": max(s) / min(s) if min(s) else mp.inf,
            "log_spread": mp.log(max(s) / min(s)) if min(s) else mp.inf,
            "log_max": mp.log(max(s)),
        }
        return {name: float(value) for name, value in found.items()}


SPECTRA: dict[str, Any] = {
    "lone": [1, 0],
    "three": [2, 1, 1],
    "flat": [1] * 64,
    "large": [1e308] * 64,
    "tiny": [1e-320] * 4,
    "wide": [1, 1e-200],
    "whole range": [1e308, 1.0, 1e-320],
    "nearly equal": [1e300, 1e300 * (1 - 1e-10), 1e300 * (1 - 1e-10)],
    "fall": np.geomspace(1, 1e-18, 24),
    "long": 1 + np.arange(1000.0),
    "large and long": 1e305 * (1 + np.arange(100.0)),
    "one": [7.0],
}


@pytest.mark.parametrize("name", SPECTRA)
def test_measures_are_what_they_are_defined_to_be(name: str) -> None:
    values = np.asarray(SPECTRA[name], np.float64)
    want = by_definition(values)
    with np.errstate(all="ignore"):
        logs = np.log(values)
    # A logarithm of size 700 is known to 1e-13.
    for s, tolerance in ((dg.spread(singular_values=values), 4e-15), (dg.spread(log_singular_values=logs), 4e-13)):
        for measure, expected in want.items():
            got = getattr(s, measure)
            slack = 1e-12 if measure in ("condition", "log_spread") and tolerance > 1e-14 else 0
            assert got == pytest.approx(expected, rel=tolerance + slack, abs=2e-16 + slack), measure
        for measure in RANKS:
            assert 1 <= getattr(s, measure) <= len(values)
        np.testing.assert_allclose(s.log_singular_values, np.sort(logs)[::-1], rtol=1e-15)
        np.testing.assert_allclose(s.singular_values, np.sort(values)[::-1], rtol=2e-13)


def test_published_values() -> None:
    for values, want in (
        ([1.0, 0.0], 1),
        ([2.0, 1.0, 1.0], 2.8284271247461903),
        (np.ones(64), 64),
        (np.full(64, 1e308), 64),
        (np.full(4, 1e-320), 4),
        ([1.0, 1e-200], 1),
        ([3.0, 2.0, 1.0], 2.7494592739972),
    ):
        assert dg.spread(singular_values=values).effective_rank == pytest.approx(want, rel=1e-14)


positive = st.floats(0, 1.7e308)


@given(st.lists(positive, min_size=1, max_size=40), st.randoms())
def test_bounds_order_and_scale(values: list[float], random: Any) -> None:
    s = dg.spread(singular_values=values)
    zero = max(values) == 0
    for name in RANKS:
        got = getattr(s, name)
        assert got == 0 if zero else 1 <= got <= len(values), name
    shuffled = list(values)
    random.shuffle(shuffled)
    other = dg.spread(singular_values=shuffled)
    for name, array in s.to_dict().items():
        assert_same_bits(getattr(other, name), array, name)
    if zero:
        return
    assert s.effective_rank_of_squares <= s.effective_rank * (1 + 1e-13)
    assert s.stable_rank <= s.participation_ratio * (1 + 1e-13)
    assert s.participation_ratio <= s.effective_rank_of_squares * (1 + 1e-13)
    assert s.condition >= 1
    assert s.log_spread >= 0
    # Scaled to the middle of the range, nothing changes.
    middle = np.ldexp(values, -int(np.frexp(max(values))[1]) + 500)
    if np.all(np.ldexp(middle, int(np.frexp(max(values))[1]) - 500) == values):
        scaled = dg.spread(singular_values=middle)
        for name in RANKS:
            assert getattr(scaled, name) == pytest.approx(getattr(s, name), rel=1e-14), name
        assert scaled.log_spread == pytest.approx(s.log_spread, rel=1e-13)


def test_logs_of_any_size() -> None:
    logs = np.array([-1e6, -1e6 - np.log(2), -1e6 - np.log(2)])
    for shift in (0.0, 2e6, 1e9):
        s = dg.spread(log_singular_values=logs + shift)
        assert s.effective_rank == pytest.approx(2 * np.sqrt(2), rel=1e-6)
        assert s.log_max == -1e6 + shift
        assert_same_bits(s.log_singular_values, logs + shift)
        assert np.all(s.singular_values == (0 if shift == 0 else np.inf))
        assert s.condition == pytest.approx(2, rel=1e-6)
    s = dg.spread(log_singular_values=[1e5, -np.inf, -1e5])
    assert s.effective_rank == 1
    assert s.log_spread == s.condition == np.inf
    s = dg.spread(log_singular_values=[1e5, -1e5])
    assert s.log_spread == 2e5
    assert s.condition == np.inf


@pytest.mark.parametrize("name", ["singular_values", "log_singular_values"])
def test_rows_of_zeros_and_of_what_is_not_finite(name: str, dtype: np.dtype[Any]) -> None:
    zero = 0.0 if name == "singular_values" else -np.inf
    rows = [[zero] * 3, [1, 1, 1], [1, np.nan, 2], [1, 2, np.inf], [2, zero, 2]]
    argument: dict[str, Any] = {name: np.array(rows, dtype)}
    s = dg.spread(**argument)
    assert s.singular_values.dtype == dtype
    assert s.log_singular_values.dtype == np.float64
    assert np.all(s.converged)
    for measure in RANKS:
        got = getattr(s, measure)
        assert got[0] == 0
        assert got[1] == 3
        assert np.all(np.isnan(got[2:4]))
        assert got[4] == 2
    np.testing.assert_array_equal(s.condition, [np.nan, 1, np.nan, np.nan, np.inf])
    np.testing.assert_array_equal(s.log_spread, [np.nan, 0, np.nan, np.nan, np.inf])
    assert not np.signbit(s.log_spread[1])
    assert s.log_max[0] == -np.inf
    assert np.all(s.singular_values[0] == 0)
    assert np.all(s.log_singular_values[0] == -np.inf)
    for array in (s.singular_values, s.log_singular_values, s.log_max[:, None]):
        assert np.all(np.isnan(array[2:4]))


@pytest.mark.parametrize("full", [1, 2, 4, 7, 8, 9, 17, 130, 20000])
def test_rows_have_the_same_measures_in_any_batch(full: int, dtype: np.dtype[Any]) -> None:
    """The batch crosses blocks; sums take one order whatever is computed beside them."""
    count = max(2, 3 * (1 << 14) // full + 5) if full < 1000 else 3
    rng = np.random.default_rng(full)
    values = rng.random((count, full)).astype(dtype) ** 4
    logs = np.log(values)
    whole = dg.spread(singular_values=values), dg.spread(log_singular_values=logs)
    middle = min(count - 1, (1 << 14) // full)
    for first in (0, 1, middle - 1, middle, count - 1):
        for size in (1, 2, 5):
            part = slice(first, first + size)
            halves = dg.spread(singular_values=values[part]), dg.spread(log_singular_values=logs[part])
            for all_of_it, some in zip(whole, halves, strict=True):
                for name, array in some.to_dict().items():
                    assert_same_bits(array, getattr(all_of_it, name)[part], name)


def test_negative_zero_is_zero() -> None:
    s = dg.spread(singular_values=[1.0, -0.0])
    assert s.condition == s.log_spread == np.inf
    assert not np.signbit(s.singular_values[1])


def test_given_values_are_not_written() -> None:
    values = np.array([[1.0, 3.0, np.nan], [2.0, 1.0, -0.0]])
    before = values.copy()
    dg.spread(singular_values=values)
    dg.spread(log_singular_values=values)
    assert_same_bits(values, before)


def test_shapes_of_given_values() -> None:
    values = np.random.default_rng(0).random((2, 3, 4))
    s = dg.spread(singular_values=values[:, ::-1, ::-1])
    assert s.shape == s.effective_rank.shape == s.full_rank.shape == (2, 3)
    assert s.singular_values.shape == (2, 3, 4)
    assert np.all(s.full_rank == 4)
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 3)):
        empty = dg.spread(singular_values=np.zeros(shape)), dg.spread(log_singular_values=np.zeros(shape))
        for found in empty:
            assert found.shape == shape[:-1]
            assert np.all(np.asarray(found.effective_rank) == 0)
            assert np.all(np.isnan(found.log_max))
