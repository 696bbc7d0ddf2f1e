"""Reading stores: what sweeps have kept, without the functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from depthgauge.sweeps.cells import Outcome
from depthgauge.sweeps.dataset import Found, Layouts, checked_coords, dataset, require
from depthgauge.sweeps.grid import Grid, joined
from depthgauge.sweeps.store import Path, Row, Store

if TYPE_CHECKING:
    import xarray


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
    with ExitStack() as stack:
        stores = [stack.enter_context(Store(path, write=False)) for path in paths]
        name, version = _chosen(stores, name, version)
        grids = [Grid.from_json(run.grid) for store in stores for run in store.runs(name, version)]
        rows = _joined_rows(stores, name, version)
    if any(grid.axes.keys() != grids[0].axes.keys() for grid in grids):
        axes = sorted({"(" + ", ".join(grid.axes) + ")" for grid in grids})
        raise ValueError(f"sweeps of {name} have different axes: {' and '.join(axes)}; read their stores one by one")
    points = joined(grids)
    layouts = Layouts(points, labels)
    found = [Found(cell, *rows[cell.key]) for cell in points.cells() if cell.key in rows]
    for cell, outcome, _ in found:
        if not outcome.error:
            layouts.add(cell, outcome.layout)
    return dataset(name, version, points, labels, layouts, found)


def _joined_rows(stores: Iterable[Store], name: str, version: str) -> dict[tuple[str, int], tuple[Outcome, str]]:
    """Return outcome and environment of every cell in the stores, a result before a failure.

    Raises
    ------
    ValueError
        If two stores have different results for one cell.
    """
    rows: dict[tuple[str, int], tuple[Row, str, Store]] = {}
    for store in stores:
        environments = {run.id: run.environment for run in store.runs(name, version)}
        for row in store.rows(name, version):
            known = rows.get(row.key)
            if known is None or known[0].outcome.error:
                rows[row.key] = row, environments[row.run], store
            elif not row.outcome.error and not row.outcome.same_result(known[0].outcome):
                raise ValueError(
                    f"{known[2]} and {store} have different results for the cell "
                    f"{row.parameters}, seed {row.seed}; read them one by one"
                )
    return {key: (row.outcome, environment) for key, (row, environment, _) in rows.items()}


def _chosen(stores: Iterable[Store], name: str | None, version: str | None) -> tuple[str, str]:
    """Return name and version of the one function in the stores that fits what was asked for."""
    there = dict.fromkeys(pair for store in stores for pair in store.names())
    fitting = [pair for pair in there if name in (None, pair[0]) and version in (None, pair[1])]
    if len(fitting) == 1:
        return fitting[0]
    listing = ", ".join(f"name={pair[0]!r} version={pair[1]!r}" for pair in there) or "no sweep"
    asked = "choose one by name= and version=" if fitting else f"none has name={name!r}, version={version!r}"
    raise ValueError(f"the stores hold {listing}; {asked}")
