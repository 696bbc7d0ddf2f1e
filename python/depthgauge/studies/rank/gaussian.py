"""Activations of a standard normal: what theory needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

import depthgauge as dg
from depthgauge._common.arrays import Floats

ACTIVATION_TITLES = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "abs": "abs", "tanh": "tanh"}

# Beyond 10 a normal is never; nodes lie between the kinks of relu and abs, which the midpoint rule then integrates.
_REACH, _NODES = 10.0, 4000


@dataclass(frozen=True)
class Moments:
    """E[phi], E[phi²] and E[phi'²] of a standard normal."""

    mean: float
    square: float
    slope_square: float

    @property
    def cosine(self) -> float:
        """E[phi]²/E[phi²]: the cosine of phi at two independent sets of many normals."""
        return self.mean**2 / self.square


@cache
def moments(activation: str) -> Moments:
    """Return the moments of an activation, to about five digits."""
    z, weights = normal_nodes(_NODES)
    phi, slope = value_and_slope(activation, z)
    return Moments(float(weights @ phi), float(weights @ phi**2), float(weights @ slope**2))


def normal_nodes(count: int) -> tuple[Floats, Floats]:
    """Return nodes (even in number, so that none is 0) and weights of a mean over a standard normal."""
    z: Floats = (np.arange(count, dtype=np.float64) + 0.5) * (2 * _REACH / count) - _REACH
    weights: Floats = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    return z, weights


def value_and_slope(activation: str, z: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return phi and phi' at each of the values z: those of a plain block of width 1, one example a value."""
    block = dg.Block(branch="linear", activation=activation, pre_norm="none", skip_scale=0.0)
    unit, x = dg.Weights(np.ones((1, 1, 1), z.dtype)), z[:, None]
    return dg.forward(block, unit, x, keep="nothing").output[:, 0], dg.jacobian(block, unit, x)[:, 0, 0]
