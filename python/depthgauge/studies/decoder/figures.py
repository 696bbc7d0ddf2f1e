"""The figure of decoder commissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from depthgauge.plots import CAPTION, STYLES, require_matplotlib
from depthgauge.studies.decoder.commissioning import Commission
from depthgauge.studies.decoder.observation import BAND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULE_STYLES = dict(zip(("fixup", "gpt2", "zero", "depth", "none"), (*STYLES[:3], *STYLES[4:]), strict=True))


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
