"""``compare.py spread``: singular values of stacks of matrices against NumPy, torch, JAX and a pool over NumPy.

Batches fill about --seconds of the fastest peer's time.  depthgauge has two threads; so has the pool, with BLAS held
to one; each peer has one or two, whichever a trial finds faster.  ``--accuracy`` compares errors instead.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from comparison import machine
from comparison.report import machine_lines, number, quotient
from comparison.spread_accuracy import accuracy_report
from comparison.spread_peers import PEERS, Array, Step, depthgauge_step, numpy_step, pool_step
from comparison.timing import time_in_turns
from comparison.yardsticks import multiply_adds
from depthgauge.cli.terminal import aligned

DTYPES = ("float32", "float64")
SIZES = (4, 8, 16, 31, 32, 33, 64, 96, 128, 256, 512, 1024)
THREADS = 2
# Sizes whose matrices are also timed one at a time.
LONE = (512, 1024)

NOTES = """\
Gaussian matrices, singular values only. us are medians a matrix, all contenders in turns in one process; behind a
peer's, the threads it had. A ratio is a peer's time over depthgauge's. Flops count 8/3 d^3 a matrix; the peak is that
of bare fused multiply-adds on as many threads, in the same rounds."""


def add_parser(commands: Any) -> None:
    """Add the subcommand to `commands`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "spread",
        help="singular values of stacks of matrices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", nargs="+", type=int, metavar="D", help="widths of the square matrices")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="peer time of a batch (default 1)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--accuracy", action="store_true", help="errors in place of times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything, every time included")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison and print it."""
    if arguments.accuracy:
        text, record, met = accuracy_report(arguments.sizes, arguments.dtypes)
    else:
        record = _compare_all(arguments)
        text, met = _report(record), True
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1))
    return 0 if met else 1


def _compare_all(arguments: argparse.Namespace) -> dict[str, Any]:
    # JAX has no option for the number of its threads; it takes the CPUs it may use.
    cpus = machine.pin_one_cpu_a_core(THREADS)
    absent: dict[str, str] = {}
    problems = []
    for size in arguments.sizes or SIZES:
        for dtype in arguments.dtypes:
            for lone in (False, True) if size in LONE else (False,):
                print(f"{dtype}, d = {size}{', alone' if lone else ''}", file=sys.stderr, flush=True)
                problems.append(_compare(size, dtype, arguments, absent, lone=lone))
    return {
        "machine": machine.machine_record(),
        "cpus": cpus,
        "blas": machine.blas_record(),
        "absent": absent,
        "problems": problems,
    }


def _compare(
    size: int, dtype: str, arguments: argparse.Namespace, absent: dict[str, str], *, lone: bool
) -> dict[str, Any]:
    """Time all contenders on one batch."""
    rng = np.random.default_rng(size)
    trial = rng.standard_normal((1 if lone else _count_in(arguments.seconds / 10, size, dtype), size, size))
    threads, fastest = _choose_threads(trial.astype(dtype), absent)
    count = 1 if lone else max(1, round(arguments.seconds / fastest))
    a = rng.standard_normal((count, size, size)).astype(dtype)

    entries: dict[str, tuple[Step, int, int]] = {"depthgauge": (depthgauge_step(a), THREADS, THREADS)}
    entries |= {name: (PEERS[name](a), chosen, chosen) for name, chosen in threads.items()}
    if not lone:
        entries["pool"] = pool_step(a), THREADS, 1
    steps = {name: _limited(*entry) for name, entry in entries.items()}
    _agree(steps, a)
    limit = multiply_adds(dtype, THREADS)
    times = time_in_turns(steps | {"peak": limit.step}, repeats=arguments.repeats, seconds=0.0, warmups=1)
    return {
        "size": size,
        "dtype": dtype,
        "count": count,
        "lone": lone,
        "threads": threads,
        "seconds": times,
        "peak": limit.gflops(times.pop("peak")),
        "median": {name: statistics.median(seconds) / count for name, seconds in times.items()},
    }


def _count_in(seconds: float, size: int, dtype: str) -> int:
    """Return about how many matrices NumPy does in `seconds`."""
    count = 1
    while True:
        step = numpy_step(np.random.default_rng(0).standard_normal((count, size, size)).astype(dtype))
        time = min(time_in_turns({"": lambda: step(1)}, repeats=2, seconds=0.0, warmups=0)[""])  # noqa: B023
        if time >= seconds / 4:
            return max(1, round(count * seconds / time))
        count *= 4


def _choose_threads(a: Array, absent: dict[str, str]) -> tuple[dict[str, int], float]:
    """Return each peer's better number of threads, and the seconds a matrix of the fastest peer."""
    peers: dict[str, Step] = {}
    for name, make in PEERS.items():
        try:
            peers[name] = make(a)
        except ImportError as error:
            absent[name] = str(error)
    steps = {(name, n): _limited(step, n, n) for name, step in peers.items() for n in range(1, THREADS + 1)}
    times = time_in_turns(steps, repeats=3, seconds=0.0, warmups=1)
    best = {key: min(seconds) for key, seconds in times.items()}
    chosen = {name: min(range(1, THREADS + 1), key=lambda n, name=name: best[name, n]) for name in peers}  # type: ignore[misc]
    return chosen, min(best.values()) / len(a)


