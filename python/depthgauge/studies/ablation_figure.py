"""The figure of the transport ablation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from depthgauge.plots import CAPTION, STYLES, require_matplotlib
from depthgauge.studies.ablation import TransportAblation, log10

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Decades either side of 1 in the lower row, where one exploding stack would flatten all the others.
CLOSE_UP = 2.0


def transport_figure(ablation: TransportAblation) -> Figure:
    """Draw both rivers of the transport ablation: log10 RMS of state and of gradient against depth.

    Parameters
    ----------
    ablation : TransportAblation
        The result of `depthgauge.studies.ablation.transport_ablation`.

    Returns
    -------
    matplotlib.figure.Figure
        A figure that pyplot does not know of; save it with its ``savefig``.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 7.4))
    grid = figure.subplots(2, 2, sharex=True, sharey="row")
    figure.subplots_adjust(left=0.08, right=0.985, top=0.905, bottom=0.185, wspace=0.22, hspace=0.12)
    for transport, style in zip(ablation.transports, STYLES, strict=True):
        depths = np.arange(transport.depth + 1)
        line = {
            **style,
            "linewidth": 1.5,
            "markersize": 4.5,
            "markevery": max(1, min(transport.depth // 2, ablation.depth // 8)),
        }
        label = f"{transport.configuration.name} ({transport.depth} blocks)"
        for row in grid:
            row[0].plot(depths, log10(transport.forward_rms), label=label, **line)
            row[1].plot(depths, log10(transport.gradient_rms), **line)
    _decorate(grid)
    figure.suptitle(
        f"Transport at initialization: width {ablation.width}, batch {ablation.batch}, seed {ablation.seed}", y=0.975
    )
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.045),
        ncols=3,
        fontsize=9,
        handlelength=3,
        frameon=False,
    )
    figure.text(0.5, 0.02, CAPTION, ha="center", fontsize=9, fontstyle="italic")
    return figure


def _decorate(grid: npt.NDArray[Any]) -> None:
    grid[0, 0].set_title("Signal, forward \N{RIGHTWARDS ARROW}", fontsize="medium")
    grid[0, 1].set_title("\N{LEFTWARDS ARROW} Gradient, backward", fontsize="medium")
    for row, scope in zip(grid, ("", ", close-up"), strict=True):
        row[0].set_ylabel(f"log$_{{10}}$ RMS of state{scope}")
        row[1].set_ylabel(f"log$_{{10}}$ RMS of gradient{scope}")
    for axes in grid[1]:
        axes.set_xlabel("depth (blocks passed)")
        axes.set_ylim(-CLOSE_UP, CLOSE_UP)
    for column in grid.T:
        column[0].figure.align_ylabels(column)
    for axes in grid.flat:
        axes.tick_params(labelleft=True)
        axes.grid(True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.margins(x=0.02)
        axes.spines[["top", "right"]].set_visible(False)
