"""The law of depth: rank against strength * sqrt(L), and the exponent of its contours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import depthgauge as dg
from depthgauge.studies.rank.figures import line, panels, sequence_color
from depthgauge.studies.rank.fits import contour_exponent
from depthgauge.studies.rank.intervals import Expected, Finding, Interval, mean_and_half
from depthgauge.studies.rank.networks import TITLES, generated, inputs, network
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACEMENTS = ("pre", "post", "output")
STRENGTHS = tuple(float(f"{strength:.3g}") for strength in np.geomspace(0.03, 4, 12))
QUICK_STRENGTHS = STRENGTHS[1::3]
LEVELS = (0.9, 0.8, 0.7, 0.6, 0.5)


def ranks(
    placement: str, width: int, strengths: tuple[float, ...], depths: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Return the effective rank, as a share of the width, of the Jacobian at one input: (strength, depth).

    Strength is beta * alpha^M, here with alpha = 1, which loses nothing: see the study ratio.
    """
    blocks = [network(placement, beta=strength) for strength in strengths]
    weights = generated(blocks[0], max(depths), width, seed)
    grid = dg.rank_grid(blocks, weights, inputs(seed, 1, width), depths=depths)
    return {"rank": (("strength", "depth"), grid.effective_rank[..., 0] / width)}


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    strengths = QUICK_STRENGTHS if quick else STRENGTHS
    return {"ranks": Part(cell=ranks, axes={"placement": PLACEMENTS}, whole={"strength": strengths, "depth": depths})}


def _findings(results: Results) -> Iterator[Finding]:
    rank = results["ranks"]["rank"]
    strengths, depths = rank["strength"].values, rank["depth"].values
    for placement in PLACEMENTS:
        exponents = {
            level: np.array(
                [
                    contour_exponent(strengths, depths, samples.transpose("strength", "depth"), level)
                    for samples in rank.sel(placement=placement).transpose("seed", ...)
                ]
            )
            for level in LEVELS
        }
        for level, samples in exponents.items():
            yield Finding(
                f"{TITLES[placement]}: exponent s of the contour at rank {level:g}",
                Interval.of(samples),
                Expected.between(-0.57, -0.46),
            )
        drift = exponents[LEVELS[-1]] - exponents[LEVELS[0]]
        yield Finding(f"{TITLES[placement]}: s at rank {LEVELS[-1]:g} minus s at {LEVELS[0]:g}", Interval.of(drift))
    end = rank.isel(strength=-1, depth=-1)
    bounds = {"pre": Expected.at_least(0.2), "post": Expected.at_most(0.05), "output": Expected.at_least(0.2)}
    for placement, bound in bounds.items():
        yield Finding(
            f"{TITLES[placement]}: rank at strength {strengths[-1]:g}, depth {depths[-1]}",
            Interval.of(end.sel(placement=placement)),
            bound,
        )


def _table(results: Results) -> list[list[str]]:
    mean, half = mean_and_half(results["ranks"]["rank"])
    rows = [["placement", "strength", *(f"L = {depth}" for depth in mean["depth"].values)]]
    for placement in PLACEMENTS:
        for strength in mean["strength"].values:
            at = {"placement": placement, "strength": strength}
            cells = zip(mean.sel(at).values, half.sel(at).values, strict=True)
            rows.append([TITLES[placement], f"{strength:g}", *(f"{m:.3f} ± {h:.3f}" for m, h in cells)])
    return rows


def _draw(results: Results, figure: Figure) -> None:
    rank = results["ranks"]["rank"]
    strengths, depths = rank["strength"].values, rank["depth"].values
    (row,) = panels(figure, len(PLACEMENTS), sharey=True)
    for placement, axes in zip(PLACEMENTS, row, strict=True):
        for number, depth in enumerate(depths):
            samples = rank.sel(placement=placement, depth=depth)
            color = sequence_color(number / max(len(depths) - 1, 1))
            line(axes, strengths * np.sqrt(depth), samples, f"L = {depth}", color=color, marker="o", markersize=3)
        axes.set_xscale("log")
        axes.set_title(TITLES[placement])
        axes.set_xlabel(r"$\beta\,\sqrt{L}$" if placement == "output" else r"$\beta\,\alpha^M \sqrt{L}$")
    row[0].set_ylabel("effective rank of the Jacobian / width")
    row[0].set_ylim(0, 1.02)
    row[-1].legend(frameon=False, fontsize="small")


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
