"""Jacobians and what is measured of them on both backends, at sizes that a minute covers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import depthgauge as dg

DEPTH, WIDTH, BATCH = 12, 32, 16

# Each is brief, for there are many.
pytestmark = pytest.mark.benchmark(max_time=0.4, min_rounds=3)


@pytest.fixture(params=["relu", "gelu"])
def block(request: pytest.FixtureRequest) -> dg.Block:
    return dg.Block(activation=request.param, pre_norm="rms", branch_scale=DEPTH**-0.5)


@pytest.fixture
def weights(block: dg.Block, dtype: np.dtype[Any]) -> dg.Weights:
    return dg.initialize(block, DEPTH, WIDTH, 2 * WIDTH, init="he", rng=np.random.default_rng(0), dtype=dtype)


@pytest.fixture
def x(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((BATCH, WIDTH)).astype(dtype)


def test_jacobian(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str) -> None:
    jacobian = benchmark(dg.jacobian, block, weights, x, backend=backend)
    assert np.all(np.isfinite(jacobian))


def test_rank_profile(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str) -> None:
    profile = benchmark(dg.rank_profile, block, weights, x, backend=backend)
    assert np.all(profile.method == "direct")


def test_graded_rank_profile(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str) -> None:
    some = x[:2] if backend == "reference" else x
    profile = benchmark(dg.rank_profile, block, weights, some, depths=[DEPTH], method="graded", backend=backend)
    assert np.all(np.isfinite(profile.log_singular_values))


def test_rank_grid(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str) -> None:
    blocks = [block.replace(weight_scale=scale) for scale in (0.5, 1.0, 2.0)]
    grid = benchmark(dg.rank_grid, blocks, weights, x, depths=[DEPTH], backend=backend)
    assert np.all(grid.converged)


def test_path_norms(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str) -> None:
    paths = benchmark(dg.path_norms, block, weights, x, 4, backend=backend)
    assert np.all(np.isfinite(paths.norms))


def test_products(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str) -> None:
    operator = dg.jacobian_operator(block, weights, x[0], backend=backend)
    vectors = np.ascontiguousarray(x.T)
    products = benchmark(lambda: operator.rmatmat(operator.matmat(vectors)))
    assert np.all(np.isfinite(products))
