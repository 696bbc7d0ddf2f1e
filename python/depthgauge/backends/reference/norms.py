"""Norms over the features of one example, and their derivatives.

Everything is computed in float64 and rounded once, with a power of two taken out of each row before it is squared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array, Floats
from depthgauge._common.scaling import split_exponent, top_exponent
from depthgauge.equation import Block

_CENTERED = ("layer", "layer_detached", "center")
_RESCALED = ("rms", "rms_detached", "layer", "layer_detached")
_DETACHED = ("rms_detached", "layer_detached")


@dataclass(frozen=True, eq=False)
class Normed:
    """A normed state, before gain and shift, with what its derivative needs.

    `value` has shape (..., B, d) in float64.  A rescaled row was divided by ``root * 2**exponent``, both (..., B, 1);
    `slope` is the derivative of dyt, and both are None where they do not apply.
    """

    norm: str
    value: Floats
    root: Floats | None = None
    exponent: npt.NDArray[Any] | None = None
    slope: Floats | None = None


def normed(norm: str, block: Block, x: Array) -> Normed:
    """Apply `norm` to the rows of `x`, with the constants of `block` rounded to the dtype of `x`."""
    value = x.astype(np.float64)
    if norm == "dyt":
        alpha = float(x.dtype.type(block.dyt_alpha))
        return Normed(norm, np.tanh(alpha * value), slope=alpha * (1 / np.cosh(alpha * value)) ** 2)
    if norm in _CENTERED:
        value = _centered(value)
    if norm not in _RESCALED:
        return Normed(norm, value)
    eps = float(x.dtype.type(block.eps))
    exponent = np.maximum(top_exponent(value, -1), math.frexp(math.sqrt(eps))[1] if eps else -(2**30))
    scaled = np.ldexp(value, -exponent)
    root = np.sqrt(_mean(scaled**2) + np.ldexp(eps, -2 * exponent))
    return Normed(norm, _divided(scaled, root), root, exponent)


def derivative(at: Normed, v: Array) -> Floats:
    """Return the Jacobian of the norm times `v`, shape (..., B, d), in float64.

    The Jacobian of every norm here is symmetric, so this serves cotangents and tangents alike.  For rms it is
    ``(I - y yᵀ / d) / root``; layer has the centring projection on both sides, of which one is enough, because y is
    centred.
    """
    w = v.astype(np.float64)
    if at.slope is not None:
        return _contribution(at.slope, w)
    if at.root is not None and at.exponent is not None:
        if at.norm not in _DETACHED:
            w = w - at.value * _mean(w * at.value)
        w = _divided(np.ldexp(w, -at.exponent), at.root)
    if at.norm in _CENTERED:
        w = w - _mean(w)
    return w


def _centered(value: Floats) -> Floats:
    scaled, exponent = split_exponent(value, -1)
    # The first element goes first, so that a constant row gives exactly 0 whatever the mean rounds to.
    shifted = scaled - scaled[..., :1]
    return np.asarray(np.ldexp(shifted - _mean(shifted), exponent))


def _mean(value: Floats) -> Floats:
    return np.asarray(np.sum(value, axis=-1, keepdims=True) / max(value.shape[-1], 1))


def _divided(value: Floats, root: Floats) -> Floats:
    """Divide each row by its root; a row of zeros under eps = 0 stays 0, and so does its derivative."""
    return np.asarray(np.where(root == 0, 0.0, value / np.where(root == 0, 1.0, root)))


def _contribution(slope: Floats, w: Floats) -> Floats:
    return np.asarray(np.where(slope == 0, 0.0, slope * w))
