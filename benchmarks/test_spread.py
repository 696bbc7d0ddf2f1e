"""Singular values and spreads on both backends, at sizes that a minute covers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import depthgauge as dg

# Each is brief, for there are many.
pytestmark = pytest.mark.benchmark(max_time=0.4, min_rounds=3)

# Width, and matrices of about as much work.
SIZES = ((4, 4000), (8, 1500), (16, 500), (32, 120), (33, 120), (64, 25), (128, 4), (256, 1))


@pytest.mark.parametrize(("size", "count"), SIZES)
def test_singular_values(benchmark: Any, size: int, count: int, dtype: np.dtype[Any], backend: str) -> None:
    a = np.random.default_rng(0).standard_normal((count, size, size)).astype(dtype)
    values = benchmark(dg.singular_values, a, backend=backend)
    assert np.all(np.isfinite(values))


@pytest.mark.parametrize(("size", "count"), [(4, 20000), (64, 25)])
def test_spread(benchmark: Any, size: int, count: int, dtype: np.dtype[Any], backend: str) -> None:
    a = np.random.default_rng(0).standard_normal((count, size, size)).astype(dtype)
    s = benchmark(dg.spread, a, backend=backend)
    assert np.all(s.effective_rank > 1)


@pytest.mark.parametrize(("size", "count"), [(4, 20000), (64, 1000)])
def test_measures(benchmark: Any, size: int, count: int, dtype: np.dtype[Any]) -> None:
    values = np.random.default_rng(0).random((count, size)).astype(dtype)
    s = benchmark(dg.spread, singular_values=values)
    assert np.all(s.effective_rank > 1)


def test_ragged(benchmark: Any, dtype: np.dtype[Any], backend: str) -> None:
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal(rng.integers(4, 12, 2)).astype(dtype) for _ in range(1000)]
    s = benchmark(dg.spread_ragged, matrices, backend=backend)
    assert np.all(s.effective_rank > 1)
