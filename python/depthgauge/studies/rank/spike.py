"""The spike: how the mean over inputs grows with depth, and takes the rank of the representation.

After one matrix and a ReLU every output of a branch is positive, so the branches of all layers share a direction, and
what they add to the stream is the same for all inputs.  For an input alone, the outputs phi(z) of two layers have the
cosine E[phi]²/E[phi²].  Means over inputs start at its square root with all that follow, where they are the shared
direction alone, and come down to it as the inputs become alike, so that over all pairs of layers they lie a little
above.  Their sum grows like l, everything else like sqrt(l), and one singular value of the representation outgrows all
others.  A second matrix turns the means of different layers in independent directions.

Published ranks of representations (M = 1, depth 512: 0.009 with Pre-RMSNorm, 0.078 with Pre-LayerNorm) are close to
those of 512 inputs; with all 4096 they are 4 and 11 per cent higher, for noise fills the small singular values evenly
only as there are many more inputs than features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

import depthgauge as dg
from depthgauge.studies.rank.figures import depth_axis, line, panels, style
from depthgauge.studies.rank.fits import slope
from depthgauge.studies.rank.gaussian import ACTIVATION_TITLES, moments
from depthgauge.studies.rank.intervals import Expected, Finding, Interval, plus_minus
from depthgauge.studies.rank.networks import DTYPE, inputs, network
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Case:
    """A network whose representations are measured, and at how many inputs."""

    title: str
    matrices: int
    placement: str
    norm: str
    inputs: int


# Fewer inputs where only growth is asked for. At M = 2 it does not depend on their number; the control with an output
# LayerNorm grows faster with more, by 0.05 in the exponent at 4096.
CASES = {
    "rms": Case("M = 1, Pre-RMSNorm", 1, "pre", "rms", 4096),
    "layer": Case("M = 1, Pre-LayerNorm", 1, "pre", "layer", 4096),
    "two": Case("M = 2, Pre-RMSNorm", 2, "pre", "rms", 512),
    "output_rms": Case("M = 1, Output-RMSNorm", 1, "output", "rms", 512),
    "output_layer": Case("M = 1, Output-LayerNorm", 1, "output", "layer", 512),
}
PUBLISHED_GROWTH = {"rms": "0.99", "two": "0.56"}
PUBLISHED_DEPTH = 512
PUBLISHED_RANK = {"rms": "0.009", "layer": "0.078"}
SOME = 512

ACTIVATIONS = ("relu", "gelu", "silu", "tanh")
BRANCH_INPUTS, STRETCH = 128, 16


def representation(case: str, width: int, depths: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return the norm of the mean of the representation over inputs, and its effective rank / width, by depth.

    The representation is the state, a row an input.  `growth` is the slope of the logarithm of the norm over that of
    the depth, through `depths`, by default octaves; `layers_growth` is the slope through all layers, most of which lie
    in the last octave; `some_rank` is the rank of the first 512 inputs at the last of `depths`.
    """
    of = CASES[case]
    block = network(of.placement, matrices=of.matrices, norm=of.norm)
    # A seed on an axis of its own, which stores the weights once; a single one would be copied out.
    weights = dg.GeneratedWeights(block, max(depths), width, seed=[seed], dtype=DTYPE).materialize()
    h = inputs(seed, of.inputs, width)[None]
    means, ranks = [], []
    for first, last in pairwise((0, *depths)):
        run = dg.forward(block, weights[first:last], h, keep="nothing")
        h = run.output
        means.append(run.batch_mean_norm[0, 1:])
        ranks.append(float(dg.spread(h[0]).effective_rank) / width)
    mean = np.concatenate(means)
    logs = np.log(mean)
    at = np.array(depths) - 1
    return {
        "mean": ("depth", mean[at]),
        "rank": ("depth", np.array(ranks)),
        "growth": slope(np.log(depths), logs[at]),
        "layers_growth": slope(np.log(np.arange(1, len(mean) + 1)), logs),
        "some_rank": float(dg.spread(h[0, :SOME]).effective_rank) / width,
    }


