"""Where the law of depth breaks: branches made alike add up as depth, not as its square root.

Blocks share a part, W_l = sqrt(1 - rho) G_l + sqrt(rho) G_0.  With cosine c between the Jacobians of branches, the norm
of their sum grows as sqrt(L (1 + c (L - 1))), so that any c > 0 breaks the law at some depth.

Contours of rank bend twice.  At M = 2, c is of order rho²; the outputs of branches are alike by order rho already, for
the hidden units of ReLU have a mean.  So with a little rho states grow faster, each branch behind its Pre-Norm counts
for less, and contours are flatter than L^-0.5; with more rho the Jacobians add up, and contours tend to L^-1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import depthgauge as dg
from depthgauge._common.arrays import Array, Floats
from depthgauge.studies.rank.branches import branch_jacobians
from depthgauge.studies.rank.figures import line, panels, sequence_color, style
from depthgauge.studies.rank.fits import contour_exponents, crossing
from depthgauge.studies.rank.intervals import Expected, Finding, Interval, mean_and_half, plus_minus
from depthgauge.studies.rank.networks import generated, inputs, network
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RHOS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
CONTOUR_RHOS = (0.0, 0.03, 0.1, 0.3, 1.0)
QUICK_CONTOUR_RHOS = CONTOUR_RHOS[::2]
STRENGTHS = tuple(float(f"{strength:.3g}") for strength in np.geomspace(0.009, 1.1, 7))
LEVELS = (0.9, 0.7)

# So weak that states hardly change on their way, as the prediction of the ratio takes them not to.
WEAK = 0.01
# Of accumulated branches to their uncorrelated prediction; beyond it the square root of depth no longer holds.
THRESHOLD = 1.1


def alike(drawn: dg.Weights, rho: float) -> dg.Weights:
    """Return weights whose blocks share a part: sqrt(1 - rho) G_l + sqrt(rho) G_0, G_0 being the first block drawn."""
    own, shared = (drawn.dtype.type(math.sqrt(share)) for share in (1 - rho, rho))
    return dg.Weights(**{name: own * array[1:] + shared * array[0] for name, array in drawn.items()})


def accumulated(
    matrices: int, width: int, rhos: tuple[float, ...], depths: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Return |J_1 + ... + J_L| over the root of |J_1|² + ... + |J_L|², J_l the branch Jacobians: (rho, depth).

    It is |T_1| over its prediction, ``norms[1] / predicted[1]`` of `dg.path_norms`, at all depths from one pass.
    """
    block = network("pre", beta=WEAK, matrices=matrices)
    drawn, x = generated(block, max(depths) + 1, width, seed).materialize(), inputs(seed, 1, width)
    ratio = [_ratios(branch_jacobians(block, alike(drawn, rho), x), depths) for rho in rhos]
    return {"ratio": (("rho", "depth"), np.array(ratio))}


def _ratios(branches: Array, depths: tuple[int, ...]) -> list[float]:
    ratios, total, passed, squares = [], np.zeros_like(branches[0]), 0, 0.0
    for depth in depths:
        added = branches[passed:depth]
        total += added.sum(axis=0)
        squares += float(np.sum(added**2))
        passed = depth
        # In a network of a few units all may be dead.
        ratios.append(math.sqrt(float(np.sum(total**2)) / squares) if squares else math.nan)
    return ratios


