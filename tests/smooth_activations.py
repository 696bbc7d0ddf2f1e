"""Smooth activations in mpmath, and the library's own seen through its public functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from problems import Array

import depthgauge as dg

mp = pytest.importorskip("mpmath")
mp.mp.dps = 60


def through(activation: str, z: Array, backend: str, slope: float = 0.01) -> tuple[Array, Array]:
    """Return phi(z) and phi'(z) by a linear branch of width 1 without a skip path."""
    block = dg.Block.placed("none", branch="linear", activation=activation, skip_scale=0, slope=slope)
    weights = dg.Weights(np.ones((1, 1, 1), z.dtype))
    fwd = dg.forward(block, weights, z[:, None], backend=backend)
    bwd = dg.vjp(block, weights, fwd, np.ones_like(z)[:, None])
    return fwd.output[:, 0], bwd.input_gradient[:, 0]


def logistic(z: Any) -> Any:
    return 1 / (1 + mp.exp(-z))


def gelu_tanh_argument(z: Any) -> Any:
    return 2 * mp.sqrt(2 / mp.pi) * (z + mp.mpf("0.044715") * z**3)


EXACT: dict[str, Callable[[Any], Any]] = {
    "tanh": mp.tanh,
    "sigmoid": logistic,
    "silu": lambda z: z * logistic(z),
    "gelu": lambda z: z * mp.ncdf(z),
    "gelu_tanh": lambda z: z * logistic(gelu_tanh_argument(z)),
}


def slope_of_gated(z: Any, argument: Any, rate: Any) -> Any:
    return logistic(argument) * (1 + z * rate * logistic(-argument))


SLOPES: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda z: mp.sech(z) ** 2,
    "sigmoid": lambda z: logistic(z) * logistic(-z),
    "silu": lambda z: slope_of_gated(z, z, 1),
    "gelu": lambda z: mp.ncdf(z) + z * mp.npdf(z),
    "gelu_tanh": lambda z: slope_of_gated(
        z, gelu_tanh_argument(z), 2 * mp.sqrt(2 / mp.pi) * (1 + 3 * mp.mpf("0.044715") * z**2)
    ),
}
