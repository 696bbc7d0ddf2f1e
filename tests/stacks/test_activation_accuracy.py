"""The native activations in units in the last place: tails down to underflow, subnormals, edges of range reduction.

Errors are counted in the spacing of floating-point numbers at the exact result, so that a result in the subnormal
range may be off by as many of its own spacings as one of normal size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import Array
from smooth_activations import EXACT, SLOPES, through

pytest.importorskip("depthgauge._core")
mp = pytest.importorskip("mpmath")

# The largest errors of values and derivatives on any instruction set, from dense searches, rounded up.
BOUNDS = {"tanh": (3, 5.5), "sigmoid": (2, 3.5), "silu": (3.5, 4.5), "gelu": (7, 5.5), "gelu_tanh": (3.5, 5.5)}

# Just beyond where everything has underflowed.
ENDS = {
    np.dtype(np.float64): {"tanh": 375, "sigmoid": 750, "silu": 755, "gelu": 38.8, "gelu_tanh": 21.7},
    np.dtype(np.float32): {"tanh": 53, "sigmoid": 104.5, "silu": 109, "gelu": 14.6, "gelu_tanh": 10.95},
}


def reduction_edges(activation: str, end: float) -> Array:
    """Return arguments whose exponential is midway between two powers of two, where range reduction is at its worst."""
    halves = (np.arange(1100) + 0.5) * np.log(2)
    if activation == "tanh":
        edges = halves / 2
    elif activation == "gelu":
        edges = np.sqrt(2 * halves)
    elif activation == "gelu_tanh":
        z = np.linspace(0, 25, 20001)
        edges = np.interp(halves, 2 * np.sqrt(2 / np.pi) * (z + 0.044715 * z**3), z)
    else:
        edges = halves
    return np.asarray(edges[edges < end])


def samples(activation: str, dtype: np.dtype[Any]) -> Array:
    rng = np.random.default_rng(1)
    end = ENDS[dtype][activation]
    limits = np.finfo(dtype)
    edges = rng.permutation(reduction_edges(activation, end))[:40].astype(dtype)
    tiny = np.exp(rng.uniform(np.log(float(limits.smallest_subnormal)), 0, 40))
    size = np.concatenate(
        [
            rng.uniform(0, end, 80).astype(dtype),
            rng.uniform(0.85 * end, end, 40).astype(dtype),
            np.abs(rng.normal(0, 1.5, 120)).astype(dtype),
            tiny.astype(dtype),
            edges,
            np.nextafter(edges, dtype.type(np.inf)),
            np.array([0, limits.smallest_subnormal, limits.tiny, 5.5, 3.7, end], dtype),
        ]
    )
    return np.concatenate([size, -size])


def spacing(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return the distance between numbers of `dtype` around x, with the whole precision of mpmath."""
    limits = np.finfo(dtype)
    exponent = max(mp.frexp(x)[1] - 1, int(limits.minexp)) if x else int(limits.minexp)
    return mp.ldexp(1, exponent - int(limits.nmant))


@pytest.mark.parametrize("activation", EXACT)
def test_errors_in_ulps(activation: str, dtype: np.dtype[Any]) -> None:
    z = samples(activation, dtype)
    value, slope = through(activation, z, "native")
    value_bound, slope_bound = BOUNDS[activation]
    for point, got, got_slope in zip(z.tolist(), value.tolist(), slope.tolist(), strict=True):
        x = mp.mpf(point)
        want, want_slope = EXACT[activation](x), SLOPES[activation](x)
        # A derivative F + x F' that vanishes has the error of either of its terms.
        scale = abs(want / x) if point and activation in ("silu", "gelu", "gelu_tanh") else mp.mpf(0)
        assert abs(got - want) <= value_bound * spacing(want, dtype), (activation, point)
        assert abs(got_slope - want_slope) <= slope_bound * spacing(max(abs(want_slope), scale), dtype), point


@pytest.mark.parametrize("activation", EXACT)
def test_tails_reach_underflow_and_stay_there(activation: str, dtype: np.dtype[Any]) -> None:
    end = ENDS[dtype][activation]
    beyond = np.array([end, 2 * end, 1e6, np.finfo(dtype).max], dtype)
    value, slope = through(activation, -beyond, "native")
    np.testing.assert_array_equal(value, np.full(4, -1 if activation == "tanh" else 0, dtype))
    np.testing.assert_array_equal(slope, np.zeros(4, dtype))
    inside = np.array([-0.985 * end], dtype)
    _, slope = through(activation, inside, "native")
    assert 0 < abs(slope[0]) < np.finfo(dtype).tiny * 1e6


@pytest.mark.parametrize("activation", EXACT)
def test_symmetries_hold_to_the_bit(activation: str, dtype: np.dtype[Any]) -> None:
    z = np.abs(samples(activation, dtype))
    value, slope = through(activation, z, "native")
    mirrored, mirrored_slope = through(activation, -z, "native")
    if activation == "tanh":
        np.testing.assert_array_equal(mirrored, -value)
        np.testing.assert_array_equal(mirrored_slope, slope)
    elif activation == "sigmoid":
        np.testing.assert_array_equal(1 - mirrored, value)
        np.testing.assert_array_equal(mirrored_slope, slope)
    else:
        np.testing.assert_array_equal(1 - mirrored_slope, slope)


def test_lanes_do_not_touch_each_other(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(2)
    z = rng.normal(0, 5, 37).astype(dtype)
    dirty = np.where(rng.random(37) < 0.4, rng.choice(np.array([np.nan, np.inf, -np.inf, 1e30], dtype), 37), z)
    kept = dirty == z
    for activation in EXACT:
        for clean, mixed in zip(through(activation, z, "native"), through(activation, dirty, "native"), strict=True):
            np.testing.assert_array_equal(clean[kept], mixed[kept])
