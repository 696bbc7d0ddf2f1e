"""``compare.py grid``: effective ranks of Jacobians over placements, weight scales, depths and seeds, against torch.

Every run is a child process of its own, so that its peak memory is its own.  Seconds leave out imports.  torch draws
other random numbers; `depthgauge` is checked against it on the same ones in float64 on a small grid.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import depthgauge as dg
from comparison import machine
from comparison.problems import EPS, Array
from comparison.report import OURS, machine_lines
from comparison.timing import time_in_turns
from comparison.yardsticks import multiply_adds
from depthgauge.cli.terminal import aligned

THREADS = 2
WIDTH = 256
PLACEMENTS = ("pre", "post")
CONTENDERS = (OURS, "torch", "torch apart")
SPEED_BAR = 3.0
MEMORY_BAR = 500.0
# Effective ranks on the same weights, in float64.
TOLERANCE = 1e-6

NOTES = f"""\
Block: mlp, ReLU, RMSNorm before the branch or after the sum, d = m = {WIDTH}, LeCun weights, one example, float32.
torch carries all placements and scales of a seed in one chain on shared weights, depths as prefixes, and takes svdvals;
"torch apart" gives each setting products of its own, without its dead units, and each thread some of the scales. Each
contender has two threads. s are medians, without imports. GF/s count the products of a dense chain."""


@dataclass(frozen=True)
class Grid:
    """The settings: every placement by every scale of the weights, to every depth, for every seed."""

    scales: tuple[float, ...]
    depths: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def blocks(self) -> list[dg.Block]:
        """The blocks, placement by placement."""
        return [
            dg.Block.placed(placement, weight_scale=scale, eps=EPS) for placement in PLACEMENTS for scale in self.scales
        ]

    @property
    def gflop(self) -> float:
        """Products of all chains."""
        return 4e-9 * max(self.depths) * WIDTH**3 * len(PLACEMENTS) * len(self.scales) * len(self.seeds)

    def input(self, dtype: str) -> Array:
        """Return the one example, shape (1, d)."""
        return np.random.default_rng(0).standard_normal((1, WIDTH)).astype(dtype)

    def weights(self, dtype: str) -> dg.GeneratedWeights:
        """Return the weights of all seeds."""
        return dg.GeneratedWeights(
            self.blocks[0], max(self.depths), WIDTH, seed=list(self.seeds), dtype=np.dtype(dtype)
        )


def add_parser(commands: Any) -> None:
    """Add the subcommand to `commands`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "grid",
        help="effective ranks of Jacobians over a grid of settings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--depths", nargs="+", type=int, default=[12, 24, 48, 96, 192, 384], metavar="L")
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="how many (default 4)")
    parser.add_argument("--scales", type=int, default=10, metavar="N", help="how many, from 0.1 to 3 (default 10)")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each, in turns (default 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything, every time included")
    parser.add_argument("--quick", action="store_true", help="a small grid, once: does everything run?")
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison and print it."""
    if arguments.quick:
        arguments.depths, arguments.seeds, arguments.scales, arguments.repeats = [4, 8], 2, 3, 1
    grid = Grid(
        tuple(np.geomspace(0.1, 3.0, arguments.scales).tolist()),
        tuple(arguments.depths),
        tuple(range(arguments.seeds)),
    )
    if arguments.child is not None:
        what, file = arguments.child
        Path(file).write_text(json.dumps(_child(what, grid)))
        return 0
    record = _compare(arguments, grid)
    print(_report(record, grid))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1))
    return 0


def _compare(arguments: argparse.Namespace, grid: Grid) -> dict[str, Any]:
    runs: dict[str, list[Any]] = {name: [] for name in arguments.contenders}
    absent: dict[str, str] = {}
    for _ in range(arguments.repeats):
        for name in [name for name in runs if name not in absent]:
            print(name, file=sys.stderr, flush=True)
            result = _start_child(arguments, name)
            if "absent" in result:
                absent[name] = result["absent"]
            else:
                runs[name].append(result)
    # Only then is there something to check, and to check it by.
    both = OURS in runs and len(runs) > 1 and not absent
    return {
        "machine": machine.machine_record(),
        "grid": {"scales": grid.scales, "depths": grid.depths, "seeds": grid.seeds},
        "absent": absent,
        "runs": {name: results for name, results in runs.items() if results},
        "fma_peak": _fma_peak(),
        "largest_error": _start_child(arguments, "check")["largest_error"] if both else None,
    }


def _start_child(arguments: argparse.Namespace, what: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, sys.argv[0], "grid", "--child", what, str(result)]
        if what == "check":
            command += ["--depths", "12", "24", "--seeds", "2"]
        else:
            command += ["--depths", *map(str, arguments.depths), "--seeds", str(arguments.seeds)]
        subprocess.run([*command, "--scales", str(arguments.scales)], check=True)
        return json.loads(result.read_text())


def _child(what: str, grid: Grid) -> dict[str, Any]:
    machine.pin_one_cpu_a_core(THREADS)
    if what == "check":
        return {"largest_error": _largest_error(grid)}
    torch_grid: Any = None
    if what != OURS:
        try:
            torch_grid = importlib.import_module("comparison.torch_grid")
        except ImportError as error:
            return {"absent": str(error)}
    x = grid.input("float32")
    baseline = machine.peak_megabytes()
    start = time.perf_counter()
    if what == OURS:
        ranks = _ours(grid, x)
    else:
        apart = what != "torch"
        ranks = torch_grid.grid_ranks(grid.scales, grid.depths, grid.seeds, x, THREADS, apart=apart)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "baseline_megabytes": baseline,
        "peak_megabytes": machine.peak_megabytes(),
        "effective_rank": ranks.tolist(),
    }


def _ours(grid: Grid, x: Array) -> Array:
    """Return effective ranks of shape (K, R, D)."""
    spread = dg.rank_grid(
        grid.blocks,
        grid.weights(x.dtype.name),
        x,
        depths=list(grid.depths),
        backend="native",
        threads=THREADS,
    )
    ranks: Array = spread.effective_rank[..., 0]
    return ranks


def _largest_error(grid: Grid) -> float:
    """Return the largest relative difference from torch on the same weights, in float64."""
    torch_grid: Any = importlib.import_module("comparison.torch_grid")
    x = grid.input("float64")
    arrays = dict(grid.weights("float64").materialize().items())
    ours = _ours(grid, x)
    return max(
        float(np.max(np.abs(ours[:, seed] / want - 1)))
        for seed in range(len(grid.seeds))
        for apart in (False, True)
        for draw in [torch_grid.given(arrays["up"][seed], arrays["down"][seed])]
        for want in [torch_grid.effective_ranks(draw, x, grid.scales, grid.depths, apart=apart)]
    )


def _fma_peak() -> float:
    limit = multiply_adds("float32", THREADS)
    return limit.gflops(time_in_turns({"": limit.step}, repeats=20, seconds=0.0)[""])


def _report(record: dict[str, Any], grid: Grid) -> str:
    runs = record["runs"]
    lines = [NOTES, "", *machine_lines(record["machine"])]
    lines.append(f"peak        float32: FMA {record['fma_peak']:.1f} GF/s")
    lines += [f"{name} is absent: {reason}" for name, reason in record["absent"].items()]
    lines += [
        "",
        f"{len(PLACEMENTS)} placements, {len(grid.scales)} scales from {min(grid.scales):g} to {max(grid.scales):g}, "
        f"depths {', '.join(map(str, grid.depths))}, {len(grid.seeds)} seeds",
        "",
    ]
    heading = ["", "s", "GF/s", "of FMA peak", "peak MB", "of which imports"]
    lines += aligned([heading, *(_row(name, runs[name], grid, record["fma_peak"]) for name in runs)], left=(0,))
    lines += ["", *_verdicts(record), ""]
    heading = ["", "scale", *(f"L = {depth}" for depth in grid.depths)]
    # Both ways in torch have the same weights.
    shown = list(runs)[:2]
    lines.append("Effective rank, mean over seeds: " + " | ".join(shown))
    lines += aligned([heading, *_means([runs[name][0] for name in shown], grid)], left=(0,))
    return "\n".join(lines)


def _median(runs: list[dict[str, Any]]) -> float:
    return float(statistics.median(result["seconds"] for result in runs))


def _row(name: str, runs: list[dict[str, Any]], grid: Grid, peak: float) -> list[str]:
    gflops = grid.gflop / _median(runs)
    row = [name, f"{_median(runs):.2f}", f"{gflops:.0f}", f"{gflops / peak:.2f}"]
    return row + [f"{max(result[f'{kind}_megabytes'] for result in runs):.0f}" for kind in ("peak", "baseline")]


def _verdicts(record: dict[str, Any]) -> list[str]:
    runs, lines = record["runs"], []
    if OURS in runs:
        memory = max(result["peak_megabytes"] for result in runs[OURS])
        lines.append(f"Peak memory {memory:.0f} MB: bar {MEMORY_BAR:.0f} {_met(memory < MEMORY_BAR)}.")
    for name in [name for name in runs if name != OURS and OURS in runs]:
        ratio = _median(runs[name]) / _median(runs[OURS])
        bar = f": bar {SPEED_BAR:g} {_met(ratio >= SPEED_BAR)}" if name == "torch" else ""
        lines.append(f"{ratio:.2f} times faster than {name}{bar}.")
    if record["largest_error"] is not None:
        error = record["largest_error"]
        lines.append(
            f"On the same weights in float64, effective ranks differ by {error:.0e} relative at most: "
            f"{'agreed' if error < TOLERANCE else 'NOT THE SAME'}."
        )
    if len(runs) > 1:
        first, second, *_ = runs
        lines.append(_statistics(*(np.array(runs[name][0]["effective_rank"]) for name in (first, second))))
    return lines


def _met(met: bool) -> str:
    return "met" if met else "missed"


def _statistics(one: Array, other: Array) -> str:
    """Compare means over seeds, in units of the standard error of their difference."""
    seeds = one.shape[1]
    if seeds < 2:
        return "One seed: nothing to compare means by."
    error = np.sqrt((one.var(1, ddof=1) + other.var(1, ddof=1)) / seeds)
    # Where a rank is full to rounding all seeds give the same, and nothing is left to compare.
    seen = error > 1e-5 * one.mean(1)
    t = (one.mean(1) - other.mean(1))[seen] / error[seen]
    freedom = 2 * (seeds - 1)
    # Of Student's t; infinite for two seeds.
    expected = f", of chance {(freedom / (freedom - 2)) ** 0.5:.2f}" if freedom > 2 else ""
    return (
        f"On weights of their own in float32, means over seeds differ by {np.sqrt(np.mean(t * t)):.2f} standard errors "
        f"in root mean square{expected}; {np.max(np.abs(t)):.1f} at most, over {t.size} settings."
    )


def _means(results: list[dict[str, Any]], grid: Grid) -> list[list[str]]:
    means = [np.mean(result["effective_rank"], axis=1) for result in results]
    names = [(placement, scale) for placement in PLACEMENTS for scale in grid.scales]
    return [
        [placement, f"{scale:.2f}", *(" | ".join(f"{value:.1f}" for value in cell) for cell in zip(*rows, strict=True))]
        for (placement, scale), *rows in zip(names, *means, strict=True)
    ]
