"""Sweeps: one function over a grid of parameters and seeds, kept in a store that survives the run."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from depthgauge._common import arguments
from depthgauge._common.arrays import Array
from depthgauge.backends.build_info import build_config
from depthgauge.sweeps.cells import Outcome
from depthgauge.sweeps.dataset import Layouts, checked_coords, dataset, require
from depthgauge.sweeps.executors import checked_executor, outcomes
from depthgauge.sweeps.fingerprint import function_name, source_version
from depthgauge.sweeps.grid import Cell, Grid, checked_grid, joined
from depthgauge.sweeps.store import Row, Store

if TYPE_CHECKING:
    import xarray

Path = str | os.PathLike[str]


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
        While a cell runs, ``DEPTHGAUGE_NUM_THREADS`` is its worker's share of the threads that this process may use;
        where the executor does not tell its number of workers, as Dask's does not, it is what it was, or 1.
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

    with Store(store, write=True) as cells:
        index = {cell.key: cell for cell in points.cells()}
        done = set()
        for parameters, seed, layout in cells.finished(name, version):
            cell = index.get((parameters, seed))
            if cell is not None:
                done.add(cell.key)
                layouts.add(cell, layout)
        pending = [cell for key, cell in index.items() if key not in done]
        run = cells.begin(name, version, points.to_json(), json.dumps(build_config())) if pending else 0

        def keep(cell: Cell, outcome: Outcome) -> None:
            cells.put(run, name, version, cell.parameters, cell.seed, outcome)

        try:
            with (
                closing(outcomes(function, pending, executor, keep)) as arriving,
                _bar(progress, name, len(index), len(done)) as bar,
            ):
                for cell, outcome in arriving:
                    bar.update()
                    if not outcome.error:
                        layouts.add(cell, outcome.layout)
                    elif on_error == "raise":
                        raise RuntimeError(f"{name} failed at {cell}:\n{outcome.error}")
        except KeyboardInterrupt:
            kept = "call it again to go on from there" if store is not None else "they are lost without store="
            message = f"{name}: {layouts.results} of {len(index)} cells have a result in {cells}; {kept}"
            raise KeyboardInterrupt(message) from None

        environments = {past.id: past.environment for past in cells.runs(name, version)}
        found = [
            (index[row.key], row.outcome, environments[row.run])
            for row in cells.rows(name, version)
            if row.key in index
        ]
    result = _assembled(name, version, points, labels, layouts, found)
    failures = [(cell, outcome) for cell, outcome, _ in found if outcome.error]
    if failures:
        cell, outcome = failures[0]
        warnings.warn(
            f"{len(failures)} of {len(index)} cells of {name} failed, such as {cell}: "
            f"{outcome.error.strip().splitlines()[-1]}. The tracebacks are in cell_error of the result"
            + ("; the next run tries these cells again" if store is not None else ""),
            RuntimeWarning,
            stacklevel=2,
        )
    return result


def read_store(
    *paths: Path,
    name: str | None = None,
    version: str | None = None,
    coords: Mapping[str, Any] | None = None,
) -> xarray.Dataset:
    """Return what sweeps have stored, from one or several files, without the function.

    A store may be read while a sweep writes to it, or after that was killed: cells not there yet are NaN.

    Parameters
    ----------
    *paths : path
        The stores.  Their grids are joined: every value of every axis, and every seed; numbers ascend if they do in
        every grid, other values keep the order in which they were asked for.
    name, version : str, optional
        Which function, where the stores hold several.
    coords : mapping of str to sequence, optional
        As in `sweep`.

    Returns
    -------
    xarray.Dataset
        As `sweep` returns it.

    Raises
    ------
    ValueError
        If the stores hold several functions or versions and none is chosen, or not the one chosen; two stores have
        different results for one cell; the results do not fit together; or a file is no store or damaged.
    OSError
        If a file cannot be read.
    ImportError
        If xarray is missing (extra ``studies``).
    """
    require("xarray")
    if not paths:
        raise TypeError("read_store takes at least one path")
    labels = checked_coords(coords)
    grids: list[Grid] = []
    rows: dict[tuple[str, int], tuple[Row, str, Store]] = {}
    with ExitStack() as stack:
        stores = [stack.enter_context(Store(path, write=False)) for path in paths]
        name, version = _chosen(stores, name, version)
        for store in stores:
            runs = store.runs(name, version)
            grids += [Grid.from_json(run.grid) for run in runs]
            environments = {run.id: run.environment for run in runs}
            for row in store.rows(name, version):
                known = rows.get(row.key)
                if known is None or known[0].outcome.error:
                    rows[row.key] = row, environments[row.run], store
                elif not row.outcome.error and not row.outcome.same_result(known[0].outcome):
                    raise ValueError(
                        f"{known[2]} and {store} have different results for the cell "
                        f"{row.parameters}, seed {row.seed}; read them one by one"
                    )
    if any(grid.axes.keys() != grids[0].axes.keys() for grid in grids):
        axes = sorted({"(" + ", ".join(grid.axes) + ")" for grid in grids})
        raise ValueError(f"sweeps of {name} have different axes: {' and '.join(axes)}; read their stores one by one")
    points = joined(grids)
    layouts = Layouts(points, labels)
    found = []
    for cell in points.cells():
        if cell.key in rows:
            row, environment, _ = rows[cell.key]
            if not row.outcome.error:
                layouts.add(cell, row.outcome.layout)
            found.append((cell, row.outcome, environment))
    return _assembled(name, version, points, labels, layouts, found)


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


def _chosen(stores: Iterable[Store], name: str | None, version: str | None) -> tuple[str, str]:
    """Return name and version of the one function in the stores that fits what was asked for."""
    there = dict.fromkeys(pair for store in stores for pair in store.names())
    fitting = [pair for pair in there if name in (None, pair[0]) and version in (None, pair[1])]
    if len(fitting) == 1:
        return fitting[0]
    listing = ", ".join(f"name={pair[0]!r} version={pair[1]!r}" for pair in there) or "no sweep"
    asked = "choose one by name= and version=" if fitting else f"none has name={name!r}, version={version!r}"
    raise ValueError(f"the stores hold {listing}; {asked}")


def _assembled(
    name: str,
    version: str,
    grid: Grid,
    coords: Mapping[str, Array],
    layouts: Layouts,
    found: Sequence[tuple[Cell, Outcome, str]],
) -> xarray.Dataset:
    """Return the Dataset of the cells that were found, and say where they come from."""
    configs = [json.loads(text) for text in dict.fromkeys(environment for _, _, environment in found)]
    attributes = {
        "name": name,
        "version": version,
        "cells": math.prod(grid.shape),
        "failed": sum(bool(outcome.error) for _, outcome, _ in found),
        **{
            attribute: ", ".join(dict.fromkeys(config[key] for config in configs))
            for attribute, key in (("depthgauge", "version"), ("numpy", "numpy"), ("python", "python"))
        },
        "build_config": "\n".join(json.dumps(config) for config in configs),
    }
    return dataset(grid, coords, layouts, ((cell.index, outcome) for cell, outcome, _ in found), attributes)


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
