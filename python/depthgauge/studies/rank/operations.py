"""Which operation of a post-residual norm costs rank: the projections of its Jacobian, or the rescaling.

The Jacobian of an RMS norm is ``(I - h h^T / |h|²) / rms(h)``, a projection off the direction of the state and a
rescaling; ``rms_detached`` has the rescaling alone, at the same states.  Layer norms project off the mean, too.

A projection takes one direction of d, and those of later blocks hardly take more: with one direction gone, projecting
along another only tilts the rest.  Rescaling takes nothing where states and Jacobians grow alike, as in a stack of
ReLU branches without norms, which it divides by a number.  It is all in a stack whose branches have a Pre-Norm: without
a post norm states grow, and branches count for less and less; with one they never do, and rank falls with depth.

Where the output of a branch has a mean (ReLU, M = 1), centering takes from states what grows fastest in them.  What
that costs or gains is not the projection's but comes of other states: less rank with a Pre-Norm, whose damping is gone;
more without, where the direction of the mean would take over the Jacobian.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import depthgauge as dg
from depthgauge.studies.rank.figures import line, panels, style
from depthgauge.studies.rank.intervals import Expected, Finding, Interval, plus_minus
from depthgauge.studies.rank.networks import generated, inputs, network
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

PRE_NORMS = {"none": "no Pre-Norm", "rms": "Pre-Norm"}
POST_NORMS = ("none", "center", "rms_detached", "rms", "layer_detached", "layer")
# Projections cost most where rank is nearly full, rescaling where it is not.
STRENGTHS = WEAK, STRONG = (0.1, 0.5)

# What differs between two post norms: the second has the operation, the first has not.
COMPARED = {
    "projection of rms": ("rms_detached", "rms"),
    "projection of layer": ("layer_detached", "layer"),
    "centering": ("none", "center"),
    "rescaling": ("none", "rms_detached"),
}
PUBLISHED = Expected("at most 1.02 = 0.4 % of 256", -math.inf, 0.004 * 256)
NOTHING = Expected("0", -0.05, 0.05, "theory")


def ranks(
    matrices: int,
    strength: float,
    width: int,
    pre_norms: tuple[str, ...],
    post_norms: tuple[str, ...],
    depths: tuple[int, ...],
    seed: int,
) -> dict[str, Any]:
    """Return the effective rank of the Jacobian at one input: (pre_norm, post_norm, depth), of `full_rank`."""
    block = network("none", beta=strength, matrices=matrices)
    blocks = [block.replace(pre_norm=pre, post_norm=post) for pre in pre_norms for post in post_norms]
    grid = dg.rank_grid(blocks, generated(block, max(depths), width, seed), inputs(seed, 1, width), depths=depths)
    shape = (len(pre_norms), len(post_norms), len(depths))
    return {
        "effective_rank": (("pre_norm", "post_norm", "depth"), grid.effective_rank.reshape(shape)),
        "full_rank": width,
    }


def cost(results: Results, operation: str) -> xarray.DataArray:
    """Return how many directions of effective rank an operation costs; below 0 if it gains some."""
    without, with_it = COMPARED[operation]
    rank = results["ranks"]["effective_rank"]
    return rank.sel(post_norm=without, drop=True) - rank.sel(post_norm=with_it, drop=True)


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    return {
        "ranks": Part(
            cell=ranks,
            axes={"matrices": (1, 2), "strength": STRENGTHS},
            whole={"pre_norm": tuple(PRE_NORMS), "post_norm": POST_NORMS, "depth": depths},
        )
    }


def _findings(results: Results) -> Iterator[Finding]:
    for operation in COMPARED:
        costs = cost(results, operation)
        for pre, title in PRE_NORMS.items():
            for matrices in costs["matrices"].values:
                found = costs.sel(pre_norm=pre, matrices=matrices)
                largest = found.mean("seed").argmax(("strength", "depth"))
                samples = found.isel(largest)
                setting = f"strength {float(samples['strength']):g}, L = {int(samples['depth'])}"
                free = {"none": NOTHING, "rms": None}[pre]
                yield Finding(
                    f"{operation}, M = {matrices}, {title}: most directions lost ({setting})",
                    Interval.of(samples),
                    free if operation == "rescaling" else PUBLISHED,
                )


def _shares(results: Results) -> xarray.DataArray:
    ranks = results["ranks"]
    return ranks["effective_rank"] / ranks["full_rank"]


def _table(results: Results) -> list[list[str]]:
    shares = _shares(results).sel(strength=STRONG)
    rows = [["branch", "post norm", *(f"L = {depth}" for depth in shares["depth"].values)]]
    for matrices in shares["matrices"].values:
        for pre, title in PRE_NORMS.items():
            for post in POST_NORMS:
                at = {"matrices": matrices, "pre_norm": pre, "post_norm": post}
                rows.append([f"M = {matrices}, {title}", post, *plus_minus(shares.sel(at))])
    return rows


def _draw(results: Results, figure: Figure) -> None:
    shares = _shares(results).sel(strength=STRONG)
    depths = shares["depth"].values
    bottom = -0.2
    grid = panels(figure, 3, 2, sharex=True)
    for matrices, (*left, right) in zip(shares["matrices"].values, grid, strict=True):
        for (pre, title), axes in zip(PRE_NORMS.items(), left, strict=True):
            for number, post in enumerate(POST_NORMS):
                samples = shares.sel(matrices=matrices, pre_norm=pre, post_norm=post)
                line(axes, depths, samples, post, **style(number))
            axes.set_title(f"M = {matrices}, {title}: rank at strength {STRONG:g}", fontsize="medium")
            axes.set_ylim(0, 1.02)
        for number, (operation, pre) in enumerate(itertools.product(list(COMPARED)[:2], PRE_NORMS)):
            samples = cost(results, operation).sel(matrices=matrices, strength=WEAK, pre_norm=pre)
            label = f"{operation}, {PRE_NORMS[pre]}"
            line(right, depths, samples, label, **style(number))
            lowest = float(samples.mean("seed").min())
            if lowest < bottom:
                right.text(depths[0], bottom + 0.05, f"{label}:\ndown to {lowest:.0f}", fontsize="small")
        right.axhline(1, color="0.4", linestyle=":", linewidth=1)
        right.set_ylim(bottom, 1.2)
        right.set_title(f"M = {matrices}: cost of projections, strength {WEAK:g}", fontsize="medium")
        right.set_ylabel("directions lost")
    grid[0, 0].set_ylabel("effective rank / width")
    grid[1, 0].set_ylabel("effective rank / width")
    grid[0, 0].set_xscale("log", base=2)
    for axes in grid[-1]:
        axes.set_xticks(depths, [str(depth) for depth in depths])
        axes.set_xlabel("depth L")
    grid[0, 0].legend(frameon=False, fontsize="small")
    grid[1, 2].legend(frameon=False, fontsize="small", loc="lower left")


OPERATIONS = Study(
    name="operations",
    question="Which operation of a post-residual norm costs rank?",
    version=1,
    depths=(12, 24, 48, 96),
    quick_depths=(6, 12, 24),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
)
