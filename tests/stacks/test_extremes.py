"""The ends of the range, and branches that are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import depthgauge as dg


@pytest.mark.parametrize("branch", ["mlp", "linear", "gated"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_branch_scale_of_zero_leaves_the_branch_out_of_derivatives(branch: str, poison: float, backend: str) -> None:
    block = dg.Block(branch=branch, activation="gelu", pre_norm="none", branch_scale=(0.0, 0.5))
    clean = dg.initialize(block, 2, 4, rng=0)
    copies: dict[str, Any] = {name: np.array(array) for name, array in clean.items()}
    poisoned = dg.Weights(**copies)
    poisoned.up[0, 0, 0] = poison
    x, g = np.random.default_rng(1).standard_normal((2, 3, 4))
    want = dg.vjp(block, clean, x, g, weight_grads=True, backend=backend)
    got = dg.vjp(block, poisoned, x, g, weight_grads=True, backend=backend)
    assert np.array_equal(got.input_gradient, want.input_gradient)
    assert want.weights is not None
    assert got.weights is not None
    for (name, expected), (_, array) in zip(want.weights.items(), got.weights.items(), strict=True):
        assert np.array_equal(array, expected), name
        assert not np.any(array[0]), name


@pytest.mark.parametrize("norm", ["layer", "layer_detached", "center"])
@pytest.mark.parametrize("width", [5, 64, 1000])
def test_centering_is_scale_free_up_to_the_top_of_the_range(norm: str, width: int, dtype: Any, backend: str) -> None:
    block = dg.Block(pre_norm="none", post_norm=norm, branch_scale=0.0)
    weights = dg.initialize(block, 1, width, rng=0, dtype=dtype)
    rng = np.random.default_rng(2)
    row = rng.choice([-1, 1], (1, width)).astype(dtype)
    row[0, :2] = -1, 1
    scale = np.finfo(dtype).max / 2
    cotangent = rng.standard_normal((1, width)).astype(dtype)
    # A power of two near the top: results scale exactly.
    power = dtype.type(2) ** np.floor(np.log2(scale))
    small, large = (dg.forward(block.replace(eps=0.0), weights, row * s, backend=backend) for s in (1, power))
    factor = power if norm == "center" else 1
    np.testing.assert_allclose(large.output / factor, small.output, rtol=1e-6 if dtype == np.float32 else 1e-14)
    pulled = [dg.vjp(f.block, weights, f, cotangent, backend=backend).input_gradient for f in (small, large)]
    factor = 1 if norm == "center" else power
    assert np.all(np.isfinite(pulled[1]))
    # The gradient of the large row is small, and may be subnormal.
    tolerance = float(np.finfo(dtype).smallest_subnormal) * float(power) if norm != "center" else 0
    tolerance = max(4 * tolerance, 1e-6 if dtype == np.float32 else 1e-13)
    np.testing.assert_allclose(np.float64(pulled[1]) * np.float64(factor), pulled[0], atol=tolerance)


def test_scale_gradients_are_sums_in_double(backend: str) -> None:
    block = dg.Block(pre_norm="none")
    weights = dg.initialize(block, 1, 8, rng=0, dtype=np.float32)
    for magnitude in (1e-25, 1.0, 1e25):
        x = np.full((3, 8), magnitude, np.float32)
        found = dg.vjp(block, weights, x, x, weight_grads=True, backend=backend)
        assert found.skip_scale is not None
        assert found.skip_scale[0] == pytest.approx(24 * np.float64(x[0, 0]) ** 2, rel=1e-6)


def test_weight_gradients_beyond_the_range_are_infinite_without_a_warning(backend: str) -> None:
    block = dg.Block.placed("none", branch="linear", activation="identity")
    weights = dg.Weights(np.zeros((1, 2, 2), np.float32), b_up=np.zeros((1, 2), np.float32))
    most = np.full((3, 2), np.finfo(np.float32).max)
    with np.errstate(all="raise"):
        found = dg.vjp(block, weights, np.ones_like(most), most, weight_grads=True, backend=backend)
    assert found.weights is not None
    assert found.weights.b_up is not None
    assert np.all(found.weights.up == np.inf)
    assert np.all(found.weights.b_up == np.inf)
