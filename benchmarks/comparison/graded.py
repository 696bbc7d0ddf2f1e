"""``compare.py graded``: log singular values of long products against multiplying out, then an SVD.

What NumPy does here is less: it keeps the values within 1e-16 of the largest, and
the table says how many those are.  A library reads its thread count when it
starts, so each count is a child process of its own; one thread takes one product,
more take a batch.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import depthgauge as dg
from comparison.timing import time_in_turns
from depthgauge.cli.terminal import aligned

Array = npt.NDArray[Any]

BATCH = 8
# A value of the product that is wrong by more than this factor is lost.
LOST = 1e-3


def _gaussian(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    scaled: Array = rng.standard_normal(shape) / np.sqrt(shape[-1])
    return scaled


def _shuffled(rng: np.random.Generator, values: Array, shape: tuple[int, ...]) -> Array:
    """Return `values` in an order of its own for each factor, shape (..., d)."""
    return rng.permuted(np.broadcast_to(values, (*shape[:-2], len(values))), axis=-1)


def _graded_once(rng: np.random.Generator, shape: tuple[int, ...], axis: int) -> Array:
    factors = _gaussian(rng, shape)
    middle = factors[..., shape[-3] // 2, :, :]
    middle *= np.expand_dims(_shuffled(rng, 10.0 ** -np.arange(shape[-1]), middle.shape), axis)
    return factors


def _ill_scaled(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    scales = 10.0 ** (-0.5 * np.arange(shape[-1]))
    rows, columns = (_shuffled(rng, scales, shape) for _ in range(2))
    return rows[..., :, None] * _gaussian(rng, shape) * columns[..., None, :]


def _masked(rng: np.random.Generator, shape: tuple[int, ...], live: float, slope: float) -> Array:
    mask = np.where(rng.random((*shape[:-2], 1, shape[-1])) < live, 1.0, slope)
    masked: Array = _gaussian(rng, shape) * mask
    return masked


KINDS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "dense": _gaussian,
    "relu": lambda rng, shape: _masked(rng, shape, 0.7, 0.0),
    "leaky": lambda rng, shape: _masked(rng, shape, 0.5, 0.01),
    "residual": lambda rng, shape: np.eye(shape[-1]) + 0.3 * _gaussian(rng, shape),
    "row-graded": lambda rng, shape: _graded_once(rng, shape, -1),
    "column-graded": lambda rng, shape: _graded_once(rng, shape, -2),
    "ill-scaled": _ill_scaled,
}


def add_parser(commands: Any) -> None:
    """Add the subcommand to `commands`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "graded",
        help="log singular values of products of many factors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[16, 24, 64, 128], metavar="D")
    parser.add_argument("--depth", type=int, default=96, metavar="L")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds at least (default 7)")
    parser.add_argument("--seconds", type=float, default=0.5, metavar="S", help="time rounds for S seconds at least")
    parser.add_argument(
        "--accuracy", action="store_true", help="errors against exact arithmetic instead, 24 wide at most"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything, every time included")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison and print it."""
    if arguments.child is not None:
        arguments.child.write_text(json.dumps(_child(arguments)))
        return 0
    if arguments.accuracy:
        record = _accuracy(arguments)
        heading = ["kind", "d", "L", "spread", "finite", "relative error", "error of the log", "kept by NumPy"]
        keys = ["kind", "width", "depth", "spread", "finite", "relative", "absolute", "kept"]
    else:
        record = [row for threads in arguments.threads for row in _start_child(arguments, threads)]
        heading = ["kind", "d", "L", "products", "threads", "depthgauge ms", "NumPy ms", "times NumPy", "kept by NumPy"]
        keys = ["kind", "width", "depth", "products", "threads", "ours", "numpy", "ratio", "kept"]
    print("\n".join(aligned([heading, *([_text(row[key]) for key in keys] for row in record)], left=(0,))))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1))
    return 0


def _text(value: Any) -> str:
    return format(value, ".2e" if value and abs(value) < 0.01 else ".2f") if isinstance(value, float) else str(value)


def _start_child(arguments: argparse.Namespace, threads: int) -> Any:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, sys.argv[0], "graded", "--child", str(result), "--threads", str(threads)]
        command += ["--kinds", *arguments.kinds, "--sizes", *map(str, arguments.sizes)]
        command += ["--depth", str(arguments.depth), "--repeats", str(arguments.repeats)]
        command += ["--seconds", str(arguments.seconds)]
        subprocess.run(command, env=environment, check=True)
        return json.loads(result.read_text())


def _child(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    (threads,) = arguments.threads
    products = 1 if threads == 1 else BATCH
    rows = []
    for width in arguments.sizes:
        problems = {kind: _factors(kind, products, arguments.depth, width) for kind in arguments.kinds}
        steps: dict[tuple[str, str], Callable[[], object]] = {}
        for kind, factors in problems.items():
            steps[kind, "ours"] = functools.partial(dg.log_singular_values, factors, threads=threads)
            steps[kind, "numpy"] = functools.partial(_multiplied_out, factors)
        times = time_in_turns(steps, repeats=arguments.repeats, seconds=arguments.seconds)
        for kind, factors in problems.items():
            ours, numpy = (statistics.median(times[kind, name]) * 1e3 for name in ("ours", "numpy"))
            entry = {"kind": kind, "width": width, "depth": arguments.depth, "products": products, "threads": threads}
            entry |= {"ours": ours, "numpy": numpy, "ratio": ours / numpy, "kept": _kept(factors)}
            entry |= {f"{name}_seconds": times[kind, name] for name in ("ours", "numpy")}
            rows.append(entry)
    return rows


def _accuracy(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    exact: Any = importlib.import_module("exact_products")
    rows = []
    for width in (width for width in arguments.sizes if width <= 24):
        for kind in arguments.kinds:
            factors = _factors(kind, 1, arguments.depth, width)
            got = dg.log_singular_values(factors)[0]
            finite = np.isfinite(got)
            spread = float(np.ptp(got[finite])) / np.log(10)
            want = exact.exact_log_singular_values(list(factors[0]), spread)
            if not np.array_equal(np.isfinite(want), finite):
                raise SystemExit(f"the rank is wrong: {kind}, d = {width}")
            error = np.abs(got[finite] - want[finite])
            entry = {"kind": kind, "width": width, "depth": arguments.depth, "spread": f"1e{spread:.0f}"}
            entry |= {"finite": int(np.sum(finite)), "absolute": float(np.max(error))}
            entry |= {"relative": float(np.max(error / np.abs(want[finite]))), "kept": _kept(factors)}
            rows.append(entry)
    return rows


def _factors(kind: str, products: int, depth: int, width: int) -> Array:
    rng = np.random.default_rng([width, depth, *kind.encode()])
    return KINDS[kind](rng, (products, depth, width, width))


def _multiplied_out(factors: Array) -> Array:
    product = factors[..., 0, :, :]
    for layer in range(1, factors.shape[-3]):
        product = factors[..., layer, :, :] @ product
    return np.linalg.svd(product, compute_uv=False)


def _kept(factors: Array) -> str:
    """Return how many values of the first product NumPy gets right, of those that are not zero."""
    right = dg.log_singular_values(factors[0])
    finite = np.isfinite(right)
    with np.errstate(divide="ignore"):
        kept = np.abs(np.log(_multiplied_out(factors[0]))[finite] - right[finite]) < LOST
    return f"{np.sum(kept)} of {np.sum(finite)}"
