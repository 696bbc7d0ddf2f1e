"""``compare.py jacobian``: whole Jacobians of a residual stack against torch and JAX.

A batch fills about --seconds of the fastest contender's time.  depthgauge has two threads; torch has one or two and as
many examples at a time as a trial finds fastest.  All contenders run in turns in one process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import depthgauge as dg
from comparison import machine, yardsticks
from comparison.problems import EPS, Array, Problem, activate, make_problem
from comparison.report import OURS, machine_lines, number, quotient
from comparison.timing import time_in_turns
from depthgauge.cli.terminal import aligned

THREADS = 2
SHAPES = ((48, 64, 64), (48, 256, 256), (24, 256, 1024))
DTYPES = ("float32", "float64")
INITS = {"relu": "he", "gelu": "lecun"}
# Peer's time over ours, at least.
BARS = {
    ("relu", 64): {"JAX": 1.5},
    ("relu", 256): {"jacrev": 2.5, "JAX": 1.6},
    ("gelu", 64): {"JAX": 0.95},
    ("gelu", 256): {"JAX": 0.95},
}
# Examples that the errors are of.
CHECKED = 2
# In float32 a ReLU whose argument rounds across 0 takes the other branch, and one unit of a layer is wrong for its
# example. Beyond this a contender computes something else.
TOLERANCE = {"float32": 5e-2, "float64": 1e-9}

NOTES = """\
Block: mlp, pre-RMSNorm, branch_scale 1/sqrt(L), at initialization: He weights for ReLU, LeCun for exact GELU. Flops
count the products of a dense chain, 4·L·d²·m an example, whoever skips some. All contenders run in turns in one
process, one call each a round; ms are medians. So are the limits beside them: bare multiply-adds in registers (FMA),
and the better of NumPy's and torch's products of matrices (BLAS), in the same rounds. A ratio is a peer's median over
depthgauge's. "chain" is written by hand in torch. JAX is vmap(jacfwd) jitted, warm, its compile time apart. Error: the
largest of a few examples, in Frobenius norm, relative to a chain in float64."""


class Contender(Protocol):
    """One way to compute the Jacobians of a problem."""

    compile_seconds: float | None
    steps: dict[str, Callable[[], Any]]  # by what sets them apart; a trial keeps the fastest

    def arrays(self, result: Any) -> Array:
        """Return what a step returned as an array of shape (B, d, d)."""


class Depthgauge:
    """The native backend."""

    compile_seconds: float | None = None

    def __init__(self, problem: Problem) -> None:
        weights = dg.Weights(problem.up, problem.down)
        self.steps: dict[str, Callable[[], Any]] = {
            f"threads {problem.threads}": lambda: dg.jacobian(
                problem.block, weights, problem.x, backend="native", threads=problem.threads
            )
        }

    def arrays(self, result: Any) -> Array:
        return np.asarray(result)


def _jacrev(problem: Problem) -> Contender:
    return importlib.import_module("comparison.torch_jacobian").TorchJacrev(problem)  # type: ignore[no-any-return]


def _chain(problem: Problem) -> Contender:
    return importlib.import_module("comparison.torch_jacobian").TorchChain(problem)  # type: ignore[no-any-return]


def _jax(problem: Problem) -> Contender:
    return importlib.import_module("comparison.jax_jacobian").JaxJacobian(problem)  # type: ignore[no-any-return]


CONTENDERS: dict[str, Callable[[Problem], Contender]] = {
    OURS: Depthgauge,
    "jacrev": _jacrev,
    "chain": _chain,
    "JAX": _jax,
}


def add_parser(commands: Any) -> None:
    """Add the subcommand to `commands`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "jacobian",
        help="whole Jacobians of a residual stack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shapes", nargs="+", type=_shape, default=list(SHAPES), metavar="L,d,m")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--activations", nargs="+", choices=list(INITS), default=list(INITS))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="fastest time of a batch (default 1)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything, every time included")
    parser.add_argument("--quick", action="store_true", help="one small shape, 2 rounds: does everything run?")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison and print it."""
    if arguments.quick:
        arguments.shapes, arguments.seconds, arguments.repeats = [(12, 64, 64)], 0.02, 2
    record = _compare_all(arguments)
    print(_report(record))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1))
    return 0


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(int(part) for part in text.split(","))
    if len(shape) != 3 or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"takes three positive integers, as 48,256,256; got {text!r}")
    return shape


def _compare_all(arguments: argparse.Namespace) -> dict[str, Any]:
    # JAX has no option for the number of its threads; it takes the CPUs it may use.
    cpus = machine.pin_one_cpu_a_core(THREADS)
    absent: dict[str, str] = {}
    sticks = {dtype: yardsticks.both(dtype, THREADS) for dtype in arguments.dtypes}
    problems = []
    for shape in arguments.shapes:
        for dtype in arguments.dtypes:
            for activation in arguments.activations:
                print(f"{dtype}, {activation}, (L, d, m) = {shape}", file=sys.stderr, flush=True)
                problems.append(_compare(shape, dtype, activation, arguments, absent, sticks[dtype]))
    return {
        "machine": machine.machine_record(),
        "cpus": cpus,
        "blas": machine.blas_record(),
        "absent": absent,
        "problems": problems,
    }


def _compare(
    shape: tuple[int, int, int],
    dtype: str,
    activation: str,
    arguments: argparse.Namespace,
    absent: dict[str, str],
    sticks: Mapping[str, yardsticks.Yardstick],
) -> dict[str, Any]:
    """Time all contenders on one problem: a trial first, to size the batch and choose the settings of the peers."""
    depth, width, hidden = shape
    flops = 4 * depth * width**2 * hidden
    (seconds,) = time_in_turns({"": sticks["gemm"].step}, repeats=3, seconds=0.0).values()
    gflops = sticks["gemm"].gflops(seconds)
    trial = _problem(shape, dtype, activation, max(CHECKED, round(arguments.seconds / 8 * gflops * 1e9 / flops)))
    entries = _entries(trial, arguments.contenders, absent)
    errors, hopeful = _check(trial, entries)
    trials = time_in_turns(hopeful, repeats=2, seconds=0.0, warmups=0)
    best = {key: min(seconds) for key, seconds in trials.items()}
    settings = {name: min((best[key], key[1]) for key in best if key[0] == name)[1] for name in entries}
    count = max(CHECKED, round(arguments.seconds * len(trial.x) / min(best.values())))
    entries = _entries(_problem(shape, dtype, activation, count), list(entries), absent)
    times = time_in_turns(
        {(name, ""): entry.steps[settings[name]] for name, entry in entries.items()} | yardsticks.steps(sticks),
        repeats=arguments.repeats,
        seconds=0.0,
        warmups=1,
    )
    return {
        "shape": shape,
        "dtype": dtype,
        "activation": activation,
        "examples": count,
        "flops": flops * count,
        "peaks": yardsticks.peaks(sticks, times),
        "contenders": {
            name: {
                "seconds": times[name, ""],
                "median": statistics.median(times[name, ""]),
                "setting": settings[name],
                "compile_seconds": entry.compile_seconds,
                "error": errors[name],
            }
            for name, entry in entries.items()
        },
    }


def _problem(shape: tuple[int, int, int], dtype: str, activation: str, count: int) -> Problem:
    return make_problem((*shape, count), dtype, activation, THREADS, init=INITS[activation])


def _entries(problem: Problem, names: list[str], absent: dict[str, str]) -> dict[str, Contender]:
    entries = {}
    for name in names:
        try:
            entries[name] = CONTENDERS[name](problem)
        except ImportError as error:
            absent[name] = str(error)
    return entries


def _check(
    problem: Problem, entries: Mapping[str, Contender]
) -> tuple[dict[str, float], dict[tuple[str, str], Callable[[], Any]]]:
    """Return the largest error of each contender over its settings, and the steps that are not hopelessly slow.

    Stop if one computes something else.
    """
    truth = reference(problem)
    norms = np.linalg.norm(truth, axis=(1, 2))
    errors: dict[str, float] = {}
    hopeful: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, entry in entries.items():
        seconds = {}
        for setting, step in entry.steps.items():
            start = time.perf_counter()
            result = step()
            seconds[setting] = time.perf_counter() - start
            found = entry.arrays(result)
            if found.shape != (len(problem.x), *truth.shape[1:]):
                raise SystemExit(f"{name} ({setting}) returns shape {found.shape}")
            error = float(np.max(np.linalg.norm(found[:CHECKED] - truth, axis=(1, 2)) / norms))
            if not error < TOLERANCE[problem.x.dtype.name]:
                raise SystemExit(f"{name} ({setting}) is off by {error:.1e} on {problem.x.dtype} {problem.shape}")
            errors[name] = max(error, errors.get(name, 0.0))
        # A first call is slow, but not that slow.
        likely = (setting for setting in seconds if seconds[setting] < 3 * min(seconds.values()))
        hopeful |= {(name, setting): entry.steps[setting] for setting in likely}
    return errors, hopeful


def reference(problem: Problem) -> Array:
    """Return the Jacobians of the first examples, a chain of products in float64, shape (CHECKED, d, d)."""
    jacobians = []
    for x in problem.x[:CHECKED].astype(np.float64):
        state, jacobian = x, np.eye(len(x))
        for up, down in zip(problem.up.astype(np.float64), problem.down.astype(np.float64), strict=True):
            root = math.sqrt(np.mean(state * state) + EPS)
            u = state / root
            value, slope = activate(u @ up, problem.activation)
            normed = (jacobian - np.outer(u, u @ jacobian) / len(x)) / root
            jacobian = jacobian + problem.branch_scale * (down.T @ (slope[:, None] * (up.T @ normed)))
            state = state + problem.branch_scale * (value @ down)
        jacobians.append(jacobian)
    return np.stack(jacobians)


def _report(record: dict[str, Any]) -> str:
    problems = record["problems"]
    names = list(dict.fromkeys(name for problem in problems for name in problem["contenders"]))
    peers = [name for name in names if name != OURS]
    lines = [NOTES, "", *machine_lines(record["machine"])]
    lines.append(f"CPUs        {record['cpus'] or 'not pinned'}; {'; '.join(record['blas'])}")
    lines += [f"{name} is absent: {reason}" for name, reason in record["absent"].items()]
    heading = ["L,d,m", "dtype", "phi", "B", *(f"{name} ms" for name in names), "FMA GF/s", "of FMA", "of BLAS"]
    heading += [text for name in peers for text in (f"{name} ratio", "bar")]
    lines += ["", *aligned([heading, *(_times(p, names, peers) for p in problems)], left=(0, 1, 2))]
    heading = ["L,d,m", "dtype", "phi", *(f"{name} GF/s" for name in names), *(f"{name} error" for name in names)]
    heading += ["JAX compile s", *(f"{name} has" for name in peers)]
    left = (0, 1, 2, *range(len(heading) - len(peers), len(heading)))
    lines += ["", *aligned([heading, *(_details(problem, names, peers) for problem in problems)], left=left)]
    return "\n".join(lines)


def _title(problem: dict[str, Any]) -> list[str]:
    return [",".join(map(str, problem["shape"])), problem["dtype"], problem["activation"]]


def _times(problem: dict[str, Any], names: list[str], peers: list[str]) -> list[str]:
    entries, peak = problem["contenders"], problem["peaks"]
    medians = {name: entries.get(name, {}).get("median") for name in [OURS, *names]}
    speed = quotient(problem["flops"] / 1e9, medians[OURS])
    bars = BARS.get((problem["activation"], problem["shape"][1]), {})
    row = [*_title(problem), str(problem["examples"])]
    row += [number(quotient(medians[name], 1e-3), ".0f") for name in names]
    row.append(number(peak["fma"], ".0f"))
    row += [number(quotient(speed, peak[kind]), ".2f") for kind in ("fma", "gemm")]
    for name in peers:
        ratio = quotient(medians[name], medians[OURS])
        row += [number(ratio, ".2f"), _verdict(ratio, bars.get(name))]
    return row


def _verdict(ratio: float | None, bar: float | None) -> str:
    if bar is None:
        return ""
    if ratio is None:
        return str(bar)
    return f"{bar} {'met' if ratio >= bar else 'missed'}"


def _details(problem: dict[str, Any], names: list[str], peers: list[str]) -> list[str]:
    entries = problem["contenders"]
    row = _title(problem)
    row += [number(quotient(problem["flops"] / 1e9, entries.get(name, {}).get("median")), ".0f") for name in names]
    row += [number(entries.get(name, {}).get("error"), ".0e") for name in names]
    row.append(number(entries.get("JAX", {}).get("compile_seconds"), ".2f"))
    return row + [entries.get(name, {}).get("setting", "") for name in peers]
