"""From the cells of a sweep to one labelled Dataset."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from depthgauge._common.arrays import Array
from depthgauge.sweeps.cells import Outcome, Variable, read_arrays, read_layout
from depthgauge.sweeps.grid import Cell, Grid

if TYPE_CHECKING:
    import xarray


class Found(NamedTuple):
    """A cell, what came of it, and what built and ran that, as JSON."""

    cell: Cell
    outcome: Outcome
    environment: str


def require(package: str, what: str = "sweeps") -> None:
    """Raise ImportError that says what to install if a package of the extra is missing."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{what} need {package}, which is not installed; try: pip install 'depthgauge[studies]'")


def checked_coords(coords: object) -> dict[str, Array]:
    """Return the coordinates given for axes and declared dimensions."""
    if coords is None:
        return {}
    if not isinstance(coords, Mapping):
        raise TypeError(f"coords must be a dict of dimensions and their labels; got {coords!r}")
    labels: dict[str, Array] = {}
    for name, values in coords.items():
        labels[name] = np.asarray(values)
        if labels[name].ndim != 1 or labels[name].dtype == object:
            raise ValueError(f"coords[{name!r}] must be a list of numbers or of strings; got {values!r}")
    return labels


class Layouts:
    """Holds every result against the first: the same names, dims and dtypes, and shapes where no dims are declared."""

    def __init__(self, grid: Grid, coords: Mapping[str, Array]) -> None:
        self._dims = dict(zip(grid.dims, grid.shape, strict=True))
        self._coords = coords
        self._first: tuple[str, list[Variable]] | None = None
        self._known: set[str] = set()
        self._shortest: dict[str, int] = {}
        self._itemsizes: dict[str, int] = {}
        self.lengths: dict[str, int] = {}
        self.results = 0
        for name, values in coords.items():
            if name in self._dims and len(values) != self._dims[name]:
                raise ValueError(f"coords[{name!r}] has {len(values)} labels; the axis has {self._dims[name]} values")

    def add(self, cell: object, text: str) -> None:
        """Take the layout of one result; raise ValueError that names two cells if they do not fit together."""
        self.results += 1
        if text in self._known:
            return
        layout = read_layout(text)
        if self._first is None:
            self._first = str(cell), layout
            declared = {dim for variable in layout for dim in variable.dims or ()}
            for name in self._coords.keys() - self._dims.keys() - declared:
                takes = ", ".join([*self._dims, *sorted(declared)])
                raise ValueError(f"coords has {name!r}, which is no dimension of the result; those are {takes}")
        first_cell, first = self._first
        difference = _difference(first, layout)
        if difference:
            raise ValueError(
                f"the results of two cells do not fit together: {difference}.\n"
                f"  one cell: {first_cell}\n  another:  {cell}\n"
                "Return the same names, dtypes and dimensions from every cell; lengths may differ along dimensions "
                "that are declared, as in {'rms': ('depth', array)}"
            )
        for variable in layout:
            itemsize = np.dtype(variable.dtype).itemsize
            self._itemsizes[variable.name] = max(itemsize, self._itemsizes.get(variable.name, 0))
            for dim, length in zip(variable.dims or (), variable.shape, strict=False):
                labels = len(self._coords.get(dim, ()))
                if dim in self._coords and length > labels:
                    raise ValueError(
                        f"coords[{dim!r}] has {labels} labels; {variable.name!r} has length {length} in the cell {cell}"
                    )
                self.lengths[dim] = max(length, self.lengths.get(dim, labels))
                self._shortest[dim] = min(length, self._shortest.get(dim, length))
        self._known.add(text)

    def arrays(self) -> dict[str, tuple[tuple[str, ...], Array]]:
        """Return, for every variable, its dims and an array for all cells, gaps filled."""
        arrays = {}
        for variable in self._first[1] if self._first else ():
            declared = variable.dims or ()
            sizes = variable.shape if variable.dims is None else tuple(self.lengths[dim] for dim in declared)
            gaps = self.results < math.prod(self._dims.values()) or any(
                self._shortest[dim] < self.lengths[dim] for dim in declared
            )
            blank = _blank(
                (*self._dims.values(), *sizes), np.dtype(variable.dtype), self._itemsizes[variable.name], gaps
            )
            arrays[variable.name] = (*self._dims, *variable.own_dims), blank
        return arrays


