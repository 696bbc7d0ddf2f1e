"""What all plots share: colors, the caption, and how they are saved; matplotlib is imported only when one is drawn."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")

CAPTION = (
    "Measured at initialization: a commissioning check of how signal and gradient pass through the stack, "
    "not a proof that it trains."
)

# Okabe and Ito's colors, which stay apart under the common forms of color blindness; dashes and
# markers keep the lines apart in gray.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#CC79A7", "linestyle": "--", "marker": "v"},
    {"color": "#E69F00", "linestyle": "-.", "marker": "s"},
    {"color": "#D55E00", "linestyle": "-", "marker": "^"},
    {"color": "#56B4E9", "linestyle": "-", "marker": "D"},
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#000000", "linestyle": ":", "marker": "x"},
)


def require_matplotlib() -> None:
    """Raise ImportError that says what to install if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("plots need matplotlib, which is not installed; try: pip install 'depthgauge[plot]'")


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to `path`, as PNG, PDF or SVG by its suffix.

    Raises
    ------
    ValueError
        If the suffix is none of ``.png``, ``.pdf`` and ``.svg``.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"path={os.fspath(path)!r} has no suffix of a plot; it takes {', '.join(SUFFIXES)}")
    figure.savefig(path, format=suffix[1:], dpi=200)
