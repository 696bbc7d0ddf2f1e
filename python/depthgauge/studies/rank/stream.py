"""The growth of the residual stream: rms(h_l)² against 1 + kappa (beta * alpha^M)² l."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import depthgauge as dg
from depthgauge.studies.rank.figures import depth_axis, line, panels, sequence_color, style
from depthgauge.studies.rank.fits import slope
from depthgauge.studies.rank.gaussian import ACTIVATION_TITLES, moments
from depthgauge.studies.rank.intervals import Expected, Finding, Interval, plus_minus
from depthgauge.studies.rank.networks import generated, network, unit_inputs
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS, BETAS = (1.0, 2.0), (0.1, 0.3, 1.0)
SMOOTH = ("gelu", "silu", "tanh")
INPUTS = 16


def growth(
    activation: str, matrices: int, alpha: float, beta: float, width: int, depths: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Return the mean square of the stream of a Pre-Norm network by depth, from 1, and its growth in one number.

    `kappa` is the slope of rms(h_l)² over (beta * alpha^M)² l, through all l up to the last of `depths`; its mean over
    weights is exactly that of `branch`, the mean square of a branch over alpha^(2M), which scatters far less, for it
    leaves out how branches happen to lie to one another.  `spike` is what the law with kappa = E[phi²] leaves of
    rms(h_L)², over strength² L(L-1): outputs of branches that share a mean, as after one matrix and a ReLU, add up to
    E[phi]² there.
    """
    block = network("pre", beta=beta, alpha=alpha, matrices=matrices, activation=activation)
    depth = max(depths)
    # Weights of its own for each setting: sharing them would save nothing, and settings would err together.
    own = int(np.random.SeedSequence([seed, round(1000 * alpha), round(1000 * beta)]).generate_state(1, np.uint64)[0])
    x = unit_inputs(own, INPUTS, width)
    run = dg.forward(block, generated(block, depth, width, own), x, keep="nothing")
    square = run.rms**2
    steps = (beta * alpha**matrices) ** 2 * np.arange(depth + 1)
    left = square[-1] - square[0] - moments(activation).square * steps[-1]
    return {
        "square": ("depth", square[list(depths)]),
        "kappa": slope(steps, square, least=2),
        "branch": float(np.mean(run.branch_rms**2)) / alpha ** (2 * matrices),
        "spike": left / (steps[-1] * (depth - 1)) if depth > 1 else np.nan,
    }


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    def part(activations: tuple[str, ...], matrices: int, alphas: tuple[float, ...], betas: tuple[float, ...]) -> Part:
        axes = {"activation": activations, "matrices": (matrices,), "alpha": alphas, "beta": betas}
        return Part(cell=growth, axes=axes, whole={"depth": depths})

    return {
        "strengths": part(("relu",), 2, ALPHAS, BETAS[:2] if quick else BETAS),
        "activations": part((*SMOOTH, "abs"), 2, (1.0,), (1.0,)),
        "one matrix": part(("relu", "tanh"), 1, (1.0,), (1.0,)),
    }


def _findings(results: Results) -> Iterator[Finding]:
    relu = results["strengths"].squeeze(("activation", "matrices"))
    kappa = relu["kappa"].mean(("alpha", "beta"))
    yield Finding("M = 2, ReLU: kappa, all strengths together", Interval.of(kappa), Expected.rounded("0.51"))
    for alpha in relu["alpha"].values:
        for beta in relu["beta"].values:
            name = f"M = 2, ReLU, alpha {alpha:g}, beta {beta:g}: kappa"
            yield Finding(name, Interval.of(relu["kappa"].sel(alpha=alpha, beta=beta)), _theory("relu"))
    branch = relu["branch"].mean(("alpha", "beta"))
    yield Finding("M = 2, ReLU: mean square of a branch", Interval.of(branch), _theory("relu"))
    for part, matrices, activations in (("activations", 2, (*SMOOTH, "abs")), ("one matrix", 1, ("tanh",))):
        for activation in activations:
            found = results[part].sel(activation=activation)
            name = f"M = {matrices}, {ACTIVATION_TITLES[activation]}"
            yield Finding(f"{name}: kappa", Interval.of(found["kappa"]), _theory(activation))
            yield Finding(f"{name}: mean square of a branch", Interval.of(found["branch"]), _theory(activation))
    yield Finding(
        "M = 1, ReLU: what is left of rms² over strength² L(L-1)",
        Interval.of(results["one matrix"]["spike"].sel(activation="relu")),
        Expected.rounded(f"{moments('relu').mean ** 2:.3f}", "theory"),
    )


