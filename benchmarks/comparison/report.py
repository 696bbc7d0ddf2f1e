"""Tables of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from depthgauge.cli.terminal import aligned

OURS = "depthgauge"

NOTES = """\
Block: mlp, pre-RMSNorm, branch_scale 1/sqrt(L), He weights; state gradients at every depth. Flops count the products
alone: 8·L·B·d·m for forward + state VJP, and 8·L·B·d·m for the VJP with weight gradients by itself, its forward made
before. depthgauge also computes every statistic. All contenders run in turns in one process a thread count, one call
each a round; ms are medians. So are the limits beside them: bare multiply-adds in registers (FMA), and the better of
NumPy's and torch's products of matrices (BLAS), on as many threads, in the same rounds. A ratio is a peer's median
over depthgauge's. Torch runs eager in inference mode with reverse mode written by hand; JAX is jit + scan, warm, its
compile time apart. Error: the larger of output and input gradient, in norm, relative to float64 (for float32) or to
long double on two examples (for float64)."""


def stack_report(record: dict[str, Any]) -> str:
    """Return the machine record and both tables as text."""
    lines = [NOTES, "", *machine_lines(record["machine"]), ""]
    for run in record["runs"]:
        lines += _surroundings(run)
    lines += ["", "Forward + state VJP", "", *_table(record["runs"], "", details=True)]
    lines += ["", "VJP with weight gradients", "", *_table(record["runs"], "weight_", details=False)]
    return "\n".join(lines)


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """Return the machine record as lines of text."""
    caches = ", ".join(f"{name} {size}" for name, size in machine["caches"].items())
    libraries = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    return [
        f"CPU         {machine['cpu']}, {machine['cpus_usable']} usable; {caches}",
        f"system      {machine['system']}, Python {machine['python']}",
        f"libraries   {libraries}",
        "build       " + ", ".join(f"{name}={value}" for name, value in machine["build_config"].items()),
    ]


def _surroundings(run: dict[str, Any]) -> list[str]:
    lines = [f"threads {run['threads']}   CPUs {run['cpus'] or 'not pinned'}; {'; '.join(run['blas'])}"]
    lines += [f"            {name} is absent: {reason}" for name, reason in run["absent"].items()]
    return lines


def _table(runs: Sequence[dict[str, Any]], part: str, *, details: bool) -> list[str]:
    names = list(dict.fromkeys(name for run in runs for p in run["problems"] for name in p["contenders"]))
    peers = [name for name in names if name != OURS]
    heading = ["L,d,m,B", "dtype", "phi", "threads"]
    heading += [f"{name} ms" for name in names]
    heading += ["FMA GF/s", "of FMA", "of BLAS"] + [f"{name} ratio" for name in peers] + ["gelu/relu"]
    if details:
        heading += ["JAX compile s"] + [f"{name} error" for name in names]
    rows = [_row(run, problem, names, peers, part, details=details) for run in runs for problem in run["problems"]]
    return list(aligned([heading, *rows], left=(0, 1, 2)))


def _row(
    run: dict[str, Any],
    problem: dict[str, Any],
    names: Sequence[str],
    peers: Sequence[str],
    part: str,
    *,
    details: bool,
) -> list[str]:
    entries, median, peak = problem["contenders"], f"{part}median", problem[f"{part}peaks"]
    ours = entries.get(OURS, {}).get(median)
    speed = problem["flops"] / ours / 1e9 if ours else None
    row = [",".join(map(str, problem["shape"])), problem["dtype"], problem["activation"], str(run["threads"])]
    row += [number(_scaled(entries.get(name, {}).get(median), 1e3), ".2f") for name in names]
    row.append(number(peak["fma"], ".0f"))
    row += [number(quotient(speed, peak[kind]), ".2f") for kind in ("fma", "gemm")]
    row += [number(quotient(entries.get(name, {}).get(median), ours), ".2f") for name in peers]
    row.append(number(quotient(ours, _of_relu(run, problem, median)), ".2f") if problem["activation"] == "gelu" else "")
    if details:
        row.append(number(entries.get("JAX", {}).get("compile_seconds"), ".2f"))
        row += [number(entries.get(name, {}).get("error"), ".0e") for name in names]
    return row


def _of_relu(run: dict[str, Any], problem: dict[str, Any], median: str) -> float | None:
    """Return our time on the ReLU problem of the same shape and dtype, which ran in the same turns."""
    for other in run["problems"]:
        if other["activation"] == "relu" and all(other[key] == problem[key] for key in ("shape", "dtype")):
            value: float | None = other["contenders"].get(OURS, {}).get(median)
            return value
    return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def quotient(numerator: float | None, denominator: float | None) -> float | None:
    """Return a quotient, None where either is missing."""
    return None if numerator is None or not denominator else numerator / denominator


def number(value: float | None, form: str) -> str:
    """Return a number as text, a dash where it is missing."""
    return "-" if value is None else format(value, form)
