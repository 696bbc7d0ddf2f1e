"""Sweeps: one function over a grid of parameters and seeds, kept in a store that survives the run."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from depthgauge._common import arguments
from depthgauge.backends.build_info import build_config
from depthgauge.sweeps.cells import Outcome
from depthgauge.sweeps.dataset import Found, Layouts, checked_coords, dataset, require
from depthgauge.sweeps.executors import checked_executor, outcomes
from depthgauge.sweeps.fingerprint import function_name, source_version
from depthgauge.sweeps.grid import Cell, Grid, checked_grid
from depthgauge.sweeps.store import Path, Store

if TYPE_CHECKING:
    import xarray


def sweep(
    function: Callable[..., Mapping[str, Any]],
    grid: Mapping[str, Any] | Iterable[tuple[str, Iterable[Any]]],
    *,
    seeds: int | Iterable[int] = 1,
    coords: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    store: Path | None = None,
    name: str | None = None,
    version: str = "",
    on_error: str = "store",
    progress: bool | None = None,
) -> xarray.Dataset:
    """Call a function at every point of a grid for every seed; return all results as one Dataset.

    With a store each result is committed as it arrives.  A run that was killed, at whatever moment, goes on from there
    when it is called again: cells with a result are read, not run.  Cells that failed are tried again.

    Parameters
    ----------
    function : callable
        Called as ``function(**point, seed=seed)``.  Returns a dict of names and values: a number, bool, string, array,
        or ``(dims, array)``, where dims names each axis of the array.  Every cell returns the same names, dtypes and
        dims.  Lengths may differ along declared dims; shorter arrays are filled up with NaN.
    grid : mapping of str to iterable
        The axes, or pairs of the same.  Values are None, bools, ints, floats, strings, `Block`, and tuples, lists and
        dicts of these.  The function gets them in plain Python: ``np.int64(4)`` as 4, a list as a tuple.  4 and 4.0 are
        two values, which a function can tell apart; ints beside floats on one axis are floats, as in an array.  Without
        axes there is one cell a seed.
    seeds : int or iterable of int
        N for 0 ... N-1, or the seeds themselves, of 64 bits.
    coords : mapping of str to sequence, optional
        Labels of an axis, in place of its values, or of a declared dim.
    executor : concurrent.futures.Executor, optional
        Where the cells run: a pool of threads or processes, Dask's ``Client.get_executor()``, mpi4py's
        ``MPIPoolExecutor``.  Default: here, one after the other.  The results have the same bits.  It is not shut down.
        Calls in a cell use no more than its worker's share of the threads that this process may use; where the executor
        does not tell its number of workers, as Dask's does not, that is ``DEPTHGAUGE_NUM_THREADS``, or 1.  The share
        holds in the thread that runs the cell; threads that the function starts itself do not know of it.
    store : path, optional
        An SQLite file, made where there is none.  It may hold several functions.  One sweep writes to it at a time and
        holds a lock beside it, a file that ends in ``.lock``; others may read it meanwhile.
    name : str, optional
        The function's name in the store; its ``__name__`` by default.
    version : str
        The function's version in the store: what is stored under another is not used.  By default a hash of its source,
        defaults, enclosed values, arguments of a partial, and the numbers, strings and `Block` constants among the
        globals it names.  Arrays among them and functions it calls are not seen: give a version when those may change.
    on_error : {"store", "raise"}
        What an exception in a cell does: ``"store"`` keeps its traceback, goes on, and warns at the end; ``"raise"``
        stops the sweep.
    progress : bool, optional
        Whether to show a bar (tqdm); by default on a terminal.

    Returns
    -------
    xarray.Dataset
        Variables of dims ``(axes..., "seed", dims...)``; dims that were not declared are named after the variable.
        Where cells failed or arrays were filled up, floats are NaN, integers and bools float64 with NaN, strings empty.
        Coordinates ``cell_seconds`` and ``cell_error`` (traceback, empty where there is none) over the cells.
        Attributes: name, version, number of cells and of those failed, versions of depthgauge, NumPy and Python, and
        ``build_config`` as JSON.

    Raises
    ------
    TypeError, ValueError
        If an argument is refused, two results do not fit together (both cells are named, and stay in the store), the
        function cannot be sent to the executor or needs a `version`, or the store is of another kind, another schema or
        damaged.
    OSError
        If the store cannot be written, its disk is full, or another sweep writes to it.
    RuntimeError
        If a cell fails and `on_error` is "raise", or the executor breaks.
    ImportError
        If xarray, or tqdm for the bar, is missing (extra ``studies``).

    Warns
    -----
    RuntimeWarning
        If cells failed.

    Examples
    --------
    >>> import depthgauge as dg
    >>> def growth(depth, seed):
    ...     block = dg.Block()
    ...     x = dg.normal(seed, (8, 16))
    ...     forward = dg.forward(block, dg.GeneratedWeights(block, depth, 16, seed=seed), x)
    ...     return {"rms": ("layer", forward.rms)}
    >>> dict(dg.sweep(growth, {"depth": [2, 4]}, seeds=3).sizes)
    {'depth': 2, 'seed': 3, 'layer': 5}
    """
    require("xarray")
    points = checked_grid(grid, seeds)
    labels = checked_coords(coords)
    layouts = Layouts(points, labels)
    executor = checked_executor(executor)
    on_error = arguments.choice("on_error", on_error, ("store", "raise"))
    _check_call(function, points)
    name, version = _identity(function, name, version, store)

    with nullcontext() if store is None else Store(store, write=True) as opened:
        run = _Run(name, version, points, layouts, opened)
        try:
            with (
                closing(outcomes(function, run.pending, executor, run.keep)) as arriving,
                _bar(progress, name, len(run.cells), len(run.found)) as bar,
            ):
                for cell, outcome in arriving:
                    bar.update()
                    if not outcome.error:
                        layouts.add(cell, outcome.layout)
                    elif on_error == "raise":
                        raise RuntimeError(f"{name} failed at {cell}:\n{outcome.error}")
        except KeyboardInterrupt:
            raise KeyboardInterrupt(run.interrupted()) from None
    found = run.by_key()
    _warn_of_failures(name, len(run.cells), found, stored=store is not None)
    return dataset(name, version, points, labels, layouts, found)


class _Run:
    """The cells of one call of `sweep`: those that have an outcome, and those still to be run.

    Outcomes are kept here, and in a store where there is one.

    Attributes
    ----------
    cells : dict
        All cells by key.
    found : dict
        What came of them so far, by key.
    pending : list of Cell
        Those without a result at the start.
    """

    def __init__(self, name: str, version: str, grid: Grid, layouts: Layouts, store: Store | None) -> None:
        self._name, self._version, self._layouts, self._store = name, version, layouts, store
        self.cells = {cell.key: cell for cell in grid.cells()}
        self.found = {} if store is None else self._results_in(store)
        self.pending = [cell for key, cell in self.cells.items() if key not in self.found]
        self._environment, self._number = "", 0
        if self.pending:
            self._environment = json.dumps(build_config())
            if store is not None:
                self._number = store.begin(name, version, grid.to_json(), self._environment)

    def _results_in(self, store: Store) -> dict[tuple[str, int], Found]:
        """Return what a store has; failed cells are left out, for they are run again."""
        environments = {past.id: past.environment for past in store.runs(self._name, self._version)}
        found = {}
        for row in store.rows(self._name, self._version):
            cell = self.cells.get(row.key)
            if cell is not None and not row.outcome.error:
                found[cell.key] = Found(cell, row.outcome, environments[row.run])
                self._layouts.add(cell, row.outcome.layout)
        return found

    def keep(self, cell: Cell, outcome: Outcome) -> None:
        """Take the outcome of a cell."""
        if self._store is not None:
            self._store.put(self._number, self._name, self._version, cell.parameters, cell.seed, outcome)
        self.found[cell.key] = Found(cell, outcome, self._environment)

    def by_key(self) -> list[Found]:
        """Return what came of the cells, in an order that does not depend on the executor."""
        return [self.found[key] for key in sorted(self.found)]

    def interrupted(self) -> str:
        """Return what an interrupt says."""
        where, kept = "", "they are lost without store="
        if self._store is not None:
            where, kept = f" in {self._store}", "call it again to go on from there"
        return f"{self._name}: {self._layouts.results} of {len(self.cells)} cells have a result{where}; {kept}"


def _warn_of_failures(name: str, cells: int, found: Iterable[Found], *, stored: bool) -> None:
    """Warn the caller of `sweep` if cells failed."""
    failures = [(cell, outcome) for cell, outcome, _ in found if outcome.error]
    if failures:
        cell, outcome = failures[0]
        warnings.warn(
            f"{len(failures)} of {cells} cells of {name} failed, such as {cell}: "
            f"{outcome.error.strip().splitlines()[-1]}. The tracebacks are in cell_error of the result"
            + ("; the next run tries these cells again" if stored else ""),
            RuntimeWarning,
            stacklevel=3,
        )


def _check_call(function: object, grid: Grid) -> None:
    """Raise TypeError before the first call if the function does not take the axes of the grid and a seed."""
    if not callable(function):
        raise TypeError(f"function must be callable; got {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some callables have none
    try:
        signature.bind(**dict.fromkeys(grid.dims))
    except TypeError as error:
        takes = f"function is called with {', '.join(grid.dims)} by name, the axes of grid and the seed"
        raise TypeError(f"{takes}; it takes {signature}: {error}") from None


def _identity(function: Callable[..., Any], name: str | None, version: str, store: Path | None) -> tuple[str, str]:
    """Return name and version of the function in the store."""
    for argument, value in (("name", function_name(function) if name is None else name), ("version", version)):
        if not isinstance(value, str):
            raise TypeError(f"{argument} must be a string; got {value!r}")
    name = name or function_name(function)
    if not version:
        try:
            version = source_version(function)
        except ValueError as error:
            if store is not None:
                raise ValueError(
                    f"a store tells functions apart by a hash of their source, and here {error}; "
                    "give version=, a string of your own that changes when the function does"
                ) from None
    return name, version


class _Silent:
    def update(self) -> None:
        """Show nothing."""


@contextmanager
def _bar(progress: bool | None, name: str, total: int, initial: int) -> Iterator[Any]:
    """Show a bar where it is asked for, or where there is a terminal and tqdm."""
    if progress is not None and arguments.flag("progress", progress):
        require("tqdm")
    shown = sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None if progress is None else progress
    if not shown:
        yield _Silent()
        return
    from tqdm import tqdm

    with tqdm(desc=name, total=total, initial=initial, unit="cell", dynamic_ncols=True) as bar:
        yield bar
