"""The Jacobian by path order: T_k, the sum of all paths through exactly k branches, and what it takes to predict it.

If branches are uncorrelated, |T_k|² / d is the k-th elementary symmetric polynomial of the measured b_l²; where all b_l
are alike and k is far below L, it comes near a term of Poisson's law, (b_1² + ... + b_L²)^k / k!, which it never
exceeds (Maclaurin).  Behind a Pre-Norm they are not alike: states grow with depth, and b_l falls, the more so the
larger the strength; what T_k is below the Poisson prediction is that, and not a correlation.

T_1 is a sum of nearly independent matrices, and so nearly a Gaussian matrix, of effective rank 0.805 d for large d.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import depthgauge as dg
from depthgauge.studies.rank.branches import branch_jacobians
from depthgauge.studies.rank.figures import line, panels, sequence_color, style
from depthgauge.studies.rank.intervals import Expected, Finding, Interval, plus_minus
from depthgauge.studies.rank.networks import generated, inputs, network
from depthgauge.studies.rank.study import Part, Results, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORDERS = tuple(range(1, 9))
SHOWN_ORDERS = (1, 2, 4, 8)
STRENGTHS = (0.1, 1.0)
QUANTITIES = {
    "over_predicted": r"$|T_k|$ / prediction by measured $b_l$",
    "over_poisson": r"$|T_k|$ / Poisson prediction",
    "rank": r"effective rank of $T_k$ / width",
}


def orders(strength: float, width: int, orders: tuple[int, ...], depths: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return norms of T_k over both predictions of `dg.path_norms`, and ranks as shares of the width: (depth, order).

    Ratios are NaN for the orders above the depth, which have no paths.
    """
    block, x, chosen = network("pre", beta=strength), inputs(seed, 1, width), list(orders)
    ratios: list[Any] = []
    for depth in depths:
        paths = dg.path_norms(block, generated(block, depth, width, seed), x, max(orders), ranks=True)
        assert paths.effective_rank is not None
        norms = np.where(paths.norms > 0, paths.norms, np.nan)
        found = norms / paths.predicted, norms / paths.predicted_poisson, paths.effective_rank / width
        ratios.append([quantity[chosen, 0] for quantity in found])
    return {
        name: (("depth", "order"), np.array(values))
        for name, values in zip(QUANTITIES, np.swapaxes(ratios, 0, 1), strict=True)
    }