def _limited(step: Step, threads: int, blas_threads: int) -> Callable[[], Any]:
    """Return `step` with every BLAS and OpenMP pool of this process limited while it runs."""
    # Made once, for it looks through all libraries that are loaded.
    controller: Any = importlib.import_module("threadpoolctl").ThreadpoolController()

    def run() -> Any:
        with controller.limit(limits=blas_threads):
            return step(threads)

    return run


def _agree(steps: dict[str, Callable[[], Any]], a: Array) -> None:
    """Stop if a contender computes something else."""
    want = np.linalg.svd(a[:4].astype(np.float64), compute_uv=False)
    for name, step in steps.items():
        found = step()
        got = np.concatenate(found) if isinstance(found, list) else np.asarray(found)
        error = float(np.max(np.abs(got[:4] - want) / want[:, :1]) / np.finfo(a.dtype).eps)
        if got.shape != a.shape[:2] or not error < 1000:
            raise SystemExit(f"{name} is off by {error:.1e} eps on {a.dtype} {a.shape}")


def _report(record: dict[str, Any]) -> str:
    peers = [name for name in PEERS if name not in record["absent"]]
    heading = ["d", "dtype", "matrices", "depthgauge us", *(f"{name} us" for name in peers), "pool us"]
    heading += ["fastest peer", "x fastest", "x pool", "of FMA peak"]
    rows = [_row(problem, peers) for problem in record["problems"]]
    lines = [NOTES, "", *machine_lines(record["machine"])]
    lines += [f"CPUs        {record['cpus'] or 'not pinned'}; {'; '.join(record['blas'])}"]
    lines += [f"{name} is absent: {reason}" for name, reason in record["absent"].items()]
    lines += ["", *aligned([heading, *rows], left=(1, len(peers) + 5)), "", *_cliff(record["problems"])]
    return "\n".join(lines)


def _row(problem: dict[str, Any], peers: list[str]) -> list[str]:
    times = problem["median"]
    ours = times["depthgauge"]
    first = min(peers, key=lambda name: times[name])
    row = [str(problem["size"]), problem["dtype"], "alone" if problem["lone"] else str(problem["count"]), _us(ours)]
    row += [f"{_us(times[name])} ({problem['threads'][name]})" for name in peers]
    row += [_us(times.get("pool")), first, f"{times[first] / ours:.1f}"]
    row += [number(quotient(times.get("pool"), ours), ".1f")]
    return [*row, number(quotient(8 / 3 * problem["size"] ** 3 / ours / 1e9, problem["peak"]), ".2f")]


def _us(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.0f}" if seconds >= 1e-4 else f"{seconds * 1e6:.3g}"


def _cliff(problems: list[dict[str, Any]]) -> list[str]:
    """Return what one row more than a full vector register costs."""
    times = {(p["dtype"], p["size"]): p["median"]["depthgauge"] for p in problems if not p["lone"]}
    return [
        f"{dtype}: d = 33 takes {times[dtype, 33] / times[dtype, 32]:.2f} times as long as d = 32"
        for dtype in DTYPES
        if (dtype, 32) in times and (dtype, 33) in times
    ]
