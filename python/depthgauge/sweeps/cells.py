"""One cell of a sweep, as a worker runs it, and its result as bytes."""

from __future__ import annotations

import io
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from depthgauge._common import arguments
from depthgauge._common.arrays import Array

# SQLite keeps no more than 10^9 bytes in a row, unless it was built to.
LARGEST = 10**9 - 10**6
RESERVED = ("seed", "cell_seconds", "cell_error")


class Variable(NamedTuple):
    """What a result holds under one name; `dims` is None where they were not declared."""

    name: str
    dims: tuple[str, ...] | None
    dtype: str
    shape: tuple[int, ...]

    @property
    def own_dims(self) -> tuple[str, ...]:
        """The dims beside those of the grid; named after the variable where they were not declared."""
        return self.dims if self.dims is not None else tuple(f"{self.name}_{i}" for i in range(len(self.shape)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a cell: a result as text and bytes, or the traceback of an error.

    All of it is plain, so that any executor can send it.
    """

    seconds: float
    layout: str = ""
    data: bytes = b""
    error: str = ""

    def same_result(self, other: Outcome) -> bool:
        """Return whether both have the same result, bit for bit."""
        return (self.layout, self.data) == (other.layout, other.data)


def run_cell(
    function: Callable[..., Mapping[str, Any]], point: Mapping[str, Any], seed: int, threads: int | None
) -> Outcome:
    """Call the function once, with its share of threads; its errors are outcomes as well."""
    start = time.perf_counter()
    try:
        with arguments.share_of_threads(threads):
            result = function(**point, seed=seed)
        layout, data = encode(result, tuple(point))
    except (Exception, SystemExit) as error:
        # Without this frame, which tells the user nothing.
        inner = error.__traceback__ and error.__traceback__.tb_next
        text = "".join(traceback.format_exception(type(error), error, inner))
        text = text.encode(errors="backslashreplace").decode()  # half characters, as file names may have, are no text
        return Outcome(time.perf_counter() - start, error=text)
    return Outcome(time.perf_counter() - start, layout, data)


def encode(result: object, axes: Sequence[str]) -> tuple[str, bytes]:
    """Return the layout of a result as JSON, and its arrays one after the other in NumPy's npy format."""
    if not isinstance(result, Mapping):
        raise TypeError(f"the function must return a dict of names and values; got {type(result).__name__}")
    variables = []
    data = io.BytesIO()
    lengths: dict[str, int] = {}
    for name, value in result.items():
        variable, array = _variable(name, value, axes)
        for dim, length in zip(variable.own_dims, variable.shape, strict=True):
            if lengths.setdefault(dim, length) != length:
                raise ValueError(f"{name!r} has length {length} along {dim!r}, another result {lengths[dim]}")
        np.lib.format.write_array(data, array, allow_pickle=False)
        variables.append(variable)
    if data.tell() > LARGEST:
        raise ValueError(f"the result has {data.tell()} bytes; a cell holds {LARGEST}. Return what is to be looked at")
    for variable in variables:
        if variable.name in lengths:
            raise ValueError(f"{variable.name!r} is the name of a result and of a dimension")
    return json.dumps(variables), data.getvalue()


def _variable(name: object, value: object, axes: Sequence[str]) -> tuple[Variable, Array]:
    if not isinstance(name, str) or not name:
        raise TypeError(f"the names of results must be strings; got {name!r}")
    if name in axes or name in RESERVED:
        raise ValueError(f"a result cannot be named {name!r}: an axis of the grid, or the sweep itself, has that name")
    dims: tuple[str, ...] | None = None
    if isinstance(value, tuple) and len(value) == 2:
        first = (value[0],) if isinstance(value[0], str) else value[0]
        if isinstance(first, tuple | list) and all(isinstance(dim, str) for dim in first):
            dims, value = tuple(first), value[1]
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name!r} is a masked array; return array.filled(np.nan)")
    array: Array = np.asarray(value)
    if array.dtype.kind not in "biufcU":
        raise TypeError(f"{name!r} must hold numbers, bools or strings; got dtype {array.dtype} from {value!r:.200}")
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
    if dims is not None:
        if len(dims) != array.ndim:
            raise ValueError(f"{name!r} declares the dimensions {dims}, but its array has shape {array.shape}")
        if len(set(dims)) < len(dims):
            raise ValueError(f"{name!r} declares a dimension twice: {dims}")
        for dim in dims:
            if dim in axes or dim in RESERVED:
                raise ValueError(f"{name!r} declares the dimension {dim!r}, which is an axis of the sweep already")
    return Variable(name, dims, array.dtype.str, array.shape), array


def read_layout(text: str) -> list[Variable]:
    """Return a layout from its JSON."""
    return [
        Variable(name, None if dims is None else tuple(dims), dtype, tuple(shape))
        for name, dims, dtype, shape in json.loads(text)
    ]


def read_arrays(layout: Sequence[Variable], data: bytes) -> dict[str, Array]:
    """Return the arrays of a result by name."""
    stream = io.BytesIO(data)
    return {variable.name: np.lib.format.read_array(stream, allow_pickle=False) for variable in layout}
