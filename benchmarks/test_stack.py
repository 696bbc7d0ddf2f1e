"""The fused block on both backends, at sizes that a minute covers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import depthgauge as dg

DEPTH, BATCH = 12, 64

# Each is brief, for there are many.
pytestmark = pytest.mark.benchmark(max_time=0.4, min_rounds=3)


@pytest.fixture(params=["relu", "gelu"])
def block(request: pytest.FixtureRequest) -> dg.Block:
    return dg.Block(activation=request.param, pre_norm="rms", branch_scale=DEPTH**-0.5)


@pytest.fixture
def weights(block: dg.Block, dtype: np.dtype[Any]) -> dg.Weights:
    return dg.initialize(block, DEPTH, 64, 128, init="he", rng=np.random.default_rng(0), dtype=dtype)


@pytest.fixture
def x(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((BATCH, 64)).astype(dtype)


def test_forward(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str) -> None:
    forward = benchmark(dg.forward, block, weights, x, backend=backend)
    assert np.all(np.isfinite(forward.output))


def test_forward_without_states(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str) -> None:
    forward = benchmark(dg.forward, block, weights, x, keep="nothing", backend=backend)
    assert np.all(np.isfinite(forward.output))


@pytest.mark.parametrize("weight_grads", [False, True], ids=["state", "weights"])
def test_vjp(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str, weight_grads: bool) -> None:
    forward = dg.forward(block, weights, x, backend=backend)
    backward = benchmark(dg.vjp, block, weights, forward, x, weight_grads=weight_grads, backend=backend)
    assert np.all(np.isfinite(backward.input_gradient))


def test_jvp(benchmark: Any, block: dg.Block, weights: dg.Weights, x: Any, backend: str) -> None:
    forward = dg.forward(block, weights, x, backend=backend)
    tangent = benchmark(dg.jvp, block, weights, forward, x, backend=backend)
    assert np.all(np.isfinite(tangent.output))
