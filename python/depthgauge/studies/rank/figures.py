"""What the figures of all studies share: panels, lines with bands, legend and caption."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from depthgauge.plots import CAPTION, STYLES, require_matplotlib
from depthgauge.studies.rank.intervals import mean_and_half

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_WIDTH, PANEL_HEIGHT = 4.6, 3.7


def study_figure(draw: Callable[[Figure], None], question: str, size: str) -> Figure:
    """Return what a study draws, titled with its question, over its size and the caution of every measurement."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    draw(figure)
    figure.suptitle(_typeset(question), fontsize="large")
    bands = "bands are 95 % intervals of the mean over seeds."
    figure.supxlabel(f"{size}; {bands}\n{CAPTION}", fontsize=8, fontstyle="italic")
    return figure


def _typeset(text: str) -> str:
    """Return a question as it is printed on paper."""
    for plain, symbol in ((" * ", r" "), ("beta", r"$\beta$"), ("alpha^M", r"$\alpha^M$"), ("sqrt(L)", r"$\sqrt{L}$")):
        text = text.replace(plain, symbol)
    return text


def panels(figure: Figure, columns: int, rows: int = 1, **shared: Any) -> npt.NDArray[Any]:
    """Return a grid of axes (rows, columns) on a figure made large enough for them."""
    figure.set_size_inches(PANEL_WIDTH * columns, PANEL_HEIGHT * rows + 0.9)
    grid: npt.NDArray[Any] = figure.subplots(rows, columns, squeeze=False, **shared)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
    return grid


def style(number: int) -> dict[str, Any]:
    """Return color, dashes and marker of line `number`; colors repeat after six."""
    return STYLES[::-1][number % len(STYLES)]


def sequence_color(place: float) -> Any:
    """Return a color for `place` in an ordered family, 0 to 1: light to dark, so it stays ordered in gray, too."""
    from matplotlib import colormaps

    return colormaps["viridis_r"](0.08 + 0.92 * place)


def line(axes: Axes, x: npt.ArrayLike, samples: xarray.DataArray, label: str | None = None, **look: Any) -> None:
    """Draw the mean of samples (any one dim, and seed) over x, with the interval as a band."""
    mean, half = (np.asarray(part.values, np.float64) for part in mean_and_half(samples))
    x = np.asarray(x, np.float64)
    look = {"linewidth": 1.4, "markersize": 4, **look}
    (drawn,) = axes.plot(x, mean, label=label, **look)
    if np.any(np.isfinite(half)):
        axes.fill_between(x, mean - half, mean + half, color=drawn.get_color(), alpha=0.22, linewidth=0)


def depth_axis(axes: Axes, depths: npt.ArrayLike, label: str) -> None:
    """Make x logarithmic, ticked at the depths alone; every other one where there are many."""
    ticks = np.asarray(depths)[:: 1 + len(np.asarray(depths)) // 8]
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{depth:g}" for depth in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
