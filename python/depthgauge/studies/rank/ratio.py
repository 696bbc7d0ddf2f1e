"""The branch-to-skip ratio: rank against beta * alpha^M, for several beta and alpha."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import depthgauge as dg
from depthgauge.studies.rank.figures import line, panels, style
from depthgauge.studies.rank.gaussian import ACTIVATION_TITLES
from depthgauge.studies.rank.intervals import Expected, Finding, Interval, plus_minus
from depthgauge.studies.rank.networks import TITLES, generated, inputs, network
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

PLACEMENTS = ("pre", "post")
STRENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
ALPHAS = (0.6, 1.0, 1.7)
# Of activation and number of matrices; GELU is no multiple of itself, so its curves need not coincide.
BRANCHES = ("relu 1", "relu 2", "gelu 2")
EXACT_BRANCHES = BRANCHES[:2]


def ranks(
    branch: str,
    placement: str,
    precision: str,
    width: int,
    strengths: tuple[float, ...],
    alphas: tuple[float, ...],
    depths: tuple[int, ...],
    seed: int,
) -> dict[str, Any]:
    """Return the effective rank, as a share of the width, of the Jacobian at one input: (strength, alpha, depth).

    All share weights, whose N(0, 1/fan_in) entries alpha multiplies; beta is strength / alpha^M, or
    with an Output-Norm, out of which alpha drops but for eps, the strength itself.
    """
    activation, matrices = branch.split()
    m = int(matrices)
    blocks = [
        network(
            placement,
            beta=strength if placement == "output" else strength / alpha**m,
            alpha=alpha,
            matrices=m,
            activation=activation,
        )
        for strength in strengths
        for alpha in alphas
    ]
    weights = generated(blocks[0], max(depths), width, seed, dtype=precision)
    grid = dg.rank_grid(blocks, weights, inputs(seed, 1, width, dtype=precision), depths=depths)
    shape = len(strengths), len(alphas), len(depths)
    return {"rank": (("strength", "alpha", "depth"), grid.effective_rank.reshape(shape) / width)}


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    whole = {"strength": STRENGTHS, "alpha": ALPHAS, "depth": depths}
    axes = {"branch": BRANCHES, "placement": PLACEMENTS, "precision": ("float32",)}
    # In float32 a ReLU's argument may round to the other side of zero. In float64 half the depth and a few strengths
    # are enough to tell rounding from anything else.
    exact = {"strength": STRENGTHS[::2], "alpha": ALPHAS, "depth": (max(depths) // 2 or 1,)}
    return {
        "ranks": Part(cell=ranks, axes=axes, whole=whole),
        "symmetry": Part(cell=ranks, axes={**axes, "branch": EXACT_BRANCHES, "precision": ("float64",)}, whole=exact),
        "output": Part(
            cell=ranks,
            axes={"branch": EXACT_BRANCHES, "placement": ("output",), "precision": ("float64",)},
            whole=exact,
        ),
    }


def _apart(rank: xarray.DataArray) -> xarray.DataArray:
    """Return how far apart ranks of one strength are, as a share of them, at the strength where that is most."""
    apart: xarray.DataArray = (rank.max("alpha") - rank.min("alpha")) / rank.mean("alpha")
    return apart.max(("strength", "depth"))


def _findings(results: Results) -> Iterator[Finding]:
    apart = _apart(results["ranks"]["rank"].isel(precision=0))
    exact = _apart(results["symmetry"]["rank"].isel(precision=0))
    for placement in PLACEMENTS:
        for branch in BRANCHES:
            name = f"{TITLES[placement]}, {_label(branch)}: relative difference between alphas"
            at = {"placement": placement, "branch": branch}
            if branch in EXACT_BRANCHES:
                yield Finding(f"{name}, float64", Interval.of(exact.sel(at)), Expected.at_most(1e-12, "theory"))
            else:
                yield Finding(f"{name}, float32", Interval.of(apart.sel(at)))
    dropped = _apart(results["output"]["rank"].isel(precision=0, placement=0))
    for branch in EXACT_BRANCHES:
        name = f"{TITLES['output']}, {_label(branch)}: relative difference between alphas at one beta, float64"
        yield Finding(name, Interval.of(dropped.sel(branch=branch)), Expected.at_most(1e-3, "theory"))


def _label(branch: str) -> str:
    activation, matrices = branch.split()
    return f"{ACTIVATION_TITLES[activation]}, M = {matrices}"


def _table(results: Results) -> list[list[str]]:
    rank = results["ranks"]["rank"].isel(precision=0, depth=-1)
    rows = [["placement, branch", "alpha", *(f"strength {strength:g}" for strength in rank["strength"].values)]]
    for placement in PLACEMENTS:
        for branch in BRANCHES:
            for alpha in rank["alpha"].values:
                at = {"placement": placement, "branch": branch, "alpha": alpha}
                name = f"{TITLES[placement]}, {_label(branch)}"
                rows.append([name, f"{alpha:g}", *plus_minus(rank.sel(at))])
    return rows


def _draw(results: Results, figure: Figure) -> None:
    rank = results["ranks"]["rank"].isel(precision=0, depth=-1)
    (row,) = panels(figure, len(BRANCHES), sharey=True)
    markers = {"pre": "-", "post": "--"}
    for branch, axes in zip(BRANCHES, row, strict=True):
        for placement in PLACEMENTS:
            for number, alpha in enumerate(rank["alpha"].values):
                look = {**style(number), "linestyle": markers[placement], "markersize": 8 - 2.5 * number}
                samples = rank.sel(branch=branch, placement=placement, alpha=alpha)
                line(axes, rank["strength"], samples, rf"{TITLES[placement]}, $\alpha$ = {alpha:g}", **look)
        axes.set_xscale("log")
        axes.set_title(_label(branch))
        axes.set_xlabel(r"strength $\beta\,\alpha^M$")
    row[0].set_ylabel("effective rank of the Jacobian / width")
    row[0].set_ylim(0, 1.02)
    row[0].legend(frameon=False, fontsize="small")


RATIO = Study(
    name="ratio",
    question="Does rank depend on beta and alpha through the strength beta * alpha^M alone?",
    version=1,
    depths=(48,),
    quick_depths=(24,),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
)
