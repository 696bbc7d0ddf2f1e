"""The width of a branch: rank of its Jacobian by hidden units a feature, beside free probability.

A hidden unit passes a derivative on by phi'(z), so m units count as p m of a linear branch, p = E[phi'²]: the energy of
the masked up-projection, its squared Frobenius norm, is that of p m columns.  At m/d = 1/p that makes d of them.  With
a ReLU (p = 1/2, units dead or alive) and with abs (p = 1, none dead) this is exact: the masked up-projection is a
Gaussian matrix with p m columns, square at the threshold, where its rank becomes full and its spectrum, Marchenko and
Pastur's, reaches down to 0; and the Jacobian has the rank of a product of two square Gaussian matrices, 0.669 d.  GELU
and SiLU have no dead units, their smallest derivatives still help, and they reach that rank below 1/p; what is exact
for them, too, is the free product with the law of their phi'².
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import depthgauge as dg
from depthgauge._common.arrays import Array
from depthgauge.studies.rank.figures import line, panels, sequence_color, style
from depthgauge.studies.rank.fits import crossing
from depthgauge.studies.rank.free_products import FreeProduct, marchenko_pastur, marchenko_pastur_below
from depthgauge.studies.rank.gaussian import ACTIVATION_TITLES, moments, normal_nodes, value_and_slope
from depthgauge.studies.rank.intervals import Expected, Finding, Interval, plus_minus
from depthgauge.studies.rank.networks import generated, unit_inputs
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Name: title, activation, branch.
BRANCHES = {name: (ACTIVATION_TITLES[name], name, "mlp") for name in ("relu", "gelu", "silu", "abs")} | {
    "gated_silu": (f"gated {ACTIVATION_TITLES['silu']}", "silu", "gated")
}
PUBLISHED = {"relu": "2.00", "gelu": "2.19", "silu": "2.64", "abs": "1.00"}
RATIOS = tuple(float(f"{ratio:.3g}") for ratio in np.geomspace(0.25, 8, 11))
QUICK_RATIOS = RATIOS[::2]
SPECTRA = (1.0, 2.0, 4.0)
INPUTS = 2


def ranks(branch: str, width: int, ratios: tuple[float, ...], seed: int) -> dict[str, Any]:
    """Return the effective rank, as a share of the width, of the Jacobian of one branch, and its p, by m/d.

    The input has rms 1, as after a norm.
    """
    _, activation, kind = BRANCHES[branch]
    block = dg.Block(branch=kind, activation=activation, pre_norm="none", skip_scale=0.0)
    x = unit_inputs(seed, INPUTS, width)
    rank, share = np.empty((2, len(ratios)))
    for number, ratio in enumerate(ratios):
        weights = generated(block, 1, width, seed, _hidden(ratio, width)).materialize()
        jacobian = dg.jacobian(block, weights, x)
        rank[number] = np.mean(dg.spread(jacobian).effective_rank) / width
        share[number] = np.mean([np.sum(masked_up(block, weights, row) ** 2) / weights.hidden for row in x])
    return {"rank": ("ratio", rank), "share": ("ratio", share)}


def spectra(width: int, ratios: tuple[float, ...], seed: int) -> dict[str, Any]:
    """Return the squared singular values of the masked up-projection with a ReLU, and their distance from theory.

    The distance is the largest between distribution functions, that of Marchenko and Pastur's law being for as many
    columns as there are live units, with the zeros left out, for they are exact.
    """
    block = dg.Block(pre_norm="none", skip_scale=0.0)
    x = unit_inputs(seed, INPUTS, width)[0]
    squares, distance = np.empty((len(ratios), width)), np.empty(len(ratios))
    for number, ratio in enumerate(ratios):
        weights = generated(block, 1, width, seed, _hidden(ratio, width)).materialize()
        masked = masked_up(block, weights, x)
        live = np.count_nonzero(np.any(masked, axis=0))
        values = np.zeros(width)  # one a feature, also where there are fewer units
        values[: min(masked.shape)] = dg.singular_values(masked).astype(np.float64) ** 2
        squares[number] = values[::-1]
        above = slice(max(width - live, 0), None)
        expected = marchenko_pastur_below(squares[number, above], live / width)
        distance[number] = np.max(np.abs((np.arange(width)[above] + 0.5) / width - expected), initial=0.0)
    return {"squares": (("ratio", "value"), squares), "distance": ("ratio", distance)}


def masked_up(block: dg.Block, weights: dg.Weights, x: Array) -> Array:
    """Return the Jacobian, transposed, of what the down-projection takes, in one block without norms: (d, m)."""
    up = weights.up[0]
    phi, slope = value_and_slope(block.activation, x @ (up if weights.gate is None else weights.gate[0]))
    found: Array = up * slope if weights.gate is None else weights.gate[0] * (slope * (x @ up)) + up * phi
    return found


def _hidden(ratio: float, width: int) -> int:
    return max(round(ratio * width), 1)


@cache
def free_product(branch: str) -> FreeProduct:
    """Return the law of a branch's Jacobian: the squares on the diagonal are those of phi'(z).

    A gated branch has (phi'(g) v)² + phi(g)², for the two projections, apart from their lengths, are alike.
    """
    _, activation, kind = BRANCHES[branch]
    z, weights = normal_nodes(200)
    phi, slope = value_and_slope(activation, z)
    if kind != "gated":
        return FreeProduct(slope**2, weights)
    v, v_weights = normal_nodes(60)
    squares = (slope[:, None] * v) ** 2 + phi[:, None] ** 2
    return FreeProduct(squares.ravel(), (weights[:, None] * v_weights).ravel())


def share(branch: str) -> float:
    """Return p, the mean of those squares."""
    _, activation, kind = BRANCHES[branch]
    found = moments(activation)
    return found.slope_square + (found.square if kind == "gated" else 0.0)


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    return {
        "ranks": Part(cell=ranks, axes={"branch": tuple(BRANCHES)}, whole={"ratio": QUICK_RATIOS if quick else RATIOS}),
        "spectra": Part(cell=spectra, axes={}, whole={"ratio": SPECTRA}),
    }


def _findings(results: Results) -> Iterator[Finding]:
    found = results["ranks"]
    ratios = found["ratio"].values
    level = FreeProduct.masked().effective_rank(1.0)
    for branch, (title, *_) in BRANCHES.items():
        measured = found.sel(branch=branch)
        threshold = Interval.of(1 / measured["share"].mean("ratio"))
        expected = Expected.rounded(PUBLISHED.get(branch) or f"{1 / share(branch):.2f}", _source(branch))
        yield Finding(f"{title}: m/d = 1/p, masked up-projection with the energy of d columns", threshold, expected)
        predicted = np.array([free_product(branch).effective_rank(ratio) for ratio in ratios])
        passed = [_passed(ratios, samples, level) for samples in measured["rank"].transpose("seed", "ratio").values]
        yield Finding(
            f"{title}: m/d where the rank is that of two square Gaussian factors, {level:.3f}",
            Interval.of(passed),
            Expected.rounded(f"{_passed(ratios, predicted, level):.2f}", "theory"),
        )
        deviation = (measured["rank"] - predicted).mean("ratio")
        yield Finding(
            f"{title}: rank minus free product, mean over m/d",
            Interval.of(deviation),
            Expected.between(-0.005, 0.005, "theory"),
        )
    for ratio, samples in results["spectra"]["distance"].groupby("ratio"):
        yield Finding(
            f"ReLU, m/d = {ratio:g}: masked up-projection, distance from Marchenko-Pastur",
            Interval.of(samples),
            Expected.at_most(0.02, "theory"),
        )


def _source(branch: str) -> Any:
    return "published" if branch in PUBLISHED else "theory"


def _passed(ratios: Any, ranks: Any, level: float) -> float:
    """Return the ratio where the rank passes a level, between the ratios measured by interpolation in the logarithm."""
    return float(np.exp(crossing(np.log(ratios), -np.asarray(ranks), -level)))


def _table(results: Results) -> list[list[str]]:
    rank = results["ranks"]["rank"]
    shown = rank["ratio"].values[:: 1 + len(rank["ratio"]) // 8]
    rows = [["rank / d", *(f"m/d = {ratio:g}" for ratio in shown)]]
    for branch, (title, *_) in BRANCHES.items():
        at = {"branch": branch, "ratio": shown}
        rows.append([title, *plus_minus(rank.sel(at))])
        laws = {"  free product": free_product(branch), "  two Gaussian factors": FreeProduct.masked(share(branch))}
        for name, law in laws.items() if share(branch) < 0.99 else list(laws.items())[1:]:
            rows.append([name, *(f"{law.effective_rank(ratio):.3f}" for ratio in shown)])
    return rows


def _draw(results: Results, figure: Figure) -> None:
    (left, middle, right), *_ = panels(figure, 3)
    rank = results["ranks"]["rank"]
    ratios = rank["ratio"].values
    fine = np.geomspace(ratios[0], ratios[-1], 100)
    for number, (branch, (title, *_)) in enumerate(BRANCHES.items()):
        look = style(number)
        points = look | {"linestyle": "none"}
        samples = rank.sel(branch=branch)
        line(left, ratios, samples, title, **points)
        law = [free_product(branch).effective_rank(ratio) for ratio in fine]
        left.plot(fine, law, color=look["color"], linewidth=1.2)
        line(middle, ratios * share(branch), samples, title, **points)
    left.plot([], [], color="0.4", linewidth=1.2, label="free product, no fit")
    left.set_title("Jacobian of one branch")
    left.set_xlabel("hidden units a feature, m/d")
    left.set_ylabel("effective rank of the Jacobian / width")
    counted = np.geomspace(ratios[0] / 4, ratios[-1], 100)
    two = [FreeProduct.masked().effective_rank(ratio) for ratio in counted]
    middle.plot(counted, two, color="0.4", linewidth=1.2, label="two Gaussian factors")
    middle.axvline(1, color="0.4", linestyle=":", linewidth=1, label="m/d = 1/p")
    middle.set_title("Units counted by their energy")
    middle.set_xlabel(r"$p\,m/d$ with $p = E[\varphi'^2]$")
    for axes in (left, middle):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 0.85)
        axes.legend(frameon=False, fontsize="small")

    squares = results["spectra"]["squares"]
    for number, ratio in enumerate(squares["ratio"].values):
        color = sequence_color(number / max(squares.sizes["ratio"] - 1, 1))
        values = np.sqrt(squares.sel(ratio=ratio).values)
        bins = np.linspace(0.05, 2.65, 53)
        counts, _ = np.histogram(values, bins)
        right.stairs(counts / values.size / np.diff(bins), bins, color=color, alpha=0.7, label=f"m/d = {ratio:g}")
        s = np.linspace(1e-3, bins[-1], 600)
        right.plot(s, 2 * s * marchenko_pastur(s**2, ratio / 2), color=color, linewidth=1.4)
    right.plot([], [], color="0.4", linewidth=1.4, label="Marchenko-Pastur")
    right.set_title("ReLU: masked up-projection")
    right.set_xlabel("singular value (not 0)")
    right.set_ylabel("density")
    right.legend(frameon=False, fontsize="small")


WIDTH = Study(
    name="width",
    question="How many hidden units does a branch need for its Jacobian to have full rank?",
    version=1,
    depths=(1,),
    quick_depths=(1,),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
)