def _difference(first: Sequence[Variable], other: Sequence[Variable]) -> str:
    """Return how two layouts differ, or nothing."""
    ones, others = ({variable.name: variable for variable in layout} for layout in (first, other))
    if ones.keys() != others.keys():
        return f"one holds {', '.join(ones) or 'nothing'}, the other {', '.join(others) or 'nothing'}"
    for name, one in ones.items():
        another = others[name]
        if one.dims != another.dims:
            return f"{name!r} has dims {_dims_text(one)} in one, {_dims_text(another)} in the other"
        if one.dims is None and one.shape != another.shape:
            return f"{name!r} has shape {one.shape} in one, {another.shape} in the other, and declares no dimensions"
        dtypes = np.dtype(one.dtype), np.dtype(another.dtype)
        if dtypes[0] != dtypes[1] and not dtypes[0].kind == dtypes[1].kind == "U":
            return f"{name!r} has dtype {dtypes[0]} in one, {dtypes[1]} in the other"
    return ""


def _dims_text(variable: Variable) -> str:
    return "undeclared" if variable.dims is None else repr(variable.dims)


def dataset(
    name: str,
    version: str,
    grid: Grid,
    coords: Mapping[str, Array],
    layouts: Layouts,
    found: Sequence[Found],
) -> xarray.Dataset:
    """Return one Dataset of the cells that were found, which says where they come from; `layouts` has seen them."""
    import xarray

    arrays = layouts.arrays()
    seconds = np.full(grid.shape, np.nan)
    errors = np.full(grid.shape, "", dtype=object)
    for cell, outcome, _ in found:
        seconds[cell.index] = outcome.seconds
        errors[cell.index] = outcome.error
        if not outcome.error:
            for variable, array in read_arrays(read_layout(outcome.layout), outcome.data).items():
                arrays[variable][1][cell.index + tuple(map(slice, array.shape))] = array

    labels = {dim: (dim, coords.get(dim, grid.labels(dim))) for dim in grid.dims}
    labels |= {dim: (dim, values) for dim, values in coords.items() if dim in layouts.lengths}
    cell_coords = {
        "cell_seconds": (grid.dims, seconds, {"units": "s", "long_name": "time of the call"}),
        "cell_error": (grid.dims, errors, {"long_name": "traceback of a failed cell"}),
    }
    attributes = {"name": name, "version": version, "cells": math.prod(grid.shape), **_origin(found)}
    return xarray.Dataset(arrays, labels | cell_coords, attributes)


def _origin(found: Sequence[Found]) -> dict[str, Any]:
    """Return how many cells failed, and what built and ran them."""
    configs = [json.loads(text) for text in dict.fromkeys(environment for _, _, environment in found)]
    versions = (("depthgauge", "version"), ("numpy", "numpy"), ("python", "python"))
    return {
        "failed": sum(bool(outcome.error) for _, outcome, _ in found),
        **{attribute: ", ".join(dict.fromkeys(config[key] for config in configs)) for attribute, key in versions},
        "build_config": "\n".join(json.dumps(config) for config in configs),
    }


def _blank(shape: tuple[int, ...], dtype: np.dtype[Any], width: int, gaps: bool) -> Array:
    """Return an array that holds NaN where no cell will write; integers and bools with gaps are float64."""
    if dtype.kind == "U":
        return np.zeros(shape, dtype=f"U{width // 4}")  # empty strings
    if not gaps:
        return np.empty(shape, dtype)
    return np.full(shape, np.nan, np.float64 if dtype.kind in "biu" else dtype)
