"""What a skip path keeps of the rank, layer by layer, for several branch scales and hidden widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import depthgauge as dg
from depthgauge.studies.rank.figures import line, panels, style
from depthgauge.studies.rank.fits import crossing
from depthgauge.studies.rank.intervals import Finding, Interval, plus_minus
from depthgauge.studies.rank.networks import generated, inputs, network
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPANSIONS = (1, 2, 4)
BETAS = (0.1, 0.3, 1.0, 3.0)
PLAIN = "no skip"
# Below this share of the directions the Jacobian is called collapsed here.
COLLAPSED = 0.1


def ranks(expansion: int, width: int, skips: tuple[str, ...], layers: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return the effective rank, as a share of the width, after each layer: (skip, layer).

    `skips` are branch scales beside a skip path of 1, as text, or `PLAIN`, for branches in a row; Pre-RMSNorm and ReLU.
    """
    blocks = [
        network("pre", skip_scale=0.0) if skip == PLAIN else network("pre", beta=float(skip.split()[-1]))
        for skip in skips
    ]
    weights = generated(blocks[0], max(layers), width, seed, hidden=expansion * width)
    grid = dg.rank_grid(blocks, weights, inputs(seed, 1, width), depths=layers)
    return {"rank": (("skip", "layer"), grid.effective_rank[..., 0] / width)}


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    skips = (PLAIN, *(f"beta = {beta:g}" for beta in BETAS))
    return {
        "ranks": Part(
            cell=ranks, axes={"expansion": EXPANSIONS}, whole={"skip": skips, "layer": range(max(depths) + 1)}
        )
    }


def _findings(results: Results) -> Iterator[Finding]:
    rank = results["ranks"]["rank"]
    layers = rank["layer"].values
    for expansion in EXPANSIONS:
        plain = rank.sel(expansion=expansion, skip=PLAIN).transpose("seed", "layer").values
        passed = [crossing(layers, samples, COLLAPSED) for samples in plain]
        yield Finding(f"m = {expansion} d, no skip: layers to rank {COLLAPSED:g}", Interval.of(passed))
    for expansion in EXPANSIONS:
        for skip in rank["skip"].values[1:]:
            end = rank.sel(expansion=expansion, skip=skip).isel(layer=-1)
            yield Finding(f"m = {expansion} d, {skip}: rank after {layers[-1]} layers", Interval.of(end))


def _table(results: Results) -> list[list[str]]:
    rank = results["ranks"]["rank"]
    last = rank.sizes["layer"] - 1
    shown = sorted({0, 1, last // 12, last // 6, last // 3, last // 2, last})
    rows = [["hidden", "skip", *(f"layer {layer}" for layer in shown)]]
    for expansion in EXPANSIONS:
        for skip in rank["skip"].values:
            at = {"expansion": expansion, "skip": skip, "layer": shown}
            rows.append([f"{expansion} d", skip, *plus_minus(rank.sel(at))])
    return rows


def _draw(results: Results, figure: Figure) -> None:
    rank = results["ranks"]["rank"]
    (row,) = panels(figure, len(EXPANSIONS), sharey=True)
    for expansion, axes in zip(EXPANSIONS, row, strict=True):
        for number, skip in enumerate(rank["skip"].values):
            samples = rank.sel(expansion=expansion, skip=skip)
            label = skip.replace("beta", r"$\beta$")
            line(axes, rank["layer"], samples, label, markevery=max(rank.sizes["layer"] // 8, 1), **style(number))
        axes.set_title(f"m = {expansion} d")
        axes.set_xlabel("layer")
        axes.set_yscale("log")
    row[0].set_ylabel("effective rank of the Jacobian / width")
    row[-1].legend(frameon=False, fontsize="small")


SKIP = Study(
    name="skip",
    question="Does a skip path keep rank, whatever the branch?",
    version=1,
    depths=(48,),
    quick_depths=(24,),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
)