def branches(activation: str, width: int, layers: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return the cosines between the means over inputs of branches of one matrix, in a Pre-RMSNorm network.

    `cosine` is that of each of some layers, counted from 1, with all later ones, on average, and `all_pairs` the mean
    over all pairs of layers; `one_input` is that mean for the outputs of branches at the first input alone.
    """
    block = network("pre", matrices=1, activation=activation)
    depth = 2 * layers[-1]
    weights = dg.GeneratedWeights(block, depth, width, seed=[seed], dtype=DTYPE).materialize()
    h = inputs(seed, BRANCH_INPUTS, width)[None]
    means, alone = np.empty((2, depth, width))
    for first in range(0, depth, STRETCH):
        run = dg.forward(block, weights[first : first + STRETCH], h)
        outputs = np.diff(run.states[0], axis=0)
        means[first : first + STRETCH] = np.mean(outputs, axis=1)
        alone[first : first + STRETCH] = outputs[:, 0]
        h = run.output
    cosines = _cosines(means)
    later = np.triu(cosines, 1).sum(axis=1)[:-1] / np.arange(depth - 1, 0, -1)
    return {
        "cosine": ("layer", later[np.array(layers) - 1]),
        "all_pairs": _mean_of_pairs(cosines),
        "one_input": _mean_of_pairs(_cosines(alone)),
    }


def _cosines(rows: Any) -> Any:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows / np.where(norms > 0, norms, 1)  # a branch that is dead throughout is like no other
    return units @ units.T


def _mean_of_pairs(cosines: Any) -> float:
    return float(np.mean(cosines[np.triu_indices(len(cosines), 1)]))


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    last = max(depths[-1] // 2, 1)
    layers = tuple(2**power for power in range(last.bit_length()))
    return {
        "representations": Part(cell=representation, axes={"case": tuple(CASES)}, whole={"depth": depths}),
        "branches": Part(cell=branches, axes={"activation": ACTIVATIONS}, whole={"layer": layers}),
    }


def _findings(results: Results) -> Iterator[Finding]:
    found = results["representations"]
    depth = found["depth"].values[-1]
    for case, of in CASES.items():
        published = PUBLISHED_GROWTH.get(case)
        expected = Expected.rounded(published) if published else None
        name = f"{of.title}: growth exponent of the mean"
        yield Finding(f"{name}, by octaves", Interval.of(found["growth"].sel(case=case)), expected)
        yield Finding(f"{name}, all layers", Interval.of(found["layers_growth"].sel(case=case)), expected)
    for case, of in CASES.items():
        published = PUBLISHED_RANK.get(case) if depth == PUBLISHED_DEPTH else None
        expected = Expected.rounded(published) if published else None
        name = f"{of.title}: rank of the representation / width, depth {depth}"
        yield Finding(f"{name}, {of.inputs} inputs", Interval.of(found["rank"].sel(case=case).isel(depth=-1)), expected)
        if case in PUBLISHED_RANK:
            yield Finding(f"{name}, {SOME} inputs", Interval.of(found["some_rank"].sel(case=case)), expected)
    for activation in ACTIVATIONS:
        cosines = results["branches"].sel(activation=activation)
        expected = Expected.rounded(f"{moments(activation).cosine:.3f}", "theory")
        name = f"M = 1, {ACTIVATION_TITLES[activation]}: cosine of branches, all pairs of layers"
        yield Finding(f"{name}, one input", Interval.of(cosines["one_input"]), expected)
        yield Finding(f"{name}, means over inputs", Interval.of(cosines["all_pairs"]), expected)


def _table(results: Results) -> list[list[str]]:
    found = results["representations"]
    rows = [["representations", "", *(f"L = {depth}" for depth in found["depth"].values)]]
    for name, title in (("rank", "rank / width"), ("mean", "norm of the mean")):
        for case, of in CASES.items():
            rows.append([of.title, title, *plus_minus(found[name].sel(case=case), ".4g", ".1g")])
    cosine = results["branches"]["cosine"]
    shown = cosine["layer"].values[-len(found["depth"]) :]
    blank = [""] * (len(rows[0]) - 2 - len(shown))
    rows.append(["cosine of branch means with all later ones", "", *(f"layer {layer}" for layer in shown), *blank])
    for activation in ACTIVATIONS:
        at = {"activation": activation, "layer": shown}
        name = f"M = 1, {ACTIVATION_TITLES[activation]}"
        rows.append([name, f"theory {moments(activation).cosine:.3f}", *plus_minus(cosine.sel(at)), *blank])
    return rows


def _draw(results: Results, figure: Figure) -> None:
    (left, middle, right), *_ = panels(figure, 3)
    found = results["representations"]
    depths = found["depth"].values
    for number, (case, of) in enumerate(CASES.items()):
        samples = found.sel(case=case)
        line(left, depths, samples["mean"], of.title, **style(number))
        line(middle, depths, samples["rank"], of.title, **style(number))
    start = float(found["mean"].sel(case="rms").isel(depth=0).mean())
    for share, exponent, label in ((0.6, 1.0, r"$\propto l$"), (0.2, 0.5, r"$\propto \sqrt{l}$")):
        guide = share * start * (depths / depths[0]) ** exponent
        left.plot(depths, guide, color="0.6", linewidth=1)
        left.annotate(label, (depths[-1], guide[-1]), textcoords="offset points", xytext=(-14, -16), color="0.4")
    left.set_title("Mean over inputs")
    left.set_ylabel("norm of the mean state")
    middle.set_title("Representation")
    middle.set_ylabel("effective rank / width")
    for axes in (left, middle):
        axes.set_yscale("log")
        depth_axis(axes, depths, "blocks passed, l")
    middle.legend(frameon=False, fontsize="small")

    cosines = results["branches"]["cosine"]
    layers = cosines["layer"].values
    for number, activation in enumerate(ACTIVATIONS):
        look = style(number)
        line(right, layers, cosines.sel(activation=activation), ACTIVATION_TITLES[activation], **look)
        right.axhline(moments(activation).cosine, color=look["color"], linestyle=":", linewidth=1)
    right.plot([], [], color="0.4", linestyle=":", linewidth=1, label=r"$E[\varphi]^2/E[\varphi^2]$, no fit")
    depth_axis(right, layers, "layer")
    right.set_title("Branch means, M = 1")
    right.set_ylabel("mean cosine with all later layers")
    right.legend(frameon=False, fontsize="small")


SPIKE = Study(
    name="spike",
    question="Does the mean over inputs outgrow everything else in the representation?",
    version=1,
    depths=(8, 16, 32, 64, 128, 256, 512),
    quick_depths=(4, 8, 16, 32, 64),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
)
