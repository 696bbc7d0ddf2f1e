"""The grid of a sweep: the product of named axes and seeds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from depthgauge._common import arguments
from depthgauge.equation import Block
from depthgauge.sweeps import canonical


@dataclass(frozen=True, slots=True)
class Cell:
    """One call of the function: where it stands in the result, and what it gets."""

    index: tuple[int, ...]
    parameters: str
    point: dict[str, Any]
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        """What tells this cell from all others of one function."""
        return self.parameters, self.seed

    def __str__(self) -> str:
        return cell_text(self.point, self.seed)


def cell_text(point: Mapping[str, Any], seed: int) -> str:
    """Return a cell for a message: ``depth=12, scale=0.5, seed=3``."""
    return ", ".join(f"{name}={value!r}" for name, value in {**point, "seed": seed}.items())


@dataclass(frozen=True)
class Grid:
    """Named axes of plain values, and seeds."""

    axes: dict[str, tuple[Any, ...]]
    seeds: tuple[int, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of a scalar result."""
        return (*self.axes, "seed")

    @property
    def shape(self) -> tuple[int, ...]:
        """Their lengths."""
        return (*map(len, self.axes.values()), len(self.seeds))

    def cells(self) -> Iterator[Cell]:
        """Yield the cells, the seed fastest, then the last axis."""
        texts = {name: [canonical.to_text(value) for value in values] for name, values in self.axes.items()}
        # The order of the axes is no part of the key.
        keys = [(name, json.dumps(name)) for name in sorted(self.axes)]
        for index in itertools.product(*map(range, map(len, self.axes.values()))):
            place = dict(zip(self.axes, index, strict=True))
            parameters = "{" + ",".join(f"{key}:{texts[name][place[name]]}" for name, key in keys) + "}"
            point = {name: self.axes[name][position] for name, position in place.items()}
            for number, seed in enumerate(self.seeds):
                yield Cell((*index, number), parameters, point, seed)

    def labels(self, axis: str) -> np.ndarray[Any, Any]:
        """Return the coordinate of an axis: its numbers, bools or strings, else one string a value."""
        if axis == "seed":
            return np.array(self.seeds, np.int64)
        values = self.axes[axis]
        kinds = {type(value) for value in values}
        if kinds in ({str}, {bool}, {int}, {float}):
            labels = np.array(values)
            if kinds != {int} or labels.dtype.kind in "iu":  # larger ints would be rounded
                return labels
        texts = [value.formula() if isinstance(value, Block) else str(value) for value in values]
        return np.array(texts if len(set(texts)) == len(texts) else [canonical.to_text(value) for value in values])

    def to_json(self) -> str:
        """Return the grid as text, axes and values in order."""
        axes = [[name, [canonical.to_text(value) for value in values]] for name, values in self.axes.items()]
        return json.dumps({"axes": axes, "seeds": self.seeds})

    @classmethod
    def from_json(cls, text: str) -> Grid:
        """Return the grid that `to_json` wrote."""
        data = json.loads(text)
        axes = {name: tuple(map(canonical.from_text, values)) for name, values in data["axes"]}
        return cls(axes, tuple(data["seeds"]))


def checked_grid(grid: object, seeds: object) -> Grid:
    """Return the grid of a sweep from the arguments of the same names."""
    if not isinstance(grid, Mapping) and (isinstance(grid, str) or not isinstance(grid, Iterable)):
        raise TypeError(f"grid must be a dict of axis names and their values; got {grid!r}")
    axes: dict[str, tuple[Any, ...]] = {}
    for pair in grid.items() if isinstance(grid, Mapping) else grid:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"grid must be a dict of axis names and their values, or such pairs; got {pair!r}")
        name, values = pair
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"the axes of grid are arguments of the function; {name!r} is no name of one")
        if name == "seed":
            raise ValueError("grid has an axis 'seed'; seeds are the business of seeds=")
        if name in axes:
            raise ValueError(f"grid has two axes {name!r}")
        axes[name] = _axis(name, values)
    return Grid(axes, _seeds(seeds))


def _axis(name: str, values: object) -> tuple[Any, ...]:
    where = f"grid[{name!r}]"
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise TypeError(f"{where} must be a sequence of values; got {values!r}. Write [value] for one")
    result = tuple(canonical.plain(where, value) for value in values)
    if not result:
        raise ValueError(f"{where} has no values")
    kinds = {type(value) for value in result}
    if kinds == {int, float}:  # as in an array; a function that computes with them returns one dtype
        result = tuple(float(value) for value in result)
    texts = set()
    for value in result:
        text = canonical.to_text(value)
        if text in texts:
            raise ValueError(f"{where} has the value {value!r} twice")
        texts.add(text)
    return result


def _seeds(seeds: object) -> tuple[int, ...]:
    if isinstance(seeds, Iterable) and not isinstance(seeds, str) and getattr(seeds, "ndim", 1) != 0:
        lowest = -(2**63)
        result = tuple(arguments.integer(f"seeds[{i}]", seed, minimum=lowest) for i, seed in enumerate(seeds))
        if not result:
            raise ValueError("seeds has no values")
        for number, seed in enumerate(result):
            if seed >= 2**63:
                raise ValueError(f"seeds[{number}]={seed} must be below 2**63")
        if len(set(result)) < len(result):
            raise ValueError(f"seeds has a value twice; got {list(result)}")
        return result
    return tuple(range(arguments.integer("seeds", seeds, minimum=1)))


def joined(grids: Iterable[Grid]) -> Grid:
    """Return the grid that holds every value of every axis and every seed of `grids`, which have the same axes.

    Values keep the order in which they first appear, or ascend where they ascend in each of the grids.
    """
    grids = list(grids)
    axes = {name: _union([grid.axes[name] for grid in grids]) for name in grids[0].axes}
    return Grid(axes, _union([grid.seeds for grid in grids]))


def _union(sequences: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    values = {canonical.to_text(value): value for values in sequences for value in values}
    if all(_ascends(values) for values in sequences):
        return tuple(sorted(values.values()))
    return tuple(values.values())


def _ascends(values: tuple[Any, ...]) -> bool:
    numbers = all(isinstance(value, int | float) for value in values)
    return numbers and all(low < high for low, high in itertools.pairwise(values))
