"""Arrays in every layout and from every kind of owner, and what is no array of floats."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from problems import Array

X = np.linspace(-1, 1, 20).reshape(4, 5)


def misaligned(a: Array) -> Array:
    memory = np.zeros(a.nbytes + 1, np.uint8)
    view = memory[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    assert not view.flags.aligned
    return view


def read_only(a: Array) -> Array:
    a = a.copy()
    a.flags.writeable = False
    return a


def field_of_record(a: Array) -> Array:
    record = np.zeros(a.shape, [("tag", np.int8), ("value", a.dtype)])
    record["value"] = a
    return record["value"]


def memory_mapped(a: Array) -> Array:
    with tempfile.TemporaryFile() as file:
        a.tofile(file)
        file.flush()
        return np.memmap(file, a.dtype, "r", shape=a.shape)


LAYOUTS: dict[str, Callable[[Array], Any]] = {
    "fortran": np.asfortranarray,
    "strided rows": lambda a: np.repeat(a, 3, axis=-2)[..., ::3, :],
    "strided columns": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed rows": lambda a: a[..., ::-1, :].copy()[..., ::-1, :],
    "reversed columns": lambda a: a[..., ::-1].copy()[..., ::-1],
    "transposed": lambda a: np.swapaxes(np.swapaxes(a, -1, -2).copy(), -1, -2),
    "sliced": lambda a: np.pad(a, [(0, 0)] * (a.ndim - 2) + [(2, 1), (1, 3)])[..., 2:-1, 1:-3],
    "read-only": read_only,
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder("S")),
    "misaligned": misaligned,
    "memory-mapped": memory_mapped,
    "field of a record": field_of_record,
    "matrix": lambda a: a if a.ndim > 2 else a.view(np.matrix),
}


class Exporter:
    """An object of another library: `__array__` alone."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.array


class Capsule:
    """An object of another library: DLPack alone."""

    def __init__(self, array: Array, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


BAD_ARRAYS = [
    (X.astype(np.float16), "float16"),
    (X.astype(np.longdouble), np.dtype(np.longdouble).name),
    (X.astype(np.int64), "int64"),
    (X.astype(np.uint8), "uint8"),
    (X > 0, "bool"),
    (X.astype(complex), "complex128"),
    (X.astype(object), "object"),
    (X.astype(str), "str"),
    (np.zeros((4, 5), [("a", float)]), "structured"),
    (np.ma.masked_less(X, 0), "masked"),
    ([np.ma.masked_less(row, 0) for row in X], "masked"),
    (X.astype(int).tolist(), "int64"),
    ([[True] * 5] * 4, "bool"),
    ([[1.0, True, 0.0, 0.0, 0.0]] * 4, "mixes dtypes"),
    ([X[0], X[1].astype(np.float32)], "mixes dtypes"),
    (None, "x"),
    ("text", "x"),
    ({"x": X}, "x"),
    (Capsule(X, device=2), "another device"),
]
