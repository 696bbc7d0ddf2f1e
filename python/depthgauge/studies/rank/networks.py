"""The networks of all studies: weights N(0, alpha²/fan_in), branch scale beta, M matrices a branch."""

from __future__ import annotations

from typing import Any

import numpy as np

import depthgauge as dg
from depthgauge._common.arrays import Array

TITLES = {"pre": "Pre-Norm", "post": "Post-Norm", "output": "Output-Norm"}

_BRANCHES = {1: "linear", 2: "mlp"}

# Effective ranks in float32 differ by less than 1e-5 from those in float64, which take twice as long.
DTYPE = "float32"


def network(placement: str, *, beta: float = 1.0, alpha: float = 1.0, matrices: int = 2, **rest: Any) -> dg.Block:
    """Return a block with an RMS norm (or another `norm`) at one placement."""
    return dg.Block.placed(placement, branch=_BRANCHES[matrices], branch_scale=beta, weight_scale=alpha, **rest)


def generated(
    block: dg.Block, depth: int, width: int, seed: int, hidden: int | None = None, dtype: str = DTYPE
) -> dg.GeneratedWeights:
    """Return the weights of one seed, N(0, 1/fan_in); alpha is the block's `weight_scale`."""
    return dg.GeneratedWeights(block, depth, width, hidden, init="lecun", seed=seed, dtype=dtype)


def inputs(seed: int, count: int, width: int, dtype: str = DTYPE) -> Array:
    """Return the inputs of one seed, standard normal, independent of its weights."""
    return dg.normal(seed, (count, width), dtype=dtype)


def unit_inputs(seed: int, count: int, width: int) -> Array:
    """Return the same with rms 1 each, as after a norm."""
    x = inputs(seed, count, width)
    x /= np.sqrt(np.mean(x**2, axis=-1, keepdims=True))
    return x
