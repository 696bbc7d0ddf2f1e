"""Functions to sweep, where the processes of a pool can import them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import depthgauge as dg

if TYPE_CHECKING:
    import xarray


def same(one: xarray.Dataset, other: xarray.Dataset) -> bool:
    """Return whether two sweeps gave the same in all but the times that they took."""
    return one.drop_vars("cell_seconds").identical(other.drop_vars("cell_seconds"))


def transport(depth: int, branch_scale: float, seed: int) -> dict[str, Any]:
    """Return a scalar, a declared array whose length follows the depth, and an array of fixed shape."""
    block = dg.Block(activation="gelu", branch_scale=branch_scale)
    weights = dg.GeneratedWeights(block, depth, 8, seed=seed)
    forward = dg.forward(block, weights, np.random.default_rng(seed).standard_normal((4, 8)))
    return {"growth": forward.rms[-1] / forward.rms[0], "rms": ("state", forward.rms), "first": forward.output[0]}


TRANSPORT: dict[str, list[Any]] = {"depth": [2, 5, 3], "branch_scale": [0.1, 1.0]}


def logged(log: str, run: int, milliseconds: float, x: int, seed: int) -> dict[str, Any]:
    """Return a few numbers, and leave a line in a file that says which run called for which cell."""
    with Path(log).open("a") as file:
        file.write(f"{run} {x} {seed}\n")
    time.sleep(milliseconds / 1000)
    return {"y": np.sin(x + seed), "ramp": ("i", np.arange(x % 4, dtype=float))}


def calls(log: Path) -> list[tuple[int, tuple[int, int]]]:
    """Return run and cell of every call."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(run), (int(x), int(seed))) for run, x, seed in map(str.split, lines)]


def odd_seeds_fail(x: int, seed: int) -> dict[str, Any]:
    """Fail at odd seeds, unless the environment says otherwise."""
    if seed % 2 and "SWEEP_CELLS_HEALED" not in os.environ:
        raise ArithmeticError(f"seed {seed} is odd")
    return {"y": 10 * x + seed, "even": seed % 2 == 0, "word": "ab"[: x + 1]}


def threads(seed: int) -> dict[str, Any]:
    """Return how many threads a call may use, and how many the environment asks for."""
    time.sleep(0.01)
    return {"threads": dg.build_config()["threads"], "asked": os.environ.get("DEPTHGAUGE_NUM_THREADS", "")}


def allow_threads(count: int) -> None:
    """Set what the environment of this process asks for."""
    os.environ["DEPTHGAUGE_NUM_THREADS"] = str(count)


def kills_its_process(seed: int) -> dict[str, Any]:
    """End the worker at seed 3, as the kernel does for want of memory."""
    if seed == 3:
        time.sleep(0.2)
        os._exit(1)
    return {"y": seed}
