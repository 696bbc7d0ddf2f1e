"""The RMS norm of a decoder, and the RMS of a site, in float64.

A power of two is taken out before anything is squared, so that nothing overflows on the way, nor vanishes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array, Floats
from depthgauge._common.scaling import split_exponent, top_exponent


@dataclass(frozen=True, eq=False)
class RmsNorm:
    """Normed rows, before their gain, with what the derivative needs.

    Attributes
    ----------
    value : ndarray, shape (T, d)
        ``x / sqrt(mean(x**2) + eps)``, by rows.
    root, exponent : ndarray, shape (T, 1)
        What each row was divided by, ``root * 2**exponent``.
    """

    value: Floats
    root: Floats
    exponent: npt.NDArray[Any]

    @classmethod
    def of(cls, x: Floats, eps: float) -> RmsNorm:
        """Return the norm of the rows of `x`."""
        exponent = np.maximum(top_exponent(x, -1), math.frexp(math.sqrt(eps))[1] if eps else -(2**30))
        scaled = np.ldexp(x, -exponent)
        root = np.sqrt(_mean(scaled**2) + np.ldexp(eps, -2 * exponent))
        return cls(_divided(scaled, root), root, exponent)

    def vjp(self, g: Floats) -> Floats:
        """Return the derivative at `x` from `g`, that at `value`; the Jacobian is ``(I - y yᵀ / d) / root``."""
        g = g - self.value * _mean(g * self.value)
        return _divided(np.ldexp(g, -self.exponent), self.root)


def rms(values: Array) -> float:
    """Return the root mean square of a matrix; NaN or infinite where a value is."""
    scaled, exponent = split_exponent(values, (0, 1))
    return float(np.ldexp(np.sqrt(np.sum(scaled**2, axis=(0, 1)) / values.size), exponent[0, 0]))


def _mean(x: Floats) -> Floats:
    return np.asarray(np.sum(x, axis=-1, keepdims=True) / x.shape[-1])


def _divided(x: Floats, root: Floats) -> Floats:
    """Divide each row by its root; a row of zeros under eps = 0 stays 0, and so does its derivative."""
    return np.asarray(np.where(root == 0, 0.0, x / np.where(root == 0, 1.0, root)))
