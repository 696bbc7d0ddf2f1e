"""Trainability: what rank at initialization says of the training of the same network on a small real task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import depthgauge as dg
from depthgauge._common.arrays import Array, Floats
from depthgauge.studies.rank.digits import CLASSES, PIXELS, TRAINING, split_digits
from depthgauge.studies.rank.figures import line, panels, style
from depthgauge.studies.rank.fits import chance_above, slope, spearman
from depthgauge.studies.rank.intervals import Finding, Interval
from depthgauge.studies.rank.networks import TITLES, network
from depthgauge.studies.rank.study import Part, Results, Study
from depthgauge.studies.rank.training import FINAL_NORM, Classifier, score, train

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bools = npt.NDArray[np.bool_]

PLACEMENTS = {"none": "No norm", **TITLES}
MATRICES, QUICK_MATRICES = (1, 2), (2,)
ALPHAS, QUICK_ALPHAS = (0.25, 0.5, 1.0, 2.0), (0.5, 2.0)
RATES, QUICK_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1), (1e-3, 1e-2)
STEPS, QUICK_STEPS = 300, 40
BATCH = 64
# Images over which the rank of a network is averaged.
RANKED = 8

# The test accuracy from which on a network counts as trained, and the ranks that are called low and high.
TRAINS = 0.9
LOW, HIGH = 0.1, 0.3

MEASURES = {"rank": "rank", "rank_read": "rank with final norm"}
LEARNING_RATES = {"log_best": "best learning rate", "log_highest": "highest learning rate that trains"}

WARNING = f"""\
What this does not show: that rank decides what trains. The task is small and easy ({PIXELS} pixels, {CLASSES} classes,
{TRAINING} images to learn from): a linear classifier does about as well as the best of these networks, so that here
a network trains if its depth does no harm. The networks are narrow and are trained briefly, by Adam at a constant
rate, without warm-up, clipping, weight decay or learned gains, any of which may rescue a network that fails here;
Post-Norm in particular is rarely trained without warm-up. The learning rates are a few, far apart; where the highest
of them trains, a higher one might. The correlations are over networks that were chosen to reach from easy to
hopeless; with another choice they are others, and those that train differ in accuracy by a percent or two. Depth and
strength also change how signal and gradient grow, so what goes with rank need not come from rank. Which rank is low
({LOW:g}) or high ({HIGH:g}) and what counts as trained (accuracy {TRAINS:g}) was set after a look at one seed. A star
in the table marks where rank misleads: low, yet it trains, or high, yet it does not."""


def trained(
    matrices: int,
    placement: str,
    depth: int,
    steps: int,
    width: int,
    alphas: tuple[float, ...],
    learning_rates: tuple[float, ...],
    seed: int,
) -> dict[str, Any]:
    """Return the rank of networks at initialization, and what comes of training each at each learning rate.

    A network that diverges scores as one that guesses.
    """
    task = split_digits(seed)
    block = network(placement, matrices=matrices)
    start = Classifier.drawn(block, depth, width, alphas=alphas, pixels=PIXELS, classes=CLASSES, seed=seed)
    rank, rank_read = ranks(start, task.training.images[:RANKED])
    runs = start.copied((len(learning_rates),))
    train(runs, task.training, learning_rates, steps=steps, batch=BATCH, rng=np.random.default_rng([seed, 1]))
    training, validation, test = (score(runs, part) for part in task)
    dims = ("learning_rate", "alpha")
    return {
        "rank": ("alpha", rank),
        "rank_read": ("alpha", rank_read),
        "training_loss": (dims, training.loss),
        "validation_loss": (dims, validation.loss),
        "accuracy": (dims, test.accuracy),
        "diverged": (dims, ~(training.finite & validation.finite & test.finite)),
    }


def ranks(classifier: Classifier, images: Array) -> tuple[Floats, Floats]:
    """Return the effective ranks, as shares of the width, of the stack and of the stack with the final norm.

    Means over images, each of the shape of the replicate axes; in float64, whose range a stack without norms takes
    longer to leave.  The final norm takes out the direction of the state, along which a stack without norms may grow
    far beyond all others.
    """
    exact = classifier.copied(dtype=np.float64)
    x = images @ exact.embedding
    stack, _ = dg.jacobian(exact.block, exact.weights, x, return_log_scale=True)
    states = dg.forward(exact.block, exact.weights, x, keep="nothing").output
    norm = dg.jacobian(FINAL_NORM, exact.norm_weights(), states)
    rank, rank_read = (dg.spread(jacobians).effective_rank.mean(axis=-1) for jacobians in (stack, norm @ stack))
    return rank / exact.weights.width, rank_read / exact.weights.width


def _parts(depths: tuple[int, ...], quick: bool) -> Mapping[str, Part]:
    full, small = (MATRICES, ALPHAS, RATES, STEPS), (QUICK_MATRICES, QUICK_ALPHAS, QUICK_RATES, QUICK_STEPS)
    matrices, alphas, rates, steps = small if quick else full
    axes = {"matrices": matrices, "placement": tuple(PLACEMENTS), "depth": depths, "steps": (steps,)}
    return {"training": Part(cell=trained, axes=axes, whole={"alpha": alphas, "learning_rate": rates})}


def best_runs(results: Results) -> xarray.Dataset:
    """Return each network at the learning rate with the lowest validation loss."""
    runs = results["training"].isel(steps=0, drop=True)
    best = runs.isel(learning_rate=runs["validation_loss"].argmin("learning_rate")).reset_coords("learning_rate")
    strength: xarray.DataArray = best["alpha"] ** best["matrices"]
    best["reach"] = (strength * np.sqrt(best["depth"])).broadcast_like(best["rank"])
    best["trains"] = best["accuracy"] >= TRAINS
    best["log_best"] = np.log10(best["learning_rate"])
    best["log_highest"] = np.log10(runs["learning_rate"].where(runs["accuracy"] >= TRAINS).max("learning_rate"))
    return best.transpose("placement", "matrices", "alpha", "depth", "seed")


def _findings(results: Results) -> Iterator[Finding]:
    best = best_runs(results)
    rank, accuracy, trains = best["rank"], best["accuracy"], best["trains"]
    for placement, words in PLACEMENTS.items():
        at = {"placement": placement}
        yield _finding(f"{words}: Spearman correlation of rank and accuracy", spearman, rank.sel(at), accuracy.sel(at))
    for name, title in MEASURES.items():
        values = best[name]
        correlation = f"Spearman correlation of {title} and accuracy"
        yield _finding(correlation, spearman, values, accuracy)
        yield _finding(f"{correlation} of what trains", spearman, values, accuracy.where(trains))
        yield _finding(f"Chance that what trains has the higher {title}", chance_above, values, trains)
        yield _finding(f"Lowest {title} that trains", _lowest, values, trains)
        yield _finding(f"Highest {title} that does not train", _highest, values, ~trains)
        yield _finding(f"Share that trains of {title} below {LOW:g}", _share, trains, values < LOW)
        between = (values >= LOW) & (values < HIGH)
        yield _finding(f"Share that trains of {title} {LOW:g} to {HIGH:g}", _share, trains, between)
        yield _finding(f"Share that trains of {title} from {HIGH:g} on", _share, trains, values >= HIGH)
    yield _finding("Spearman correlation of strength * sqrt(L) and accuracy", spearman, best["reach"], accuracy)
    yield _finding("Spearman correlation of rank and training loss", spearman, rank, best["training_loss"])
    for name, title in LEARNING_RATES.items():
        yield _finding(f"Spearman correlation of rank and {title}", spearman, rank, best[name].where(trains))
        if best.sizes["depth"] > 1:
            depths = np.log10(best["depth"].values)
            for placement, words in PLACEMENTS.items():
                logs = _log_rates(best, name).sel(placement=placement)
                exponents = Interval.of([slope(depths, samples, least=2) for samples in logs])
                yield Finding(f"{words}: exponent of the {title} by depth", exponents)
    rates = results["training"]["learning_rate"].values[[0, -1]]
    at_ends = best["learning_rate"].isin(rates)
    yield _finding("Share of best learning rates at an end of those tried", _share, at_ends, trains)


def _finding(name: str, measure: Callable[..., float], *variables: xarray.DataArray) -> Finding:
    """Return what a measure of flat arrays says of each seed."""
    seeds = range(variables[0].sizes["seed"])
    samples = [measure(*(variable.isel(seed=seed).values.ravel() for variable in variables)) for seed in seeds]
    return Finding(name, Interval.of(samples))


def _share(of: Bools, where: Bools) -> float:
    return float(of[where].mean()) if where.any() else float("nan")


def _lowest(values: Floats, where: Bools) -> float:
    return float(values[where].min()) if where.any() else float("nan")


def _highest(values: Floats, where: Bools) -> float:
    return -_lowest(-values, where)


def _log_rates(best: xarray.Dataset, name: str) -> xarray.DataArray:
    """Return the mean log10 of a learning rate of what trains at every depth: (placement, seed, depth)."""
    throughout: xarray.DataArray = best["trains"].all("depth")
    logs: xarray.DataArray = best[name].where(throughout)
    return logs.mean(("matrices", "alpha")).transpose("placement", "seed", "depth")


def _table(results: Results) -> list[list[str]]:
    mean = best_runs(results).mean("seed")
    depths = mean["depth"].values
    rows = [["placement", "M", "alpha", *(f"L = {depth}: rank, accuracy, best rate" for depth in depths)]]
    for placement, words in PLACEMENTS.items():
        for matrices in mean["matrices"].values:
            for alpha in mean["alpha"].values:
                row = mean.sel(placement=placement, matrices=matrices, alpha=alpha)
                rows.append([words, f"{matrices}", f"{alpha:g}", *(_cell(row.sel(depth=depth)) for depth in depths)])
    return rows


def _cell(mean: xarray.Dataset) -> str:
    rank, accuracy, rate = (float(mean[name]) for name in ("rank", "accuracy", "log_best"))
    misleads = accuracy >= TRAINS if rank < LOW else rank >= HIGH and accuracy < TRAINS
    return f"{rank:.2f}  {100 * accuracy:3.0f} %  {10**rate:.4f} {'*' if misleads else ' '}"


def _draw(results: Results, figure: Figure) -> None:
    best = best_runs(results)
    above, below = panels(figure, 2, 2)
    for axes, (name, title) in zip(above, MEASURES.items(), strict=True):
        _scatter(axes, best, name)
        axes.set_xlabel(f"effective {title} at initialization / width")
        axes.set_ylabel("test accuracy at the best learning rate")
    above[0].legend(frameon=False, fontsize="small", loc="lower right", title="larger: deeper", title_fontsize="small")
    for axes, (name, title) in zip(below, LEARNING_RATES.items(), strict=True):
        logs = _log_rates(best, name)
        for number, (placement, words) in enumerate(PLACEMENTS.items()):
            line(axes, best["depth"].values, logs.sel(placement=placement), words, **style(number))
        axes.set_xscale("log", base=2)
        axes.set_xlabel("depth L")
        axes.set_ylabel(f"log10 of the {title}")
    below[1].legend(frameon=False, fontsize="small", loc="lower left")


def _scatter(axes: Axes, best: xarray.Dataset, measure: str) -> None:
    """Draw a point for each network and seed, larger the deeper it is."""
    depths = best["depth"].values
    for number, (placement, words) in enumerate(PLACEMENTS.items()):
        look = {"alpha": 0.6, "linewidths": 0.8} | {key: style(number)[key] for key in ("color", "marker")}
        for depth, size in zip(depths, np.linspace(10, 60, len(depths)), strict=True):
            at = best.sel(placement=placement, depth=depth)
            x, y = (at[name].values.ravel() for name in (measure, "accuracy"))
            axes.scatter(x, y, s=size, label=words if depth == depths[-1] else None, **look)
    axes.axhline(TRAINS, color="0.5", linestyle=":", linewidth=1)
    for bound in (LOW, HIGH):
        axes.axvline(bound, color="0.5", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)


TRAINABILITY = Study(
    name="trainability",
    question="Does rank at initialization tell which networks train, and at which learning rate?",
    version=1,
    depths=(4, 16, 64),
    quick_depths=(4, 16),
    parts=_parts,
    findings=_findings,
    table=_table,
    draw=_draw,
    seeds=3,
    packages=("sklearn",),
    width=32,
    warning=WARNING,
)
