"""The Jacobians of the branches of a stack, one by one."""

from __future__ import annotations

import depthgauge as dg
from depthgauge._common.arrays import Array


def branch_jacobians(block: dg.Block, weights: dg.Weights, x: Array) -> Array:
    """Return the Jacobian of each branch at the state that reaches it, times the branch scale: (depth, d, d).

    For one input, (1, d), and a block without a post norm.
    """
    states = dg.forward(block, weights, x).states[:-1]
    return dg.jacobian(block.replace(skip_scale=0.0), weights.as_replicates(), states)[:, 0]
