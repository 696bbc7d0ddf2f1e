"""What a study is, and how one is run: sweeps over cells and seeds, then findings, a table and a figure."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import depthgauge as dg
from depthgauge._common import arguments
from depthgauge.studies.rank import figures
from depthgauge.studies.rank.intervals import Finding, mean_and_half

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

SEEDS, QUICK_SEEDS = 12, 3
WIDTH, QUICK_WIDTH = 256, 64


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sweep of a study.

    Attributes
    ----------
    cell : callable
        Called as ``cell(width=..., **axes, **whole, seed=...)`` with a value of each axis; returns what `sweep` takes.
    axes : mapping
        Names and values: a cell for each combination and seed.
    whole : mapping
        Dims of the results and their labels.  The cell takes the labels of all at once, as a tuple, under the name of
        the dim with an s: those of ``depth`` as ``depths``.
    """

    cell: Callable[..., Mapping[str, Any]]
    axes: Mapping[str, Sequence[Any]]
    whole: Mapping[str, Sequence[Any]]


Results = Mapping[str, "xarray.Dataset"]


@dataclass(frozen=True, kw_only=True)
class Study:
    """One question about rank and depth, and how it is answered.

    Attributes
    ----------
    name : str
    question : str
        In one line.
    version : int
        Raised when a cell measures something else, so that results stored before are not taken for it.
    depths, quick_depths : tuple of int
        Numbers of blocks, ascending, by default and with quick.
    parts : callable
        From depths and quick to the sweeps, by name.
    findings : callable
        From the results, a Dataset a part, to the numbers found.
    table : callable
        From the results to rows of text, headings first.
    draw : callable
        Draws the results on an empty figure.
    seeds, width : int
        Number of seeds, and of features of a state, by default, without quick.
    packages : tuple of str
        What it needs beside xarray and SciPy.
    warning : str
        What the study does not show, printed with it.
    """

    name: str
    question: str
    version: int
    depths: tuple[int, ...]
    quick_depths: tuple[int, ...]
    parts: Callable[[tuple[int, ...], bool], Mapping[str, Part]]
    findings: Callable[[Results], Iterable[Finding]]
    table: Callable[[Results], list[list[str]]]
    draw: Callable[[Results, Figure], None]
    seeds: int = SEEDS
    width: int = WIDTH
    packages: tuple[str, ...] = ()
    warning: str = ""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyResult:
    """What a study found, from `run_study`.

    Attributes
    ----------
    study : Study
    width, seeds : int
    depths : tuple of int
    results : mapping of str to xarray.Dataset
        By the name of a part; every variable has the dim seed.
    findings : tuple of Finding
    seconds : float
        Of this run; what came from the store took none.
    """

    study: Study
    width: int
    seeds: int
    depths: tuple[int, ...]
    results: Results
    findings: tuple[Finding, ...]
    seconds: float

    def __repr__(self) -> str:
        sizes = f"width={self.width}, seeds={self.seeds}, depths={self.depths}"
        return f"StudyResult({self.study.name!r}, {sizes}, {len(self.findings)} findings)"

    def to_dict(self) -> dict[str, Any]:
        """Return all as plain data: the findings, and every measured curve as a mean and half a 95 % interval."""
        return {
            "study": self.study.name,
            "question": self.study.question,
            "width": self.width,
            "seeds": self.seeds,
            "depths": list(self.depths),
            "seconds": self.seconds,
            "findings": [finding.to_dict() for finding in self.findings],
            "curves": {part: _curves(result) for part, result in self.results.items()},
            **({"warning": self.study.warning} if self.study.warning else {}),
        }

    def figure(self) -> Figure:
        """Draw the study; needs matplotlib."""
        size = f"Width {self.width}, {self.seeds} seeds"
        return figures.study_figure(lambda figure: self.study.draw(self.results, figure), self.study.question, size)


