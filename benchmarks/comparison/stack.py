"""``compare.py stack``: the fused block against NumPy, torch and JAX.

A library reads its thread count when it starts, so each count is a child
process of its own.  Within a child all contenders run in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from comparison import machine, report, yardsticks
from comparison.contenders import CONTENDERS, Contender
from comparison.problems import SHAPES, Problem, make_problem, reference, relative_error
from comparison.timing import time_in_turns

DTYPES = ("float32", "float64")
ACTIVATIONS = ("relu", "gelu")
# A float32 ReLU whose argument rounds across 0 takes the other branch; a handful do, and each shifts the
# gradient of its example. Beyond this a contender computes something else.
TOLERANCE = {"float32": 5e-3, "float64": 1e-9}


def add_parser(commands: Any) -> None:
    """Add the subcommand to `commands`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "stack",
        help="forward + state VJP, and VJP with weight gradients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shapes", nargs="+", type=_shape, default=list(SHAPES), metavar="L,d,m,B")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=list(ACTIVATIONS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds at least (default 7)")
    parser.add_argument(
        "--seconds", type=float, default=4.0, metavar="S", help="time rounds for S seconds at least (default 4)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything, every time included")
    parser.add_argument("--quick", action="store_true", help="one small shape, 3 rounds: does everything run?")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison and print it."""
    if arguments.quick:
        arguments.shapes, arguments.repeats, arguments.seconds = [(12, 64, 64, 128)], 3, 0.0
    if arguments.child is not None:
        arguments.child.write_text(json.dumps(_child(arguments)))
        return 0
    children = [_start_child(arguments, threads) for threads in arguments.threads]
    record = {"machine": machine.machine_record(), "runs": children}
    print(report.stack_report(record))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1))
    return 0


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(int(part) for part in text.split(","))
    if len(shape) != 4 or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"takes four positive integers, as 96,64,64,128; got {text!r}")
    return shape


def _start_child(arguments: argparse.Namespace, threads: int) -> Any:
    count = str(threads)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "JAX_PLATFORMS": "cpu",
    }
    if threads == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flags}".strip()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, sys.argv[0], "stack", "--child", str(result), "--threads", count]
        command += ["--shapes", *(",".join(map(str, shape)) for shape in arguments.shapes)]
        command += ["--dtypes", *arguments.dtypes, "--activations", *arguments.activations]
        command += ["--contenders", *arguments.contenders]
        command += ["--repeats", str(arguments.repeats), "--seconds", str(arguments.seconds)]
        subprocess.run(command, env=environment, check=True)
        return json.loads(result.read_text())


def _child(arguments: argparse.Namespace) -> dict[str, Any]:
    (threads,) = arguments.threads
    # JAX has no option for the number of its threads; it takes the CPUs it may use.
    cpus = machine.pin_one_cpu_a_core(threads)
    absent: dict[str, str] = {}
    sticks = {dtype: yardsticks.both(dtype, threads) for dtype in arguments.dtypes}
    problems = []
    for shape in arguments.shapes:
        for dtype in arguments.dtypes:
            print(f"threads {threads}, {dtype}, (L, d, m, B) = {shape}", file=sys.stderr, flush=True)
            problems += _compare(shape, dtype, threads, arguments, absent, sticks[dtype])
    return {
        "threads": threads,
        "cpus": cpus,
        "blas": machine.blas_record(),
        "absent": absent,
        "problems": problems,
    }


def _compare(
    shape: tuple[int, int, int, int],
    dtype: str,
    threads: int,
    arguments: argparse.Namespace,
    absent: dict[str, str],
    sticks: Mapping[str, yardsticks.Yardstick],
) -> list[dict[str, Any]]:
    """Time all contenders on both activations of one shape and dtype, in the same turns."""
    problems = {activation: make_problem(shape, dtype, activation, threads) for activation in arguments.activations}
    entries: dict[tuple[str, str], Contender] = {}
    for activation, problem in problems.items():
        for name in arguments.contenders:
            try:
                entries[activation, name] = CONTENDERS[name](problem)
            except ImportError as error:
                absent[name] = str(error)
    errors = _errors(problems, entries)
    _agree_on_weights(dtype, entries)
    options = {"repeats": arguments.repeats, "seconds": arguments.seconds}
    limits = yardsticks.steps(sticks)
    times = time_in_turns({key: entry.step for key, entry in entries.items()} | limits, **options)
    weight_times = time_in_turns({key: entry.weight_step for key, entry in entries.items()} | limits, **options)
    return [
        {
            "shape": shape,
            "dtype": dtype,
            "activation": activation,
            "flops": problem.flops,
            "peaks": yardsticks.peaks(sticks, times),
            "weight_peaks": yardsticks.peaks(sticks, weight_times),
            "contenders": {
                name: {
                    "seconds": times[activation, name],
                    "median": statistics.median(times[activation, name]),
                    "weight_seconds": weight_times[activation, name],
                    "weight_median": statistics.median(weight_times[activation, name]),
                    "compile_seconds": entries[activation, name].compile_seconds,
                    "error": errors[activation, name],
                }
                for name in arguments.contenders
                if (activation, name) in entries
            },
        }
        for activation, problem in problems.items()
    ]


def _errors(
    problems: Mapping[str, Problem], entries: Mapping[tuple[str, str], Contender]
) -> dict[tuple[str, str], float]:
    """Return the error of each contender; stop if one does not compute the problem."""
    truths = {activation: reference(problem) for activation, problem in problems.items()}
    errors = {}
    for (activation, name), entry in entries.items():
        error = relative_error(entry.arrays(entry.step()), truths[activation])
        dtype = problems[activation].x.dtype.name
        if not error < TOLERANCE[dtype]:
            raise SystemExit(f"{name} is off by {error:.1e} on {dtype} {activation} {problems[activation].shape}")
        errors[activation, name] = error
    return errors


def _agree_on_weights(dtype: str, entries: Mapping[tuple[str, str], Contender]) -> None:
    """Stop if two contenders differ in their weight gradients."""
    first: dict[str, tuple[Any, Any]] = {}
    for (activation, name), entry in entries.items():
        got = entry.weight_arrays(entry.weight_step())
        if activation not in first:
            first[activation] = tuple(array.copy() for array in got)  # type: ignore[assignment]
        error = max(
            float(np.linalg.norm((one - other).ravel()) / np.linalg.norm(other.ravel()))
            for one, other in zip(got, first[activation], strict=True)
        )
        if not error < TOLERANCE[dtype]:
            raise SystemExit(f"the weight gradients of {name} are off by {error:.1e} on {dtype} {activation}")