def _theory(activation: str) -> Expected:
    return Expected.rounded(f"{moments(activation).square:.3f}", "theory")


def _table(results: Results) -> list[list[str]]:
    depths = results["strengths"]["depth"].values
    rows = [["rms(h)² - 1, over strength²", *(f"L = {depth}" for depth in depths)]]
    for result in results.values():
        stacked = result["square"].stack(network=("activation", "matrices", "alpha", "beta"))
        for activation, matrices, alpha, beta in stacked["network"].values:
            samples = stacked.sel(network=(activation, matrices, alpha, beta))
            growth = (samples - 1) / (beta * alpha**matrices) ** 2
            name = f"M = {matrices}, {ACTIVATION_TITLES[activation]}, alpha {alpha:g}, beta {beta:g}"
            rows.append([name, *plus_minus(growth, ".4g", ".2g")])
    return rows


def _draw(results: Results, figure: Figure) -> None:
    (left, middle, right), *_ = panels(figure, 3)
    relu = results["strengths"]["square"].squeeze(("activation", "matrices"))
    depths = relu["depth"].values
    pairs = [(alpha, beta) for alpha in relu["alpha"].values for beta in relu["beta"].values]
    pairs.sort(key=lambda pair: pair[1] * pair[0] ** 2)
    for number, (alpha, beta) in enumerate(pairs):
        color = sequence_color(number / (len(pairs) - 1))
        label = rf"$\alpha = {alpha:g}$, $\beta = {beta:g}$"
        steps = (beta * alpha**2) ** 2 * depths
        line(left, steps, relu.sel(alpha=alpha, beta=beta), label, color=color, marker="o")
    lowest, highest = (beta * alpha**2 for alpha, beta in (pairs[0], pairs[-1]))
    steps = np.geomspace(lowest**2 * depths[0], highest**2 * depths[-1], 100)
    left.plot(steps, 1 + moments("relu").square * steps, color="black", linestyle=":", label="theory, no fit")
    left.set_xscale("log")
    left.set_title("ReLU, M = 2")
    left.set_xlabel(r"$(\beta\,\alpha^2)^2\,l$")
    left.set_ylabel(r"rms$(h_l)^2$")

    _curves(middle, results["activations"]["square"], depths)
    middle.set_title("M = 2, strength 1")
    one = results["one matrix"]["square"]
    _curves(right, one, depths)
    spike = 1 + depths * (moments("relu").square + moments("relu").mean ** 2 * (depths - 1))
    right.plot(depths, spike, color="0.5", linestyle="--", label=r"$1 + \kappa\,l + E[\varphi]^2\,l\,(l-1)$")
    right.set_title("M = 1, strength 1")
    for axes in (middle, right):
        depth_axis(axes, depths, "blocks passed, l")
    for axes in (left, middle, right):
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize="small")


def _curves(axes: Any, square: Any, depths: Any) -> None:
    """Draw the points of each activation, and its law dotted in the same color."""
    square = square.squeeze(("matrices", "alpha", "beta"))
    for activation in square["activation"].values:
        look = style(list(ACTIVATION_TITLES).index(activation)) | {"linestyle": "none"}
        line(axes, depths, square.sel(activation=activation), ACTIVATION_TITLES[activation], **look)
        axes.plot(depths, 1 + moments(activation).square * depths, color=look["color"], linestyle=":", linewidth=1)
    axes.plot([], [], color="0.3", linestyle=":", linewidth=1, label=r"$1 + E[\varphi^2]\,l$, no fit")


STREAM = Study(
    name="stream",
    question="Does the residual stream grow by kappa * strength² a block, with kappa = E[phi²]?",
    version=1,
    depths=(6, 12, 24, 48, 96, 192),
    quick_depths=(6, 12, 24, 48),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
)