def ranks(rho: float, width: int, strengths: tuple[float, ...], depths: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return the effective rank, as a share of the width, of the Jacobian at one input: (strength, depth)."""
    blocks = [network("pre", beta=strength) for strength in strengths]
    weights = alike(generated(blocks[0], max(depths) + 1, width, seed).materialize(), rho)
    grid = dg.rank_grid(blocks, weights, inputs(seed, 1, width), depths=depths)
    return {"rank": (("strength", "depth"), grid.effective_rank[..., 0] / width)}


def likeness(rho: float, matrices: int) -> float:
    """Return the cosine expected of two branch Jacobians at one state: rho^M (1/2 + arcsin(rho) / pi).

    The matrices contribute rho each.  The units alive in one branch, half of all, are alive in the other, too, where
    two normals of correlation rho are both positive: a share of 1/2 + arcsin(rho) / pi (Sheppard 1899).
    """
    return rho**matrices * (0.5 + math.asin(rho) / math.pi)


def breaking_rho(depth: int, matrices: int) -> float:
    """Return the rho at which the ratio expected, sqrt(1 + (L - 1) likeness), passes `THRESHOLD`; NaN if none does."""
    from scipy.optimize import brentq

    def excess(rho: float) -> float:
        return (depth - 1) * likeness(rho, matrices) - (THRESHOLD**2 - 1)

    return float(brentq(excess, 0.0, 1.0)) if excess(1.0) > 0 else math.nan


def measured_breaking_rho(rhos: Floats, ratios: Floats) -> float:
    """Return the rho at which a ratio measured passes `THRESHOLD`.

    It is interpolated in logarithms of rho and of ratio² - 1, between which theory has nearly a straight line.
    """
    excess = np.maximum(ratios[1:] ** 2 - 1, np.finfo(np.float64).tiny)  # noise takes it below 0 at small rho
    return math.exp(crossing(np.log(rhos[1:]), -np.log(excess), -math.log(THRESHOLD**2 - 1)))


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    return {
        "accumulated": Part(cell=accumulated, axes={"matrices": (1, 2)}, whole={"rho": RHOS, "depth": depths}),
        "ranks": Part(
            cell=ranks,
            axes={"rho": QUICK_CONTOUR_RHOS if quick else CONTOUR_RHOS},
            whole={"strength": STRENGTHS, "depth": depths},
        ),
    }


def _findings(results: Results) -> Iterator[Finding]:
    ratio, rank = results["accumulated"]["ratio"], results["ranks"]["rank"]
    deepest = int(ratio["depth"].values[-1])
    for matrices in ratio["matrices"].values:
        yield Finding(
            f"M = {matrices}: ratio of accumulated branches at rho 0, depth {deepest}",
            Interval.of(ratio.sel(matrices=matrices, rho=0, depth=deepest)),
            Expected.rounded("1.00", "theory"),
        )
        for depth in ratio["depth"].values:
            samples = ratio.sel(matrices=matrices, depth=depth).transpose("seed", "rho").values
            found = [measured_breaking_rho(ratio["rho"].values, one) for one in samples]
            theory = breaking_rho(int(depth), int(matrices))
            yield Finding(
                f"M = {matrices}: rho where the ratio passes {THRESHOLD:g}, depth {depth}",
                Interval.of(found),
                None if math.isnan(theory) else Expected.rounded(_three_digits(theory), "theory"),
            )
    known = {0.0: Expected.between(-0.57, -0.46), 1.0: Expected.rounded("-1.0", "theory")}
    for level in LEVELS:
        for samples in contour_exponents(rank, level).transpose("rho", ...):
            rho = float(samples["rho"])
            yield Finding(
                f"exponent s of the contour at rank {level:g}, rho {rho:g}", Interval.of(samples), known.get(rho)
            )


def _three_digits(share: float) -> str:
    return f"{share:.{2 - math.floor(math.log10(share))}f}"


def _table(results: Results) -> list[list[str]]:
    ratio, rank = results["accumulated"]["ratio"], results["ranks"]["rank"]
    middle = rank.sel(strength=0.3, method="nearest")
    quantities = {
        **{f"ratio, M = {matrices}": ratio.sel(matrices=matrices) for matrices in ratio["matrices"].values},
        f"rank, strength {float(middle['strength']):g}": middle,
    }
    rows = [["", "rho", *(f"L = {depth}" for depth in ratio["depth"].values)]]
    for name, samples in quantities.items():
        rows += [[name, f"{rho:g}", *plus_minus(samples.sel(rho=rho))] for rho in samples["rho"].values]
    return rows


def _draw(results: Results, figure: Figure) -> None:
    ratio, rank = results["accumulated"]["ratio"], results["ranks"]["rank"]
    depths = ratio["depth"].values
    ((*left, right),) = panels(figure, 3)
    smooth = np.geomspace(RHOS[1], 1, 200)
    for matrices, axes in zip(ratio["matrices"].values, left, strict=True):
        mean, half = mean_and_half(ratio.sel(matrices=matrices, rho=list(RHOS[1:])))
        for number, depth in enumerate(depths):
            color = sequence_color(number / max(len(depths) - 1, 1))
            at = {"depth": depth}
            axes.errorbar(
                RHOS[1:], mean.sel(at), half.sel(at), color=color, label=f"L = {depth}", fmt="o", markersize=4
            )
            theory = [math.sqrt(1 + (depth - 1) * likeness(rho, int(matrices))) for rho in smooth]
            axes.plot(smooth, theory, color=color, linewidth=1)
        axes.axhline(THRESHOLD, color="0.4", linestyle=":", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel=r"correlation of blocks $\rho$", ylim=(0.95, 12))
        axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        axes.minorticks_off()
        axes.set_title(f"M = {matrices}: points measured, lines theory", fontsize="medium")
    left[0].set_ylabel("norm of summed branches / uncorrelated")
    left[0].legend(frameon=False, fontsize="small")
    left[1].text(RHOS[1], THRESHOLD * 1.02, f"{THRESHOLD:g}", color="0.4", fontsize="small")
    for number, level in enumerate(LEVELS):
        line(right, rank["rho"].values, contour_exponents(rank, level), f"rank {level:g}", **style(2 * number + 1))
    for exponent in (-0.5, -1.0):
        right.axhline(exponent, color="0.4", linestyle=":", linewidth=1)
    right.set_xscale("symlog", linthresh=CONTOUR_RHOS[1])
    right.set_xticks(CONTOUR_RHOS, [f"{rho:g}" for rho in CONTOUR_RHOS])
    right.minorticks_off()
    right.set_xlim(left=-CONTOUR_RHOS[1] / 5)
    right.set_xlabel(r"correlation of blocks $\rho$")
    right.set_ylabel(r"$s$ of contours $\beta\,\alpha^M \propto L^s$")
    right.set_title("M = 2: contours of rank", fontsize="medium")
    right.legend(frameon=False, fontsize="small")


CORRELATE = Study(
    name="correlate",
    question="How alike may branches be before sqrt(L) breaks?",
    version=1,
    depths=(12, 24, 48, 96),
    quick_depths=(6, 12, 24),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
)
