"""What the commands share: reading their options, and printing tables and JSON."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from depthgauge import plots
from depthgauge.backends import BACKENDS

CAVEAT = """\
A measurement at initialization is a commissioning check: it shows whether a signal
and a gradient get through the stack before training starts. It does not show that
the network trains, or how accurate it becomes."""


def integer(least: int) -> Callable[[str], int]:
    """Return a parser of integers of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"takes an integer of at least {least}, got {text!r}")
        return value

    return parse


def plot_path(text: str) -> Path:
    """Refuse before the computation what could not be written after it."""
    path = Path(text)
    if path.suffix.lower() not in plots.SUFFIXES:
        raise argparse.ArgumentTypeError(f"takes a file name that ends in {', '.join(plots.SUFFIXES)}, got {text!r}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"takes the name of a file, but {text!r} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r} to write {path.name!r} in")
    return path


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that measures something: what to write, and what computes."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--plot", type=plot_path, metavar="FILE", help="also write a plot; FILE ends in .png, .pdf or .svg"
    )
    parser.add_argument("--backend", choices=BACKENDS, help="what computes (default DEPTHGAUGE_BACKEND, or native)")
    parser.add_argument(
        "--threads",
        type=integer(1),
        metavar="N",
        help="threads (default DEPTHGAUGE_NUM_THREADS, or the CPUs usable here)",
    )


def three_digits(value: float) -> str:
    """Return `value` to three significant digits, trailing zeros kept: 0.0250, 61.4, 1.52e14."""
    if not math.isfinite(value):
        return str(value)
    mantissa, _, exponent = f"{value:#.3g}".partition("e")
    return mantissa.rstrip(".") + (f"e{int(exponent)}" if exponent else "")


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> Iterator[str]:
    """Yield `rows` as lines of aligned columns, a rule below the first; columns not in `left` are set right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = (
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
        if number == 0:
            yield "  ".join("-" * width for width in widths)


def to_json(value: Any) -> str:
    """Return plain data as JSON text."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return `value` with None for inf and nan, which JSON has no words for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
