"""``compare.py estimate``: the spread from products against a full factorization by NumPy.

Two matrices: a Gaussian one, whose spectrum is flat, timed; and the Jacobian of a plain stack of ReLU layers, whose
spectrum decays fast.  Both libraries use NumPy's BLAS with the threads it is set to.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import depthgauge as dg
from comparison import machine
from comparison.timing import time_in_turns

Array = npt.NDArray[Any]

DTYPES = ("float32", "float64")
LAYERS = 96


def add_parser(commands: Any) -> None:
    """Add the subcommand to `commands`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "estimate",
        help="estimate_spread beside numpy.linalg.svd",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=int, default=4096, metavar="D", help="of the Gaussian matrix (default 4096)")
    parser.add_argument("--relu-size", type=int, default=2048, metavar="D", help="of the layers (default 2048)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--steps", nargs="+", type=int, default=[24, 48], metavar="N", help="default 24 and 48")
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="estimates a matrix (default 4)")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="times to run each (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything, every time included")
    parser.add_argument("--quick", action="store_true", help="small matrices: does everything run?")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison and print it."""
    if arguments.quick:
        arguments.size, arguments.relu_size = 256, 128
    entries = []
    for dtype in arguments.dtypes:
        for kind, matrix in (
            ("Gaussian", gaussian(arguments.size)),
            (f"{LAYERS} ReLU layers", relu_product(arguments.relu_size)),
        ):
            found = compare(matrix.astype(dtype), arguments.steps, arguments.seeds, arguments.repeats)
            entries.append({"kind": kind, "dtype": dtype, "size": len(matrix)} | found)
            print(text(entries[-1]), flush=True)
    if arguments.json is not None:
        record = {"machine": machine.machine_record(), "blas": machine.blas_record(), "matrices": entries}
        arguments.json.write_text(json.dumps(record, indent=1))
    return 0


def gaussian(size: int) -> Array:
    """Return a standard normal matrix."""
    return np.random.default_rng(size).standard_normal((size, size))


def relu_product(size: int) -> Array:
    """Return the Jacobian of a plain ReLU stack of He-initialized square layers, in float64."""
    rng = np.random.default_rng(size)
    state, jacobian = rng.standard_normal(size), np.eye(size)
    for _ in range(LAYERS):
        weights = rng.standard_normal((size, size)) * np.sqrt(2 / size)
        z = weights @ state
        state = np.maximum(z, 0)
        jacobian = np.where(z[:, None] > 0, weights @ jacobian, 0)
    return jacobian


def compare(matrix: Array, all_steps: list[int], seeds: int, repeats: int) -> dict[str, Any]:
    """Time estimates of each number of steps and seed, and the factorization, all in turns; return times and errors."""
    estimates: dict[tuple[int, int], dg.Estimate] = {}
    values = np.empty(0)

    def estimate(steps: int, seed: int) -> None:
        estimates[steps, seed] = dg.estimate_spread(matrix, steps=steps, seed=seed)

    def factorize() -> None:
        nonlocal values
        values = np.linalg.svd(matrix, compute_uv=False).astype(np.float64)

    calls: dict[tuple[int, int] | str, Callable[[], None]] = {
        (steps, seed): partial(estimate, steps, seed) for steps in all_steps for seed in range(seeds)
    }
    times = time_in_turns(calls | {"svd": factorize}, repeats=repeats, seconds=0.0, warmups=0)
    p = values[values > 0] / np.sum(values)
    truth = float(np.exp(-np.sum(p * np.log(p))))
    entry: dict[str, Any] = {"effective_rank": truth, "svd_seconds": times["svd"], "estimates": {}}
    for steps in all_steps:
        found = [estimates[steps, seed] for seed in range(seeds)]
        entry["estimates"][steps] = {
            "seconds": [second for seed in range(seeds) for second in times[steps, seed]],
            "errors": [one.effective_rank / truth - 1.0 for one in found],
            "standard_errors": [one.standard_error / truth for one in found],
            "methods": sorted({one.method for one in found}),
            "applications": [one.applications for one in found],
        }
    return entry


def text(entry: dict[str, Any]) -> str:
    """Return one matrix of the comparison as text."""
    svd = statistics.median(entry["svd_seconds"])
    lines = [
        f"{entry['kind']}, d = {entry['size']}, {entry['dtype']}: effective rank {entry['effective_rank']:.2f}, "
        f"numpy.linalg.svd in {svd:.2f} s"
    ]
    for steps, found in entry["estimates"].items():
        seconds = statistics.median(found["seconds"])
        lines.append(
            f"  {steps} steps: {seconds:.2f} s, {svd / seconds:.1f} times faster; "
            f"largest error of {len(found['errors'])} seeds {max(map(abs, found['errors'])):.2%}, "
            f"two standard errors {2 * max(found['standard_errors']):.2%}; "
            f"{', '.join(found['methods'])}, {statistics.mean(found['applications']):.0f} products with vectors"
        )
    return "\n".join(lines)
