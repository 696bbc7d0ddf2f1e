"""A public call as data: the arrays it takes, the arrays it returns, and arguments of any size to call it with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from problems import Array, Shape

import depthgauge as dg

# Axes by letter. S are the states of a stack, one more than its blocks; n is the smaller of d and m.
#   R replicates   L blocks   S states   B examples, or matrices   d features   m hidden units, or columns   n
# A number stands for itself, and ? for any size.
Axes = str


@dataclass(frozen=True)
class Sizes:
    """How large the arguments of a call are."""

    depth: int = 3
    width: int = 6
    hidden: int = 7
    batch: int = 5
    replicates: Shape = ()

    def shape(self, axes: Axes) -> tuple[int | None, ...]:
        """Return the shape of an array with these axes; None where any size will do."""
        known = {"L": self.depth, "S": self.depth + 1, "B": self.batch, "d": self.width, "m": self.hidden}
        known["n"] = min(self.width, self.hidden)
        found: list[int | None] = []
        for letter in axes.split():
            if letter == "R":
                found += self.replicates
            elif letter == "?":
                found.append(None)
            else:
                found.append(int(letter) if letter.isdecimal() else known[letter])
        return tuple(found)


@dataclass(frozen=True)
class Call:
    """A public call and what it promises.

    Attributes
    ----------
    name : str
        Tells it from the other calls.
    function : str
        The public function, by its name in `depthgauge`.
    run : callable
        Makes the call with the arguments of a `Case` and options.
    arrays : dict
        The array arguments, by the names that errors call them; the fields of weights among them.
    results : dict
        The arrays of the result, by the names that `arrays_in` gives them.
    takes_options : bool
        Whether it takes `backend` and `threads`.
    lists : bool
        Whether lists of floats, and so of anything else, are read as one array.
    keeps_inputs : bool
        Whether its results share memory with its arguments, as they are meant to.
    exact : bool
        Whether its bits do not depend on the layout of the arguments.
    sized : bool
        Whether it takes `Sizes` and a dtype.
    """

    name: str
    function: str
    run: Callable[..., Any]
    arrays: Mapping[str, Axes] = field(default_factory=dict)
    results: Mapping[str, Axes] = field(default_factory=dict)
    takes_options: bool = True
    lists: bool = True
    keeps_inputs: bool = False
    exact: bool = True
    sized: bool = True

    def case(self, sizes: Sizes, dtype: np.dtype[Any], seed: int = 0) -> Case:
        """Return random arguments; an array's values do not depend on the others."""
        arrays = {name: draw(name, sizes, axes, dtype, seed) for name, axes in self.arrays.items()}
        return Case(self, sizes, dtype, arrays)


@dataclass(frozen=True)
class Case:
    """A call and its arguments."""

    call: Call
    sizes: Sizes
    dtype: np.dtype[Any]
    arrays: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    @property
    def weights(self) -> dg.Weights:
        return dg.Weights(**{name: array for name, array in self.arrays.items() if name in FIELDS})

    @property
    def seeds(self) -> Any:
        """A seed for each replicate, or one."""
        return tuple(range(math.prod(self.sizes.replicates))) if self.sizes.replicates else 3

    def replace(self, **arrays: Any) -> Case:
        return dataclasses.replace(self, arrays=self.arrays | arrays)

    def run(self, **options: Any) -> Any:
        if self.call.function == "sweep":
            pytest.importorskip("xarray")
        return self.call.run(self, **(options if self.call.takes_options else {}))

    def found(self, **options: Any) -> dict[str, Array]:
        """Return the arrays of the result."""
        return dict(arrays_in(self.run(**options)))

    def part(self, letter: str, index: slice) -> Case:
        """Return the arguments of some of the examples, or of some replicates."""
        arrays = {name: along(array, self.call.arrays[name], letter, index) for name, array in self.arrays.items()}
        return dataclasses.replace(self, arrays=arrays)


MATRICES = {"up": "R L d m", "gate": "R L d m", "down": "R L m d"}
VECTORS = {"b_up": "R L m", "b_gate": "R L m", "b_down": "R L d"} | {
    f"{place}_{kind}": "R L d" for place in ("pre", "output", "post") for kind in ("gain", "shift")
}
FIELDS = MATRICES | VECTORS


def draw(name: str, sizes: Sizes, axes: Axes, dtype: np.dtype[Any], seed: int) -> Array:
    """Return values that suit an argument of that name."""
    shape = tuple(size or 0 for size in sizes.shape(axes))
    values = np.random.default_rng([seed, *name.encode()]).standard_normal(shape)
    if name in MATRICES:
        values /= math.sqrt(max(shape[-2], 1))
    elif name in VECTORS:
        values = 0.2 * values + name.endswith("gain")
    elif name == "singular_values":
        values = np.abs(values)
    return values.astype(dtype)


def axis_of(letter: str, axes: Axes) -> int | None:
    """Return the axis of that letter, counted from the end."""
    letters = axes.split()
    return letters.index(letter) - len(letters) if letter in letters else None


def along(array: Array, axes: Axes, letter: str, index: slice) -> Array:
    """Return part of an array along the axis of that letter, if it has one."""
    axis = axis_of(letter, axes)
    if axis is None:
        return array
    return np.ascontiguousarray(np.moveaxis(np.moveaxis(array, axis, 0)[index], 0, axis))


def arrays_in(result: Any, name: str = "") -> Iterator[tuple[str, Array]]:
    """Iterate over the arrays of a result and their names, dotted where results hold results."""
    if isinstance(result, np.ndarray | np.generic | float):
        yield name, np.asarray(result)
        return
    parts: Mapping[Any, Any] = {}
    if isinstance(result, dg.Weights):
        parts = dict(result.items())
    elif isinstance(result, dict):
        parts = result
    elif isinstance(result, list | tuple):
        parts = dict(enumerate(result))
    elif hasattr(result, "data_vars"):
        parts = {key: variable.values for key, variable in result.data_vars.items()}
    elif hasattr(result, "to_dict"):
        parts = {**result.to_dict(), **({"states": result.states} if isinstance(result, dg.Forward) else {})}
    for key, part in parts.items():
        yield from arrays_in(part, f"{name}.{key}" if name else str(key))