def cosines(strength: float, depth: int, width: int, distances: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return cosines between Jacobians of branches so far apart, in units of 1 / width: (distance,), and of all pairs.

    Independent Gaussian matrices have mean 0 and root mean square 1 / width.
    """
    block = network("pre", beta=strength)
    weights = generated(block, depth, width, seed).materialize()
    flat = branch_jacobians(block, weights, inputs(seed, 1, width)).reshape(depth, -1)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    apart = [width * np.einsum("li,li->l", flat[distance:], flat[:-distance]) for distance in distances]
    # |sum of all|² holds every pair twice, and every one with itself.
    pairs_of_all = float(np.sum(np.sum(flat, axis=0) ** 2)) - depth
    return {
        "mean": ("distance", [float(np.mean(values)) for values in apart]),
        "rms": ("distance", [float(np.sqrt(np.mean(values**2))) for values in apart]),
        "mean_of_all": width * pairs_of_all / max(depth * (depth - 1), 1),
    }


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    deepest = depths[-1]
    distances = tuple(2**power for power in range(deepest.bit_length()) if 2**power < deepest)
    return {
        "orders": Part(cell=orders, axes={"strength": STRENGTHS}, whole={"depth": depths, "order": ORDERS}),
        "cosines": Part(cell=cosines, axes={"strength": STRENGTHS, "depth": (deepest,)}, whole={"distance": distances}),
    }


def _findings(results: Results) -> Iterator[Finding]:
    deep, pairs = results["orders"].isel(depth=-1), results["cosines"].isel(depth=-1)
    depth = int(deep["depth"])
    for strength in STRENGTHS:
        at = f"strength {strength:g}, depth {depth}"
        of_orders, of_pairs = deep.sel(strength=strength), pairs.sel(strength=strength)
        shown = [order for order in SHOWN_ORDERS if order <= depth]
        for order in shown:
            yield Finding(
                f"norm of T_{order} over its prediction, {at}",
                Interval.of(of_orders["over_predicted"].sel(order=order)),
                Expected.rounded("1.0", "theory"),
            )
        for order in shown[1:]:
            yield Finding(
                f"norm of T_{order} over Poisson's, {at}",
                Interval.of(of_orders["over_poisson"].sel(order=order)),
                Expected.at_most(1, "theory"),
            )
        yield Finding(
            f"effective rank of T_1 / width, {at}",
            Interval.of(of_orders["rank"].sel(order=1)),
            Expected.rounded("0.80", "theory"),
        )
        yield Finding(
            f"mean cosine of branch Jacobians times width, {at}",
            Interval.of(of_pairs["mean_of_all"]),
            Expected("0", 0, 0, "theory"),
        )
        yield Finding(
            f"rms cosine of branch Jacobians times width, {at}",
            Interval.of((of_pairs["rms"] ** 2).mean("distance") ** 0.5),
            Expected.rounded("1.0", "theory"),
        )


def _table(results: Results) -> list[list[str]]:
    measured = results["orders"]
    titles = {"over_predicted": "norm / predicted", "over_poisson": "norm / Poisson", "rank": "rank"}
    rows = [["", "strength", "order", *(f"L = {depth}" for depth in measured["depth"].values)]]
    for name, title in titles.items():
        for strength in STRENGTHS:
            for order in SHOWN_ORDERS:
                at = {"strength": strength, "order": order}
                rows.append([title, f"{strength:g}", f"{order}", *plus_minus(measured[name].sel(at))])
    return rows


def _draw(results: Results, figure: Figure) -> None:
    measured = results["orders"]
    depths = measured["depth"].values
    grid = panels(figure, 2, 2)
    for axes, (name, title) in zip(grid.flat, QUANTITIES.items(), strict=False):
        for strength, dashes in zip(STRENGTHS, ("-", "--"), strict=True):
            for number, depth in enumerate(depths):
                color = sequence_color(number / max(len(depths) - 1, 1))
                samples = measured[name].sel(strength=strength, depth=depth)
                label = f"L = {depth}, strength {strength:g}"
                line(axes, ORDERS, samples, label, color=color, linestyle=dashes, marker="o")
        axes.set_xlabel("branches passed, k")
        axes.set_ylabel(title)
    grid[0, 1].set_ylim(0, 1.1)
    grid[1, 0].set_ylim(0, 1)
    grid[0, 1].legend(frameon=False, fontsize="small")
    _draw_cosines(results, grid[1, 1])


def _draw_cosines(results: Results, axes: Axes) -> None:
    pairs = results["cosines"].isel(depth=-1)
    distances = pairs["distance"].values
    axes.set_xscale("log", base=2)
    axes.set_xticks(distances, [str(distance) for distance in distances])
    axes.set_xlabel(f"distance of two blocks, L = {int(pairs['depth'])}")
    axes.set_ylabel(r"cosine of branch Jacobians $\times$ width")
    titles = {"rms": "root mean square", "mean": "mean"}
    for number, (name, strength) in enumerate(itertools.product(titles, STRENGTHS)):
        samples = pairs[name].sel(strength=strength)
        line(axes, distances, samples, f"{titles[name]}, strength {strength:g}", **style(number))
    axes.set_ylim(-0.5, 1.5)
    axes.legend(frameon=False, fontsize="small", loc="center right")


PATHS = Study(
    name="paths",
    question="Are paths of every order as large as uncorrelated branches make them?",
    version=1,
    depths=(12, 48, 192),
    quick_depths=(8, 16, 32),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
)
