"""``compare.py random``: standard normals against NumPy and torch, filling memory that is already there.

NumPy has one thread, for its generators have no more; depthgauge and torch have one, then two.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import depthgauge as dg
from comparison import machine
from comparison.report import OURS, machine_lines, number, quotient
from comparison.timing import time_in_turns
from depthgauge.backends import get_backend
from depthgauge.cli.terminal import aligned

DTYPES = ("float64", "float32")
THREADS = (1, 2)
# Rates asked for: against NumPy by dtype, and against torch at the same number of threads.
BARS = {("NumPy", "float64"): 4.5, ("NumPy", "float32"): 6.0, ("torch", "float64"): 3.0, ("torch", "float32"): 3.0}
# Calls that are timed as one.
CALLS = 16
# Numbers of a sample for the error of the distribution.
SAMPLE = 2**20

NOTES = """\
ns are medians a number of one core or two, all contenders in turns in one process, each into its own array, in place.
A ratio is a peer's time over depthgauge's at as many threads; NumPy's is over depthgauge's on one. Beside them, of
2^20 numbers: the Kolmogorov distance from the normal distribution times the root of their count, which exceeds 1.63
once in a hundred samples; and how many standard errors the mean, the variance and the fourth moment are off."""

Step = Callable[[], Any]


def add_parser(commands: Any) -> None:
    """Add the subcommand to `commands`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "random",
        help="standard normals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=int, default=2**16, metavar="N", help="numbers a call (default 2^16)")
    parser.add_argument("--repeats", type=int, default=25, metavar="N", help="rounds (default 25)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything, every time included")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison and print it; 1 if a ratio is below its bar."""
    cpus = machine.pin_one_cpu_a_core(max(THREADS))
    absent: dict[str, str] = {}
    problems = [_compare(dtype, arguments, absent) for dtype in DTYPES]
    record = {"machine": machine.machine_record(), "cpus": cpus, "absent": absent, "problems": problems}
    text, met = _report(record)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1))
    return 0 if met else 1


def _compare(dtype: str, arguments: argparse.Namespace, absent: dict[str, str]) -> dict[str, Any]:
    steps: dict[tuple[str, int], Step] = {("NumPy", 1): _numpy_step(dtype, arguments.size)}
    steps |= {(OURS, threads): _our_step(dtype, arguments.size, threads) for threads in THREADS}
    try:
        steps |= {("torch", threads): _torch_step(dtype, arguments.size, threads) for threads in THREADS}
    except ImportError as error:
        absent["torch"] = str(error)
    several = {key: _again(step) for key, step in steps.items()}
    times = time_in_turns(several, repeats=arguments.repeats, seconds=0.0)
    samples = {OURS: dg.normal(1, SAMPLE, dtype=dtype), "NumPy": _numpy_step(dtype, SAMPLE)()}
    if "torch" not in absent:
        samples["torch"] = _torch_step(dtype, SAMPLE, 1)().numpy()
    return {
        "dtype": dtype,
        "size": arguments.size,
        "seconds": {f"{name}, {threads}": seconds for (name, threads), seconds in times.items()},
        "ns": {
            f"{name}, {threads}": statistics.median(seconds) / CALLS / arguments.size * 1e9
            for (name, threads), seconds in times.items()
        },
        "errors": {name: _errors(sample) for name, sample in samples.items()},
    }


def _again(step: Step) -> Step:
    def run() -> Any:
        for _ in range(CALLS):
            result = step()
        return result

    return run


def _our_step(dtype: str, size: int, threads: int) -> Step:
    out, seeds = np.empty((1, 1, size), dtype), np.array([1], np.uint64)
    fill = get_backend("native").fill_normals

    def step() -> Any:
        fill(out, seeds, first_layer=0, matrix=0, deviation=1.0, threads=threads)
        return out

    return step


def _numpy_step(dtype: str, size: int) -> Step:
    out: Any = np.empty(size, dtype)
    generator = np.random.default_rng(1)
    return lambda: generator.standard_normal(dtype=dtype, out=out)  # type: ignore[call-overload]


def _torch_step(dtype: str, size: int, threads: int) -> Step:
    torch: Any = importlib.import_module("torch")
    out = torch.empty(size, dtype=getattr(torch, dtype))

    def step() -> Any:
        torch.set_num_threads(threads)
        return out.normal_()

    return step


def _errors(sample: Any) -> dict[str, float]:
    x = np.sort(sample.astype(np.float64))
    n = len(x)
    distribution = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in x])
    steps = np.arange(n + 1) / n
    distance = max(np.max(distribution - steps[:-1]), np.max(steps[1:] - distribution))
    return {
        "distance": float(distance * math.sqrt(n)),
        "mean": float(np.mean(x) * math.sqrt(n)),
        "variance": float((np.mean(x**2) - 1) * math.sqrt(n / 2)),
        "fourth": float((np.mean(x**4) - 3) * math.sqrt(n / 96)),
    }


def _report(record: dict[str, Any]) -> tuple[str, bool]:
    met = True
    heading = ["dtype", "threads", f"{OURS} ns", "NumPy ns", "torch ns", "x NumPy", "x torch"]
    rows, errors = [], []
    for problem in record["problems"]:
        dtype, ns = problem["dtype"], problem["ns"]
        for threads in THREADS:
            ours = ns[f"{OURS}, {threads}"]
            times = {"NumPy": ns["NumPy, 1"] if threads == 1 else None, "torch": ns.get(f"torch, {threads}")}
            ratios = {name: quotient(time, ours) for name, time in times.items()}
            met &= all(ratio is None or ratio >= BARS[name, dtype] for name, ratio in ratios.items())
            rows.append(
                [dtype, str(threads), number(ours, ".2f"), *(number(time, ".2f") for time in times.values())]
                + [number(ratio, ".1f") for ratio in ratios.values()]
            )
        for name, error in problem["errors"].items():
            errors.append([dtype, name, *(f"{value:.2f}" for value in error.values())])
    lines = [NOTES, "", *machine_lines(record["machine"]), f"CPUs        {record['cpus'] or 'not pinned'}"]
    lines += [f"{name} is absent: {reason}" for name, reason in record["absent"].items()]
    lines += ["", *aligned([heading, *rows], left=(0,)), ""]
    lines += aligned([["dtype", "", "distance", "mean", "variance", "fourth moment"], *errors], left=(0, 1))
    bars = ", ".join(f"{name} {dtype} {bar:g}" for (name, dtype), bar in BARS.items())
    return "\n".join([*lines, "", f"bars ({bars}): {'met' if met else 'MISSED'}"]), met
