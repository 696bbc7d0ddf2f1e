"""Every statistic against its definition, NaN and infinities, and the edges of the range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import Array, assert_close, random_problem, random_weights

import depthgauge as dg
from depthgauge.equation import ACTIVATIONS

# Of results that went through products, and of sums over given values, of which a few terms may be added in float32.
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-12}
SUMS = {np.dtype(np.float32): 5e-7, np.dtype(np.float64): 1e-14}
BLOCK = dg.Block.placed("none")


def one_block(x: Array, backend: str, **options: Any) -> dg.Forward:
    """Run a block that only passes `x` on."""
    width = x.shape[-1]
    weights = dg.Weights(np.zeros((1, width, 2), x.dtype), np.zeros((1, 2, width), x.dtype))
    return dg.forward(BLOCK, weights, x, backend=backend, **options)


def activation_only(activation: str, z: Array, backend: str, **options: Any) -> dg.Forward:
    """Run a block whose activation takes `z` as it is."""
    block = dg.Block.placed("none", branch="linear", activation=activation, skip_scale=0)
    return dg.forward(block, dg.Weights(np.eye(z.shape[-1], dtype=z.dtype)[None]), z, backend=backend, **options)


def slope_of(activation: str, z: Array, backend: str) -> Array:
    block = dg.Block.placed("none", branch="linear", activation=activation, skip_scale=0)
    weights = dg.Weights(np.eye(z.shape[-1], dtype=z.dtype)[None])
    return dg.vjp(block, weights, z, np.ones_like(z), backend=backend).input_gradient


def test_statistics_of_states_are_their_definitions(
    rng: np.random.Generator, backend: str, dtype: np.dtype[Any]
) -> None:
    p = random_problem(rng, dg.Block(activation="tanh"), 3, 9, 7, 5, dtype, replicates=(2,))
    levels = (0.0, 0.1, 0.5, 0.75, 1.0)
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend, quantiles=levels, cosine=True)
    states = fwd.states.astype(np.float64)
    assert_close(fwd.output, fwd.states[:, -1], 0)
    assert_close(fwd.rms, np.sqrt(np.mean(states**2, axis=(2, 3))), SUMS[p.x.dtype])
    assert_close(fwd.max_abs, np.max(np.abs(states), axis=(2, 3)), 0)
    assert_close(fwd.batch_mean_norm, np.linalg.norm(states.mean(axis=2), axis=-1), SUMS[p.x.dtype])
    assert not np.any(fwd.nonfinite)
    assert fwd.nonfinite.dtype == np.int64
    assert fwd.state_quantiles is not None
    quantiles = np.quantile(np.abs(states).reshape(2, 4, -1), levels, axis=-1)
    assert_close(fwd.state_quantiles, np.ascontiguousarray(np.moveaxis(quantiles, 0, -1)), 1e-15)
    assert fwd.cosine is not None
    units = states / np.linalg.norm(states, axis=-1, keepdims=True)
    gram = units @ np.swapaxes(units, -1, -2)
    np.testing.assert_allclose(fwd.cosine, (gram.sum(axis=(2, 3)) - 5) / 20, atol=SUMS[p.x.dtype])


def test_statistics_of_blocks_are_their_definitions(
    rng: np.random.Generator, backend: str, dtype: np.dtype[Any]
) -> None:
    block = dg.Block.placed("none", branch_scale=[0.5, -2.0, 0.0], skip_scale=[1.0, 0.5, -1.0])
    weights = random_weights(rng, block, 3, 6, 8, dtype, vectors=False)
    x = rng.standard_normal((7, 6)).astype(dtype)
    fwd = dg.forward(block, weights, x, backend=backend)
    assert weights.down is not None
    for layer, (branch_scale, skip_scale) in enumerate([(0.5, 1.0), (-2.0, 0.5), (0.0, -1.0)]):
        h = fwd.states[layer].astype(np.float64)
        z = h @ weights.up[layer].astype(np.float64)
        r = np.maximum(z, 0) @ weights.down[layer].astype(np.float64)
        tolerance = TOLERANCE[x.dtype]
        rms, state_rms = np.sqrt(np.mean(r**2)), np.sqrt(np.mean(h**2))
        assert fwd.branch_rms[layer] == pytest.approx(rms, rel=tolerance)
        ratio = abs(branch_scale) * rms / (abs(skip_scale) * state_rms)
        assert fwd.residual_ratio[layer] == pytest.approx(ratio, rel=tolerance)
        assert fwd.live_fraction[layer] == np.mean(z > 0)
        assert fwd.dead_units[layer] == np.mean(~np.any(z > 0, axis=0))
        assert fwd.saturation[layer] == np.mean(z <= 0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_shares_of_the_derivative(
    rng: np.random.Generator, activation: str, backend: str, dtype: np.dtype[Any]
) -> None:
    z = (3 * rng.standard_normal((11, 13))).astype(dtype)
    z[:, 3] = -np.abs(z[:, 3]) - 8
    levels = (0.25, 0.5, 1.0)
    fwd = activation_only(activation, z, backend, quantiles=levels)
    slope = np.abs(slope_of(activation, z, backend))
    live = z > 0 if activation == "relu" else slope > dtype.type(0.1)
    assert fwd.live_fraction[0] == np.mean(live)
    assert fwd.dead_units[0] == np.mean(~np.any(live, axis=0))
    assert fwd.saturation[0] == np.mean(slope < dtype.type(0.01))
    assert fwd.derivative_quantiles is not None
    np.testing.assert_allclose(fwd.derivative_quantiles[0], np.quantile(slope.astype(float), levels), rtol=1e-14)


def test_the_default_slope_of_leaky_relu_is_not_saturated(backend: str, dtype: np.dtype[Any]) -> None:
    fwd = activation_only("leaky_relu", -np.ones((3, 4), dtype), backend)
    assert fwd.saturation[0] == 0
    assert fwd.live_fraction[0] == 0
    assert fwd.dead_units[0] == 1


def test_gated_statistics_are_those_of_the_gate(rng: np.random.Generator, backend: str) -> None:
    block = dg.Block.placed("none", branch="gated")
    gate, up = rng.standard_normal((2, 1, 4, 6))
    x = rng.standard_normal((5, 4))
    fwd = dg.forward(block, dg.Weights(up, np.ones((1, 6, 4)), gate=gate), x, backend=backend)
    assert fwd.live_fraction[0] == np.mean(x @ gate[0] > 0)


def test_rms_of_very_many_float32_ones(backend: str) -> None:
    # A running sum in float32 would stop at 2**24.
    none = np.zeros((0, 4096, 1), np.float32)
    x = np.ones((5000, 4096), np.float32)
    fwd = dg.forward(BLOCK, dg.Weights(none, none.reshape(0, 1, 4096)), x, keep="nothing", backend=backend)
    assert fwd.rms[0] == 1
    assert fwd.batch_mean_norm[0] == 64


@pytest.mark.parametrize("exponent", [-900, -500, 500, 900])
def test_statistics_far_out(rng: np.random.Generator, exponent: int, backend: str) -> None:
    x = rng.standard_normal((5, 9))
    want = one_block(x, backend, quantiles=[0.5], cosine=True)
    got = one_block(np.ldexp(x, exponent), backend, quantiles=[0.5], cosine=True)
    for name in ("rms", "max_abs", "batch_mean_norm", "state_quantiles"):
        assert_close(np.ldexp(getattr(got, name), -exponent), getattr(want, name), 1e-14, what=name)
    np.testing.assert_allclose(got.cosine, want.cosine, atol=1e-14)  # type: ignore[arg-type]


def test_large_float32_states(backend: str) -> None:
    fwd = one_block(np.full((3, 5), 1e38, np.float32), backend)
    np.testing.assert_allclose(fwd.rms, np.float32(1e38), rtol=SUMS[np.dtype(np.float32)])


@pytest.mark.parametrize("position", range(67))
def test_a_nan_at_any_position_reaches_the_statistics(position: int, backend: str, dtype: np.dtype[Any]) -> None:
    x = np.ones((3, 67), dtype)
    x[1, position] = np.nan
    fwd = one_block(x, backend, quantiles=[0.5], cosine=True)
    for name in ("rms", "max_abs", "batch_mean_norm", "state_quantiles", "cosine"):
        assert np.all(np.isnan(getattr(fwd, name)[0])), name
    assert fwd.nonfinite[0] == 1


def test_infinities_are_reported_unless_there_is_a_nan(backend: str, dtype: np.dtype[Any]) -> None:
    x = np.ones((4, 9), dtype)
    x[1, 5], x[2, 5] = np.inf, -np.inf
    fwd = dg.forward(BLOCK, dg.Weights(np.zeros((0, 9, 1), dtype), np.zeros((0, 1, 9), dtype)), x, backend=backend)
    assert fwd.rms[0] == fwd.max_abs[0] == fwd.batch_mean_norm[0] == np.inf
    assert fwd.nonfinite[0] == 2
    x[3, 0] = np.nan
    fwd = one_block(x, backend)
    assert np.isnan(fwd.rms[0])
    assert np.isnan(fwd.max_abs[0])
    assert np.isnan(fwd.batch_mean_norm[0])
    assert fwd.nonfinite[0] == 3


def test_quantiles_beside_infinities(backend: str) -> None:
    x = np.array([[1.0, 2.0, np.inf, -np.inf]])
    fwd = one_block(x, backend, quantiles=[0, 1 / 3, 0.5, 1])
    assert fwd.state_quantiles is not None
    np.testing.assert_allclose(fwd.state_quantiles[0], [1, 2, np.inf, np.inf])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_shares_count_a_nan_in_neither(activation: str, backend: str, dtype: np.dtype[Any]) -> None:
    z = np.full((4, 5), 0.5, dtype)
    z[1] = np.nan
    fwd = activation_only(activation, z, backend)
    assert fwd.saturation[0] == 0
    assert fwd.dead_units[0] == 0
    assert fwd.live_fraction[0] == 15 / 20


def test_cosine(backend: str) -> None:
    x = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    for rows, want in ((x, 1 / 3), (x[:2], 1.0), (-x[:2], 1.0), (x[1:], 0.0)):
        cosine = one_block(rows, backend, cosine=True).cosine
        assert cosine is not None
        np.testing.assert_allclose(cosine, want, atol=1e-15)
    assert np.all(np.isnan(one_block(x[:1], backend, cosine=True).cosine))  # type: ignore[arg-type]
    with_zero = one_block(np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]), backend, cosine=True).cosine
    np.testing.assert_allclose(with_zero, 1 / 3, atol=1e-15)  # type: ignore[arg-type]


def test_gradient_statistics(rng: np.random.Generator, backend: str, dtype: np.dtype[Any]) -> None:
    p = random_problem(rng, dg.Block(activation="silu"), 2, 6, 7, 5, dtype)
    bwd = dg.vjp(p.block, p.weights, p.x, p.vector, backend=backend, quantiles=[0.5, 0.9])
    for index, g in ((0, bwd.input_gradient), (2, p.vector)):
        wide = g.astype(np.float64)
        assert bwd.rms[index] == pytest.approx(np.sqrt(np.mean(wide**2)), rel=SUMS[p.x.dtype])
        assert bwd.max_abs[index] == np.max(np.abs(wide))
        assert bwd.gradient_quantiles is not None
        np.testing.assert_allclose(bwd.gradient_quantiles[index], np.quantile(np.abs(wide), [0.5, 0.9]), rtol=1e-14)
    tan = dg.jvp(p.block, p.weights, p.x, p.vector, backend=backend)
    for index, t in ((0, p.vector), (2, tan.output)):
        assert tan.rms[index] == pytest.approx(np.sqrt(np.mean(t.astype(float) ** 2)), rel=SUMS[p.x.dtype])
