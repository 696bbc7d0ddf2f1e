"""What the results of all public functions share."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from depthgauge._common.arrays import Array


class Result:
    """A frozen dataclass of arrays: to plain data, and to one line."""

    def to_dict(self) -> dict[str, Any]:
        """Return the public fields by name; arrays stay NumPy arrays, not copied, and absent ones are left out."""
        return {name: value for name, value in self._public() if value is not None}

    def _public(self) -> list[tuple[str, Any]]:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        return [(field.name, getattr(self, field.name)) for field in fields if not field.name.startswith("_")]

    def _line(self, **entries: object) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in entries.items())})"


def shaped(array: Array, shape: tuple[int, ...]) -> Array:
    """Return `array` with another shape of the same size, owning its memory where `array` does.

    A reshape would return a view; results promise arrays that own their memory.
    """
    if array.flags.owndata and array.flags.c_contiguous:
        array.resize(shape, refcheck=False)  # the size stays, so no memory moves
        return array
    return np.array(array.reshape(shape), order="C")


def span(values: Array) -> str:
    """Return the first and last of some statistics along the last axis, as text; a range where there are replicates."""
    if not values.size:
        return "nothing"
    return f"{_extent(values[..., 0])} -> {_extent(values[..., -1])}"


def _extent(values: Array) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.3g}" if low == high or np.isnan(low) else f"[{low:.3g}, {high:.3g}]"
