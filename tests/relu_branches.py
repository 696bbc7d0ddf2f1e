"""Branch Jacobians of Pre-RMSNorm ReLU stacks from their formulas, to hold the studies of ranks against."""

from __future__ import annotations

import math

import numpy as np
from problems import Array

import depthgauge as dg


def dense_branches(weights: dg.Weights, beta: float, x: Array) -> Array:
    """Return the branch Jacobians at the states that an input (1, d) passes, times beta, in float64: (L, d, d)."""
    up, state = weights.up.astype(np.float64), x[0].astype(np.float64)
    down = None if weights.down is None else weights.down.astype(np.float64)
    jacobians = []
    for layer in range(weights.depth):
        size = math.sqrt(np.mean(state**2) + 1e-6)
        normed = state / size
        norm = (np.eye(len(state)) - np.outer(normed, normed) / len(state)) / size
        z = normed @ up[layer]
        jacobian = (z > 0)[:, None] * (up[layer].T @ norm)
        output = np.maximum(z, 0)
        if down is not None:
            jacobian, output = down[layer].T @ jacobian, output @ down[layer]
        jacobians.append(beta * jacobian)
        state = state + beta * output
    return np.array(jacobians)
