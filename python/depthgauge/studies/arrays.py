"""What the studies call their arrays, and how they read those they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def raw_array(name: str, value: object) -> Array:
    """Return `value` as an array of whatever dtype it has; masked arrays are refused, for the mask would be lost."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; fill or drop the masked values first")
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array or nested lists of equal lengths: {error}") from None
    except Exception as error:
        raise TypeError(f"{name} of type {type(value).__name__} cannot be read as an array: {error}") from error


def float_array(name: str, value: object) -> Array:
    """Return `value` as an array of float32 or float64, in the byte order of this machine."""
    found = raw_array(name, value)
    dtype = found.dtype.newbyteorder("=")
    if dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise TypeError(f"{name} has dtype {found.dtype}, but must be float32 or float64")
    return found.astype(dtype, copy=False)
