"""Norms at the edges of the floating-point range, seen through a no-op block with a post norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import Array, assert_close

import depthgauge as dg
from depthgauge.equation import NORMS

EPS = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 4e-15}
RESCALING = ("rms", "layer", "rms_detached", "layer_detached")


def normed(norm: str, x: Array, backend: str, eps: float = 0.0, vector: Array | None = None) -> tuple[Array, Array]:
    """Return N(x) and its vector-Jacobian product with `vector`."""
    block = dg.Block.placed("post", norm, branch_scale=0, eps=eps)
    width = x.shape[-1]
    weights = dg.Weights(np.zeros((1, width, 1), x.dtype), np.zeros((1, 1, width), x.dtype))
    fwd = dg.forward(block, weights, x, backend=backend)
    return fwd.output, dg.vjp(block, weights, fwd, np.ones_like(x) if vector is None else vector).input_gradient


def plain(norm: str, x: Array, eps: float) -> Array:
    """The definitions, in extended precision."""
    wide: Any = x.astype(np.longdouble)
    return np.asarray(_plain(norm, wide, eps))


def _plain(norm: str, x: Any, eps: float) -> Any:
    centered = x - x.mean(axis=-1, keepdims=True)
    if norm in ("rms", "rms_detached"):
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    if norm in ("layer", "layer_detached"):
        return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + eps)
    return {"none": x, "center": centered, "dyt": np.tanh(x / 2)}[norm]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [2, 7, 8, 9, 33, 67])
def test_norms_are_their_definitions(
    rng: np.random.Generator, norm: str, width: int, backend: str, dtype: np.dtype[Any]
) -> None:
    x = (rng.standard_normal((9, width)) + 0.5).astype(dtype)
    for eps in (0.0, 0.25):
        got, _ = normed(norm, x, backend, eps)
        assert_close(got, plain(norm, x, eps).astype(dtype), EPS[x.dtype])


def test_layer_norm_does_not_cancel(backend: str) -> None:
    row = np.array([[40000, 40001, 40002, 40003]], np.float32)
    got, _ = normed("layer", row, backend, 1e-5)
    np.testing.assert_allclose(got[0], [-1.3416354, -0.4472118, 0.4472118, 1.3416354], rtol=2e-7)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 16, 17, 31, 64, 67, 100, 1000])
@pytest.mark.parametrize("value", [0.1, -3.7, 1e4, 1e-30])
def test_a_constant_row_is_centered_to_exactly_zero(
    width: int, value: float, backend: str, dtype: np.dtype[Any]
) -> None:
    x = np.full((2, width), value, dtype)
    for norm in ("layer", "layer_detached", "center"):
        for eps in (0.0, 1e-5):
            got, _ = normed(norm, x, backend, eps)
            assert not np.any(got), norm


@pytest.mark.parametrize("norm", RESCALING)
def test_norms_are_free_of_scale_at_eps_zero(
    rng: np.random.Generator, norm: str, backend: str, dtype: np.dtype[Any]
) -> None:
    x, g = rng.standard_normal((2, 5, 9)).astype(dtype)
    want, want_gradient = normed(norm, x, backend, vector=g)
    for exponent in (-100, 83) if dtype == np.float32 else (-990, -660, 660, 990):
        got, gradient = normed(norm, np.ldexp(x, exponent), backend, vector=g)
        assert_close(got, want, EPS[x.dtype], what=f"2**{exponent}")
        assert_close(np.ldexp(gradient, exponent), want_gradient, EPS[x.dtype], what=f"2**{exponent}")


def test_a_large_float32_row_has_rms_one(backend: str) -> None:
    got, _ = normed("rms", np.full((1, 5), 1e25, np.float32), backend)
    np.testing.assert_allclose(got, 1, rtol=2e-7)


@pytest.mark.parametrize("norm", RESCALING)
def test_eps_rules_small_rows(norm: str, backend: str, dtype: np.dtype[Any]) -> None:
    x = np.array([[1.0, -1.0, 2.0, -2.0]], dtype) * dtype.type(1e-30)
    got, gradient = normed(norm, x, backend, 1e-4, np.eye(4, dtype=dtype)[:1])
    assert_close(got, x * dtype.type(100), EPS[x.dtype])
    jacobian = 100 * (np.eye(4) - (0.25 if norm.startswith("layer") else 0))
    assert_close(gradient, jacobian[:1].astype(dtype), EPS[x.dtype])


@pytest.mark.parametrize("norm", RESCALING)
def test_zero_rows_at_eps_zero_give_zero_and_no_derivative(norm: str, backend: str, dtype: np.dtype[Any]) -> None:
    x = np.zeros((3, 5), dtype)
    x[1] = np.arange(5)
    if norm.startswith("layer"):
        x[2] = 7.5
    got, gradient = normed(norm, x, backend)
    for row in (0, 2):
        assert not np.any(got[row])
        assert not np.any(gradient[row])
    assert np.any(got[1])


@pytest.mark.parametrize("norm", RESCALING)
def test_a_detached_norm_differs_from_its_kin_in_derivatives_alone(
    rng: np.random.Generator, norm: str, backend: str
) -> None:
    x, g = rng.standard_normal((2, 3, 6))
    kin = norm.removesuffix("_detached")
    got, gradient = normed(norm, x, backend, 0.1, g)
    want, _ = normed(kin, x, backend, 0.1, g)
    np.testing.assert_array_equal(got, want)
    if norm != kin:
        y = x if kin == "rms" else x - x.mean(axis=1, keepdims=True)
        w = g if kin == "rms" else g - g.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(gradient, w / np.sqrt((y**2).mean(axis=1, keepdims=True) + 0.1), rtol=1e-13)


def test_gains_and_shifts_apply_without_a_norm_too(rng: np.random.Generator, backend: str) -> None:
    gain, shift = rng.standard_normal((2, 1, 5))
    x = rng.standard_normal((3, 5))
    weights = dg.Weights(np.zeros((1, 5, 2)), np.zeros((1, 2, 5)), post_gain=gain, post_shift=shift)
    fwd = dg.forward(dg.Block.placed("none"), weights, x, backend=backend)
    np.testing.assert_allclose(fwd.output, x * gain + shift, rtol=1e-15, atol=1e-16)
