"""Plots, with matplotlib; an optional extra, imported only when a plot is drawn."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from depthgauge.studies.ablation import TransportAblation, log10
from depthgauge.studies.decoder import BAND, Commission

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")

CAPTION = (
    "Measured at initialization: a commissioning check of how signal and gradient pass through the stack, "
    "not a proof that it trains."
)

# Decades either side of 1 in the lower row, where one exploding stack would flatten all the others.
CLOSE_UP = 2.0

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

RULE_STYLES = dict(zip(("fixup", "gpt2", "zero", "depth", "none"), (*STYLES[:3], *STYLES[4:]), strict=True))


def require_matplotlib() -> None:
    """Raise ImportError that says what to install if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("plots need matplotlib, which is not installed; try: pip install 'depthgauge[plot]'")


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


def save_transport(ablation: TransportAblation, path: str | os.PathLike[str]) -> None:
    """Write `transport_figure` to `path`, as PNG, PDF or SVG by its suffix.

    Raises
    ------
    ValueError
        If the suffix is none of ``.png``, ``.pdf`` and ``.svg``.
    ImportError
        If matplotlib is not installed.
    """
    save(transport_figure(ablation), path)


def decoder_figure(runs: Mapping[str, Commission]) -> Figure:
    """Draw both curves of decoder commissions against the residual site, with the band: one row a commission.

    Parameters
    ----------
    runs : mapping of str to Commission
        Results of `depthgauge.studies.decoder.commission`, by their titles.

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

    # Margins in inches, so that they stay as they are when rows are added.
    height = 2.1 + 2.6 * len(runs)
    figure = Figure(figsize=(9.0, height))
    grid = figure.subplots(len(runs), 2, squeeze=False)
    figure.subplots_adjust(left=0.09, right=0.985, top=1 - 0.45 / height, bottom=1.35 / height, wspace=0.22, hspace=0.5)
    for (title, run), row in zip(runs.items(), grid, strict=True):
        for rule, observation in run.observations.items():
            style = RULE_STYLES[rule]
            line = {**style, "label": rule, "linewidth": 1.5, "markersize": 4, "markevery": run.config.sites // 12 + 1}
            row[0].plot(observation.activation_ratio, **line)
            row[1].plot(observation.adjoint_ratio, **line)
        row[0].set_ylabel("state RMS to input's")
        row[1].set_ylabel("gradient RMS to last site's")
        row[0].set_title(f"{title}: signal, forward \N{RIGHTWARDS ARROW}", fontsize="medium")
        row[1].set_title("\N{LEFTWARDS ARROW} Gradient, backward", fontsize="medium")
        for axes in row:
            axes.set_yscale("log")
            axes.axhspan(*BAND, color="0.93", zorder=0, label=f"band [{BAND[0]:g}, {BAND[1]:g}]")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.margins(x=0.02)
            axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("residual site (two a block)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 0.3 / height), ncols=7, frameon=False)
    figure.text(0.5, 0.15 / height, CAPTION, ha="center", fontsize=9, fontstyle="italic")
    return figure


def save_decoder(runs: Mapping[str, Commission], path: str | os.PathLike[str]) -> None:
    """Write `decoder_figure` to `path`, as PNG, PDF or SVG by its suffix; errors as for `save_transport`."""
    save(decoder_figure(runs), path)


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to `path`, as PNG, PDF or SVG by its suffix; errors as for `save_transport`."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"path={os.fspath(path)!r} has no suffix of a plot; it takes {', '.join(SUFFIXES)}")
    figure.savefig(path, format=suffix[1:], dpi=200)
