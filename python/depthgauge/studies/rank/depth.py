"""The law of depth: rank against strength * sqrt(L), and the exponent of its contours.

The law takes branches for uncorrelated.  With one matrix a branch, ReLU's outputs share a mean: behind a Pre-Norm
states then grow in proportion to depth, each branch counts for less, and contours hardly fall with depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import depthgauge as dg
from depthgauge.studies.rank.figures import line, panels, sequence_color, style
from depthgauge.studies.rank.fits import contour_exponents
from depthgauge.studies.rank.intervals import Expected, Finding, Interval, plus_minus
from depthgauge.studies.rank.networks import TITLES, generated, inputs, network
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLACEMENTS = ("pre", "post", "output")
STRENGTHS = tuple(float(f"{strength:.3g}") for strength in np.geomspace(0.03, 4, 9))
QUICK_STRENGTHS = STRENGTHS[::2]
PUBLISHED = (-0.57, -0.46)
LEVELS = (0.9, 0.8, 0.7, 0.6, 0.5)


def ranks(
    placement: str, matrices: int, width: int, strengths: tuple[float, ...], depths: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Return the effective rank, as a share of the width, of the Jacobian at one input: (strength, depth).

    Strength is beta * alpha^M, here with alpha = 1.  That loses nothing with Pre- and Post-Norm, see the study ratio;
    an Output-Norm takes alpha out of the branch, but for eps.
    """
    blocks = [network(placement, beta=strength, matrices=matrices) for strength in strengths]
    weights = generated(blocks[0], max(depths), width, seed)
    grid = dg.rank_grid(blocks, weights, inputs(seed, 1, width), depths=depths)
    return {"rank": (("strength", "depth"), grid.effective_rank[..., 0] / width)}


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    strengths = QUICK_STRENGTHS if quick else STRENGTHS
    whole = {"strength": strengths, "depth": depths}
    return {
        "ranks": Part(cell=ranks, axes={"placement": PLACEMENTS, "matrices": (2,)}, whole=whole),
        "one matrix": Part(cell=ranks, axes={"placement": PLACEMENTS[:2], "matrices": (1,)}, whole=whole),
    }


def _findings(results: Results) -> Iterator[Finding]:
    rank = results["ranks"]["rank"].isel(matrices=0)
    strengths, depths = rank["strength"].values, rank["depth"].values
    for placement in PLACEMENTS:
        exponents = {level: contour_exponents(rank.sel(placement=placement), level) for level in LEVELS}
        for level, samples in exponents.items():
            yield Finding(
                f"{TITLES[placement]}: exponent s of the contour at rank {level:g}",
                Interval.of(samples),
                Expected.between(*PUBLISHED),
            )
        drift = exponents[LEVELS[-1]] - exponents[LEVELS[0]]
        yield Finding(f"{TITLES[placement]}: s at rank {LEVELS[-1]:g} minus s at {LEVELS[0]:g}", Interval.of(drift))
    for placement in PLACEMENTS[:2]:
        one = results["one matrix"]["rank"].sel(placement=placement).isel(matrices=0)
        for level in LEVELS:
            name = f"{TITLES[placement]}, M = 1: exponent s of the contour at rank {level:g}"
            yield Finding(name, Interval.of(contour_exponents(one, level)))
    end = rank.isel(strength=-1, depth=-1)
    bounds = {"pre": Expected.at_least(0.2), "post": Expected.at_most(0.05), "output": Expected.at_least(0.2)}
    for placement, bound in bounds.items():
        yield Finding(
            f"{TITLES[placement]}: rank at strength {strengths[-1]:g}, depth {depths[-1]}",
            Interval.of(end.sel(placement=placement)),
            bound,
        )


def _table(results: Results) -> list[list[str]]:
    rank = results["ranks"]["rank"].isel(matrices=0)
    rows = [["placement", "strength", *(f"L = {depth}" for depth in rank["depth"].values)]]
    for placement in PLACEMENTS:
        for strength in rank["strength"].values:
            at = {"placement": placement, "strength": strength}
            rows.append([TITLES[placement], f"{strength:g}", *plus_minus(rank.sel(at))])
    return rows


def _draw(results: Results, figure: Figure) -> None:
    (upper, lower) = panels(figure, len(PLACEMENTS), 2)
    for placement, axes in zip(PLACEMENTS, upper, strict=True):
        _curves(axes, results["ranks"]["rank"].sel(placement=placement).isel(matrices=0))
        axes.set_title(f"{TITLES[placement]}, M = 2")
        axes.set_xlabel(r"$\beta\,\sqrt{L}$" if placement == "output" else r"$\beta\,\alpha^M \sqrt{L}$")
    for placement, axes in zip(PLACEMENTS[:2], lower, strict=False):
        _curves(axes, results["one matrix"]["rank"].sel(placement=placement).isel(matrices=0))
        axes.set_title(f"{TITLES[placement]}, M = 1")
        axes.set_xlabel(r"$\beta\,\alpha^M \sqrt{L}$")
    upper[-1].legend(frameon=False, fontsize="small")
    _draw_exponents(lower[-1], results)
    for row in (upper, lower):
        row[0].set_ylabel("effective rank of the Jacobian / width")


def _curves(axes: Axes, rank: xarray.DataArray) -> None:
    for number, depth in enumerate(rank["depth"].values):
        color = sequence_color(number / max(rank.sizes["depth"] - 1, 1))
        x = rank["strength"].values * np.sqrt(depth)
        line(axes, x, rank.sel(depth=depth), f"L = {depth}", color=color, marker="o", markersize=3)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)


def _draw_exponents(axes: Axes, results: Results) -> None:
    axes.axhspan(*PUBLISHED, color="0.9", zorder=0, label="published")
    shown = [("ranks", 2, placement) for placement in PLACEMENTS]
    shown += [("one matrix", 1, placement) for placement in PLACEMENTS[:2]]
    for number, (part, matrices, placement) in enumerate(shown):
        rank = results[part]["rank"].sel(placement=placement).isel(matrices=0)
        found = [Interval.of(contour_exponents(rank, level)) for level in LEVELS]
        halves = [interval.high - interval.mean for interval in found]
        # Side by side, for some lie on one another.
        at = np.array(LEVELS) + 0.008 * (number - (len(shown) - 1) / 2)
        look = style(number)
        axes.errorbar(
            at,
            [interval.mean for interval in found],
            halves,
            label=f"{TITLES[placement]}, M = {matrices}",
            color=look["color"],
            marker=look["marker"],
            markersize=4,
            linestyle="none",
            capsize=2,
        )
    axes.set_xlabel("effective rank / width of the contour")
    axes.set_ylabel(r"$s$ of the contour $\beta\,\alpha^M \propto L^s$")
    axes.set_title("Exponents of contours")
    axes.legend(frameon=False, fontsize="small")


DEPTH = Study(
    name="depth",
    question="Does rank depend on strength and depth through strength * sqrt(L) alone?",
    version=1,
    depths=(12, 24, 48, 96, 192, 384),
    quick_depths=(6, 12, 24, 48),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
)
