"""The one place where a caller's arrays are read: any layout and owner, float32 and float64 only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
# DLPack device codes whose memory the CPU reads: the CPU itself and pinned host memory of CUDA and ROCm.
_HOST_DEVICES = (1, 3, 11)


def float_array(name: str, value: object) -> Array:
    """Return `value` as a NumPy array of float32 or float64, native and aligned, without a copy where it can be.

    Parameters
    ----------
    name : str
        What messages call the argument.
    value : array_like
        An array of any strides, a CPU object with ``__array__`` or DLPack, or nested lists of numbers; lists of floats
        are float64.

    Returns
    -------
    ndarray
        A view of `value` where one exists; misaligned or byte-swapped data is copied.

    Raises
    ------
    TypeError
        For any other dtype, a masked array, a tensor that requires grad, and data on another device.
    ValueError
        For ragged lists.
    """
    if type(value) is np.ndarray and value.dtype in _DTYPES and value.flags.aligned:  # as nearly always
        return value
    array = raw_array(name, value)
    if array.dtype.newbyteorder("=") not in _DTYPES:
        raise TypeError(
            f"{name} has dtype {_dtype_text(array.dtype)}, but must be float32 or float64; {_advice(array)}"
        )
    return native(array)


def raw_array(name: str, value: object) -> Array:
    """Return `value` as a NumPy array of whatever dtype it has; else as `float_array`."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; fill or drop the masked values first, as with {name}.filled(0.0)")
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        return _from_list(name, value)
    _check_foreign(name, value)
    try:
        if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except Exception as error:
        raise TypeError(f"{name} of type {_type_text(value)} cannot be read as an array: {error}") from error


def native(array: Array) -> Array:
    """Return `array`, copied only where it is misaligned or byte-swapped."""
    if array.flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return what `shapes` broadcast to, as NumPy's function does, but at no cost where they are all the same."""
    distinct = set(shapes)
    return distinct.pop() if len(distinct) == 1 else np.broadcast_shapes(*distinct)


def broadcast_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view of `array` with `shape`, as NumPy's function does, but at no cost where it has that shape."""
    return array if array.shape == shape else np.broadcast_to(array, shape)


def require_dtype(name: str, array: Array, dtype: np.dtype[Any], other: str) -> None:
    """Refuse to mix dtypes: `array` must have the dtype of `other`."""
    if array.dtype != dtype:
        raise TypeError(
            f"{name} is {array.dtype} but {other} is {dtype}; convert one of them, as with {name}.astype(np.{dtype})"
        )


def supported_dtype(name: str, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Return float32 or float64 as a dtype; refuse any other."""
    try:
        result = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"{name}={dtype!r} is not a dtype; use np.float32 or np.float64") from None
    if dtype is None or result.newbyteorder("=") not in _DTYPES:
        text = None if dtype is None else _dtype_text(result)
        raise TypeError(f"{name}={text} is not supported; use np.float32 or np.float64")
    return result.newbyteorder("=")


def _from_list(name: str, value: list[Any] | tuple[Any, ...]) -> Array:
    # np.asarray would promote float32 beside float64, and would drop masks and gradients, so items are read one by one.
    dtypes = {dtype for index, item in enumerate(value) for dtype in _item_dtypes(f"{name}[{index}]", item)}
    if len(dtypes) > 1:
        mixed = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise TypeError(f"{name} mixes dtypes ({mixed}); convert its items to one of float32 and float64")
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array or nested lists of equal lengths: {error}") from None


def _item_dtypes(name: str, item: object) -> set[np.dtype[Any]]:
    if isinstance(item, float | int) and not isinstance(item, bool):
        # A plain int may stand among floats; a list of ints alone is refused by its dtype.
        return {np.dtype(np.float64)}
    if isinstance(item, list | tuple):
        return {dtype for index, part in enumerate(item) for dtype in _item_dtypes(f"{name}[{index}]", part)}
    return {raw_array(name, item).dtype.newbyteorder("=")}


def _check_foreign(name: str, value: object) -> None:
    """Refuse what another library would convert badly: gradients that would be lost, data on a device."""
    if getattr(value, "requires_grad", False) is True:
        raise TypeError(f"{name} is a tensor that requires grad; pass {name}.detach()")
    dtype = str(getattr(value, "dtype", ""))
    if dtype == "torch.bfloat16":  # which NumPy lacks
        raise TypeError(f"{name} has dtype {dtype}, but must be float32 or float64; convert it, as with {name}.float()")
    if not hasattr(value, "__dlpack_device__"):
        return
    try:
        device = int(value.__dlpack_device__()[0])
    except Exception as error:
        raise TypeError(f"{name} of type {_type_text(value)} is not readable by the CPU: {error}") from error
    if device not in _HOST_DEVICES:
        raise TypeError(f"{name} of type {_type_text(value)} is on another device; copy it to the CPU first")


def _advice(array: Array) -> str:
    if array.dtype.kind == "c":
        return "complex values have no meaning here: pass a real part"
    if array.dtype.kind in "fiubV" and array.dtype.names is None:
        return "convert it, as with .astype(np.float32)"
    return "pass an array of numbers"


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return str(dtype.name if dtype.names is None else "structured")


def _type_text(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"
