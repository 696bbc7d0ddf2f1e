"""A sweep of depth, branch scale and norm placement: what does a GELU stack carry from end to end?

Every cell is one block equation at one depth.  Its seeds are a replicate axis,
so one call runs all of them, and mean and standard error come from one result.

    python examples/sweep.py              # the C++ kernels
    python examples/sweep.py reference    # the same in NumPy, by one word
"""

import itertools
import sys

import numpy as np

import depthgauge as dg

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "native"

DEPTHS = (12, 48)
BRANCH_SCALES = {"1": lambda depth: 1.0, "1/sqrt(L)": lambda depth: depth**-0.5}
PLACEMENTS = ("none", "pre", "post", "output")
WIDTH, BATCH, SEEDS = 64, 32, (0, 1, 2, 3)

rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, WIDTH))
cotangent = rng.standard_normal((BATCH, WIDTH))


def log10_transport(block: dg.Block, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log10 of the growth of the state and of the gradient from end to end, one value a seed."""
    weights = dg.initialize(block, depth, WIDTH, init="he", rng=SEEDS)
    forward = dg.forward(block, weights, x, backend=BACKEND)
    backward = dg.vjp(block, weights, forward, np.broadcast_to(cotangent, forward.output.shape), backend=BACKEND)
    state = np.log10(forward.rms[:, -1] / forward.rms[:, 0])
    gradient = np.log10(backward.rms[:, 0] / backward.rms[:, -1])
    return state, gradient


def mean_and_error(values: np.ndarray) -> str:
    """Return mean and standard error over the seeds as text."""
    return f"{values.mean():7.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}"


print(f"log10 growth through the stack, mean ± standard error of {len(SEEDS)} seeds, backend {BACKEND}\n")
print(f"{'depth':>5}  {'branch scale':12}  {'norm':6}  {'state':>15}  {'gradient':>15}")
for depth, (name, scale), placement in itertools.product(DEPTHS, BRANCH_SCALES.items(), PLACEMENTS):
    block = dg.Block.placed(placement, activation="gelu", branch_scale=scale(depth))
    state, gradient = log10_transport(block, depth)
    print(f"{depth:5}  {name:12}  {placement:6}  {mean_and_error(state):>15}  {mean_and_error(gradient):>15}")
