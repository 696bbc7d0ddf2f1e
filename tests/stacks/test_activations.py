"""Activations and their derivatives against 60 digits of mpmath, seen through the public functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import Array
from smooth_activations import EXACT, SLOPES, through

from depthgauge.equation import ACTIVATIONS

mp = pytest.importorskip("mpmath")
mp.mp.dps = 60

# Relative errors, in units of the dtype's eps.
VALUE_ULPS = 8
SLOPE_ULPS = 16


def samples(activation: str, dtype: np.dtype[Any]) -> Array:
    """Return arguments whose results are normal numbers, tails and tiny ones included."""
    far = {"gelu": 37.0, "gelu_tanh": 21.0, "silu": 690.0, "sigmoid": 690.0, "tanh": 340.0}[activation]
    if dtype == np.float32:
        far = {"gelu": 12.5, "gelu_tanh": 9.5, "silu": 80.0, "sigmoid": 80.0, "tanh": 40.0}[activation]
    rng = np.random.default_rng(0)
    tiny = 10.0 ** rng.uniform(-30, 0, 40) * rng.choice([-1, 1], 40)
    return np.concatenate([np.linspace(-far, far, 301), rng.normal(0, 2, 200), tiny]).astype(dtype)


@pytest.mark.parametrize("activation", EXACT)
def test_values_and_derivatives_have_full_relative_accuracy(
    activation: str, backend: str, dtype: np.dtype[Any]
) -> None:
    z = samples(activation, dtype)
    value, slope = through(activation, z, backend)
    eps = float(np.finfo(dtype).eps)
    for point, got, got_slope in zip(z.tolist(), value.tolist(), slope.tolist(), strict=True):
        want, want_slope = EXACT[activation](mp.mpf(point)), SLOPES[activation](mp.mpf(point))
        assert abs(got - want) <= VALUE_ULPS * eps * abs(want), (activation, point)
        # Where the two terms of a derivative cancel, the error is that of either term.
        terms = abs(want / point) if point and activation in ("gelu", "gelu_tanh", "silu") else 0
        scale = max(abs(want_slope), terms)
        if activation == "tanh":
            scale = max(scale, 1e-3)  # 1 - tanh² may cancel in the tail
        assert abs(got_slope - want_slope) <= SLOPE_ULPS * eps * scale, (activation, point)


def test_published_digits_of_gelu(backend: str, dtype: np.dtype[Any]) -> None:
    value, slope = through("gelu", np.array([-5.5, -3.7], dtype), backend)
    assert value[0] == pytest.approx(-1.04443e-7, rel=1e-5)
    assert slope[1] == pytest.approx(-1.4638873e-3, rel=1e-6)


LIMITS = {
    "relu": (0, np.inf),
    "leaky_relu": (-np.inf, np.inf),
    "tanh": (-1, 1),
    "sigmoid": (0, 1),
    "gelu": (0, np.inf),
    "gelu_tanh": (0, np.inf),
    "silu": (0, np.inf),
    "abs": (np.inf, np.inf),
    "identity": (-np.inf, np.inf),
}
SLOPE_LIMITS = {"leaky_relu": (0.01, 1), "tanh": (0, 0), "sigmoid": (0, 0), "abs": (-1, 1), "identity": (1, 1)}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_limits_at_infinity_and_nan(activation: str, backend: str, dtype: np.dtype[Any]) -> None:
    value, slope = through(activation, np.array([-np.inf, np.inf, np.nan], dtype), backend)
    np.testing.assert_array_equal(value[:2], np.array(LIMITS[activation], dtype))
    np.testing.assert_array_equal(slope[:2], np.array(SLOPE_LIMITS.get(activation, (0, 1)), dtype))
    assert np.isnan(value[2])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_far_out_neither_overflow_nor_turn_nan(activation: str, backend: str, dtype: np.dtype[Any]) -> None:
    far = float(np.finfo(dtype).max)
    z = np.array([far, 1e30, 1e4, 800.0, 100.0, 40.0], dtype)
    value, slope = through(activation, np.concatenate([-z, z]), backend)
    assert np.all(np.isfinite(value))
    assert np.all(np.isfinite(slope))
    if activation in ("gelu", "gelu_tanh", "silu", "relu"):
        np.testing.assert_array_equal(value[6:], z)
        np.testing.assert_allclose(slope[6:], np.ones_like(z), rtol=2 * np.finfo(dtype).eps)


def test_kinks(backend: str, dtype: np.dtype[Any]) -> None:
    z = np.array([-2.0, -0.0, 0.0, 3.0], dtype)
    for activation, slope, values, slopes in (
        ("relu", 0.01, [0, 0, 0, 3], [0, 0, 0, 1]),
        ("leaky_relu", 0.25, [-0.5, 0, 0, 3], [0.25, 0.25, 0.25, 1]),
        ("leaky_relu", 0.0, [0, 0, 0, 3], [0, 0, 0, 1]),
        ("abs", 0.01, [2, 0, 0, 3], [-1, 0, 0, 1]),
        ("identity", 0.01, [-2, 0, 0, 3], [1, 1, 1, 1]),
    ):
        got, got_slope = through(activation, z, backend, slope)
        np.testing.assert_array_equal(got, np.array(values, dtype), err_msg=activation)
        np.testing.assert_array_equal(got_slope, np.array(slopes, dtype), err_msg=activation)
