"""Activations and their derivatives, as accurate as the dtype allows, tails and infinities included.

float32 is evaluated in float64 and rounded once.  Every formula is arranged so that it neither cancels nor
overflows, and so that 0 times infinity, where the limit is 0, is 0.  A NaN has a NaN value; its derivative under relu
and leaky_relu is what the false comparison z > 0 gives, 0 and the slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array, Floats
from depthgauge.equation import Block

_erfc = np.frompyfunc(math.erfc, 1, 1)
# Constants of extended precision: in the tails a relative error of an exponent is magnified by the exponent.
_PI = 4 * np.arctan(np.longdouble(1))
_TANH_CUBIC = np.longdouble("0.044715")


def value_and_slope(block: Block, z: Array) -> tuple[Array, Array]:
    """Return phi(z) and phi'(z), of the shape and dtype of `z`."""
    if block.activation in _EXACT:
        return _EXACT[block.activation](z, z.dtype.type(block.slope))
    value, slope = _SMOOTH[block.activation](z.astype(np.float64))
    return value.astype(z.dtype), slope.astype(z.dtype)


def _relu(z: Array, _: Any) -> tuple[Array, Array]:
    return np.maximum(z, 0), (z > 0).astype(z.dtype)


def _leaky_relu(z: Array, slope: Any) -> tuple[Array, Array]:
    factor = np.where(z > 0, z.dtype.type(1), slope)
    return np.where(factor == 0, np.where(np.isnan(z), z, 0), factor * z), factor


def _abs(z: Array, _: Any) -> tuple[Array, Array]:
    return np.abs(z), np.sign(z)


def _identity(z: Array, _: Any) -> tuple[Array, Array]:
    return z.copy(), np.ones_like(z)


def _tanh(z: Floats) -> tuple[Floats, Floats]:
    return np.tanh(z), (1 / np.cosh(z)) ** 2


def _sigmoid(z: Floats) -> tuple[Floats, Floats]:
    return _logistic(z), _logistic(z) * _logistic(-z)


def _silu(z: Floats) -> tuple[Floats, Floats]:
    rising, falling = _logistic(z), _logistic(-z)
    return _times(z, rising), _times(1 + _times(z, falling), rising)


def _gelu(z: Floats) -> tuple[Floats, Floats]:
    """Return z Phi(z), Phi being the normal distribution function, and Phi(z) + z times the normal density."""
    extended = z.astype(np.longdouble)
    argument = -extended / np.sqrt(np.longdouble(2))
    t = argument.astype(np.float64)
    # In the tail erfc magnifies the rounding of its argument by 2 t**2; this is the first-order remedy.
    lost = np.where((t > 0) & (t < 30), (argument - t) * 2 * t, 0).astype(np.float64)
    distribution = 0.5 * np.asarray(_erfc(t), np.float64) * np.exp(-lost)
    density = (np.exp(-extended * extended / 2) / np.sqrt(2 * _PI)).astype(np.float64)
    return _times(z, distribution), distribution + _times(z, density)


def _gelu_tanh(z: Floats) -> tuple[Floats, Floats]:
    """Return 0.5 z (1 + tanh(s / 2)), as z times the logistic function of s, which keeps the negative tail."""
    extended = z.astype(np.longdouble)
    rate = np.sqrt(8 / _PI)
    s = rate * (extended + _TANH_CUBIC * extended**3)
    rising, falling = _logistic(s), _logistic(-s)
    slope = rising * (1 + _times(extended * rate * (1 + 3 * _TANH_CUBIC * extended**2), falling))
    slope = np.where(rising == 0, np.where(np.isnan(z), extended, 0), slope)
    return _times(extended, rising).astype(np.float64), slope.astype(np.float64)


def _logistic(z: npt.NDArray[np.floating[Any]]) -> Any:
    decay = np.exp(-np.abs(z))
    return np.where(z < 0, decay, 1) / (1 + decay)


def _times(growing: Any, vanishing: Any) -> Any:
    """Return the product; 0 where the second factor is, for it vanishes faster than the first grows."""
    return np.where(vanishing == 0, 0, growing * vanishing)


_EXACT: dict[str, Callable[[Array, Any], tuple[Array, Array]]] = {
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "abs": _abs,
    "identity": _identity,
}
_SMOOTH: dict[str, Callable[[Floats], tuple[Floats, Floats]]] = {
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
