"""``compare.py spread --accuracy``: errors of singular values against one-sided Jacobi in more precision."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from comparison import machine
from comparison.report import machine_lines
from comparison.spread_peers import Array, depthgauge_step, numpy_step, torch_step
from depthgauge.cli.terminal import aligned

SIZES = (*range(1, 71), 96, 128, 200)
# Of errors over sqrt(d), in eps times the largest value.
BOUND = 8.0

NOTES = """\
Errors of singular values in eps of the dtype times the largest value of the same matrix, the largest over all values
and kinds of matrices; the truth is one-sided Jacobi in float64 for float32, in long double for float64."""


def accuracy_report(sizes: Sequence[int] | None, dtypes: Sequence[str]) -> tuple[str, dict[str, Any], bool]:
    """Return the comparison as text and as plain data, and whether depthgauge keeps to the bound."""
    truth = _load_truth()
    contenders: dict[str, Callable[[Array], Any]] = {"depthgauge": depthgauge_step, "NumPy": numpy_step}
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
        contenders["torch"] = torch_step
    errors: list[dict[str, Any]] = []
    for dtype in dtypes:
        for size in sizes or SIZES:
            print(f"{dtype}, d = {size}", file=sys.stderr, flush=True)
            kinds = truth.kinds_of_matrices(np.random.default_rng(size), size, size)
            a = np.stack(list(kinds.values())).astype(dtype)
            want = truth.exact_singular_values(a)
            for name, make in contenders.items():
                found = _errors(np.asarray(make(a)(1)), want)
                errors += [
                    {"dtype": dtype, "size": size, "contender": name, "kind": kind, "error": float(error)}
                    for kind, error in zip(kinds, found, strict=True)
                ]
    worst = {dtype: _worst_over_root(errors, dtype=dtype, contender="depthgauge") for dtype in dtypes}
    lines = [NOTES, "", *machine_lines(machine.machine_record()), "", *_by_size(errors, list(contenders))]
    lines += ["", "The largest error over sqrt(d), by kind", "", *_by_kind(errors, list(contenders)), ""]
    lines += [
        f"{dtype}: at most {value:.2f} sqrt(d) eps; the bound is {BOUND:g} sqrt(d) eps"
        for dtype, value in worst.items()
    ]
    return "\n".join(lines), {"errors": errors}, max(worst.values()) <= BOUND


def _load_truth() -> ModuleType:
    """Return the module of the tests that computes with more precision."""
    path = Path(__file__).parents[2] / "tests" / "exact_svd.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _errors(got: Array, want: Array) -> Array:
    largest = np.where(want[:, :1] > 0, want[:, :1], 1)
    error: Array = np.max(np.abs(got - want) / largest, axis=1) / np.finfo(got.dtype).eps
    return np.where(np.isnan(error), np.inf, error)


def _largest(errors: list[dict[str, Any]], **where: Any) -> dict[str, Any]:
    matching = [entry for entry in errors if all(entry[key] == value for key, value in where.items())]
    return max(matching, key=lambda entry: float(entry["error"]))


def _worst_over_root(errors: list[dict[str, Any]], **where: Any) -> float:
    return max(
        float(entry["error"]) / math.sqrt(entry["size"])
        for entry in errors
        if all(entry[key] == value for key, value in where.items())
    )


def _by_size(errors: list[dict[str, Any]], contenders: list[str]) -> list[str]:
    peers = contenders[1:]
    rows = [["d", "dtype", "depthgauge", "over sqrt(d)", "kind", *peers]]
    for dtype, size in dict.fromkeys((entry["dtype"], entry["size"]) for entry in errors):
        ours = _largest(errors, dtype=dtype, size=size, contender="depthgauge")
        row = [str(size), dtype, f"{ours['error']:.2f}", f"{ours['error'] / math.sqrt(size):.2f}", ours["kind"]]
        row += [f"{_largest(errors, dtype=dtype, size=size, contender=name)['error']:.2f}" for name in peers]
        rows.append(row)
    return list(aligned(rows, left=(1, 4)))


def _by_kind(errors: list[dict[str, Any]], contenders: list[str]) -> list[str]:
    rows = [["kind", "dtype", *contenders]]
    for kind, dtype in dict.fromkeys((entry["kind"], entry["dtype"]) for entry in errors):
        worst = (_worst_over_root(errors, kind=kind, dtype=dtype, contender=name) for name in contenders)
        rows.append([kind, dtype, *(f"{value:.2f}" for value in worst)])
    return list(aligned(rows, left=(0, 1)))