def run_study(
    study: Study,
    *,
    seeds: int | None = None,
    depths: Sequence[int] | None = None,
    width: int | None = None,
    quick: bool = False,
    store: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> StudyResult:
    """Run a study; what a store has of it already is read, not run.

    Parameters
    ----------
    study : Study
        One of `STUDIES`.
    seeds : int, optional
        Number of seeds, 0, 1, ...; 12 by default, 3 with quick (and for trainability).
    depths : sequence of int, optional
        Numbers of blocks; the study's own by default.
    width : int, optional
        Features of a state; 256 by default, 64 with quick (and 32 for trainability).
    quick : bool
        Take small defaults, for a first look.
    store : path, optional
        An SQLite file of `dg.sweep`; several studies may share one.
    threads : int, optional
        Cells that run at a time, each on one thread.
    progress : bool, optional
        As for `dg.sweep`.

    Returns
    -------
    StudyResult

    Raises
    ------
    ValueError, TypeError
        If an argument is refused.
    RuntimeError
        If a cell fails.
    OSError
        If the store cannot be written.
    ImportError
        If an optional package is missing (extra ``studies``).
    """
    check_packages([arguments.instance("study", study, Study)])
    started = time.perf_counter()
    count = arguments.integer("seeds", (QUICK_SEEDS if quick else study.seeds) if seeds is None else seeds, minimum=1)
    features = arguments.integer(
        "width", (min(QUICK_WIDTH, study.width) if quick else study.width) if width is None else width, minimum=2
    )
    layers = (study.quick_depths if quick else study.depths) if depths is None else _ascending(depths)
    executor = ThreadPoolExecutor(arguments.thread_count(threads))
    try:
        results = {
            name: _swept(study, name, part, features, seeds=count, executor=executor, store=store, progress=progress)
            for name, part in study.parts(layers, quick).items()
        }
    finally:
        # Whoever interrupts a run does not want to wait for the cells that have begun.
        executor.shutdown(wait=False, cancel_futures=True)
    return StudyResult(
        study=study,
        width=features,
        seeds=count,
        depths=layers,
        results=results,
        findings=tuple(study.findings(results)),
        seconds=time.perf_counter() - started,
    )


def _ascending(depths: Sequence[int]) -> tuple[int, ...]:
    layers = tuple(sorted({arguments.integer(f"depths[{at}]", depth, minimum=1) for at, depth in enumerate(depths)}))
    if not layers:
        raise ValueError("depths is empty; give at least one number of blocks")
    return layers


def _swept(study: Study, name: str, part: Part, width: int, **options: Any) -> xarray.Dataset:
    """Return the results of one part, without the dims that have one value in all of them."""
    whole = {f"{dim}s": [tuple(labels)] for dim, labels in part.whole.items()}
    found = dg.sweep(
        part.cell,
        {**part.axes, "width": [width], **whole},
        coords=part.whole,
        name=f"rank {study.name} {name}",
        version=f"{dg.__version__} study {study.version}",
        on_error="raise",
        **options,
    )
    return found.isel(dict.fromkeys(("width", *whole), 0), drop=True)


def check_packages(studies: Iterable[Study]) -> None:
    """Raise ImportError that says what to install if one of the studies lacks a package."""
    for package in dict.fromkeys(name for study in studies for name in ("xarray", "scipy", *study.packages)):
        if importlib.util.find_spec(package) is None:
            message = f"rank studies need {package}, which is not installed; try: pip install 'depthgauge[studies]'"
            raise ImportError(message)


def _curves(result: xarray.Dataset) -> dict[str, Any]:
    curves: dict[str, Any] = {"coords": {name: result[name].values.tolist() for name in result.dims if name != "seed"}}
    for name, samples in result.data_vars.items():
        mean, half = mean_and_half(samples)
        curves[str(name)] = {"dims": list(mean.dims), "mean": mean.values.tolist(), "half": half.values.tolist()}
    return curves
