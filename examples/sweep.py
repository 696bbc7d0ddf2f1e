"""A sweep of depth, branch scale and norm placement: what does a GELU stack carry from end to end?

Every cell is one block equation at one depth with the weights of one seed; mean and standard error over the seeds
come from one labelled Dataset.

    python examples/sweep.py              # the C++ kernels
    python examples/sweep.py reference    # the same in NumPy, by one word

Needs the extra `studies`.  Give `dg.sweep` a `store="sweep.db"`, and a run that was killed goes on where it was.
"""

import sys
from typing import Any

import numpy as np

import depthgauge as dg

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "native"

WIDTH, BATCH = 64, 32
GRID = {"depth": [12, 48], "branch_scale": ["1", "1/sqrt(L)"], "placement": ["none", "pre", "post", "output"]}

rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, WIDTH))
cotangent = rng.standard_normal((BATCH, WIDTH))


def log10_growth(depth: int, branch_scale: str, placement: str, seed: int) -> dict[str, Any]:
    """Return log10 of the growth of the state and of the gradient from end to end."""
    scale = {"1": 1.0, "1/sqrt(L)": depth**-0.5}[branch_scale]
    block = dg.Block.placed(placement, activation="gelu", branch_scale=scale)
    weights = dg.initialize(block, depth, WIDTH, init="he", rng=np.random.default_rng(seed))
    forward = dg.forward(block, weights, x, backend=BACKEND)
    backward = dg.vjp(block, weights, forward, cotangent, backend=BACKEND)
    return {
        "state": np.log10(forward.rms[-1] / forward.rms[0]),
        "gradient": np.log10(backward.rms[0] / backward.rms[-1]),
    }


growth = dg.sweep(log10_growth, GRID, seeds=4)
table = growth.mean("seed")
for name, error in (growth.std("seed", ddof=1) / growth.sizes["seed"] ** 0.5).items():
    table[f"{name} ±"] = error

print(f"log10 growth through the stack, mean ± standard error of {growth.sizes['seed']} seeds, backend {BACKEND}\n")
print(table.to_dataframe()[["state", "state ±", "gradient", "gradient ±"]].round(3))
