"""Normals from counters, the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge import _arguments
from depthgauge._arrays import Array, supported_dtype
from depthgauge._results import shaped
from depthgauge.backends import get_backend

# Words of Philox's key and counter.
_KEY_BITS, _STREAM_BITS = 64, 32


def normal(
    seed: int,
    shape: int | Sequence[int],
    *,
    dtype: npt.DTypeLike = np.float64,
    stream: int = 0,
    backend: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return standard normals that depend on seed, stream and position alone.

    The generator is Philox4x32-10 (Salmon, Moraes, Dror & Shaw 2011) with Box and Muller's transform: two numbers in
    float64, or four in float32, of each 128-bit block.  Every instruction set, thread count and backend makes the same
    bits, and a shorter array is the beginning of a longer one.  float32 numbers are not float64 numbers rounded.

    Parameters
    ----------
    seed : int
        From 0 to 2^64 - 1.
    shape : int or sequence of int
        Filled in C order.
    dtype : dtype
        float32 or float64.
    stream : int
        From 0 to 2^32 - 1; streams of a seed are independent.
    backend : {"native", "reference"}, optional
        None means the environment's ``DEPTHGAUGE_BACKEND``, or native.
    threads : int, optional
        None means the environment's ``DEPTHGAUGE_NUM_THREADS``, or the CPUs this process may use; no more than those
        are used.

    Returns
    -------
    ndarray
        No larger than 9.5 in magnitude in float64, and 6.8 in float32.

    Raises
    ------
    TypeError
        If `dtype` is not float32 or float64, or a number is not an integer.
    ValueError
        If a number is out of its range, or the array is larger than any may be.
    """
    key = seed_of("seed", seed)
    layer = _below("stream", stream, _STREAM_BITS)
    sizes = [shape] if isinstance(shape, int | np.integer) else shape
    if isinstance(sizes, str) or not hasattr(sizes, "__iter__"):
        raise TypeError(f"shape must be an integer or a sequence of integers; got {shape!r}")
    axes = tuple(_arguments.integer(f"shape[{axis}]", size, minimum=0) for axis, size in enumerate(sizes))
    kind = supported_dtype("dtype", dtype)
    if kind.itemsize * math.prod(max(size, 1) for size in axes) > np.iinfo(np.intp).max:
        raise ValueError(f"shape={axes} asks for more bytes than the {np.iinfo(np.intp).max} that an array may have")
    workers = _arguments.thread_count(threads)
    out = np.empty((1, 1, math.prod(axes)), kind)
    get_backend(backend).fill_normals(
        out, np.array([key], np.uint64), first_layer=layer, matrix=0, deviation=1.0, threads=workers
    )
    return shaped(out, axes)


def seed_of(name: str, value: Any) -> int:
    """Return a seed, checked."""
    return _below(name, value, _KEY_BITS)


def _below(name: str, value: object, bits: int) -> int:
    number = _arguments.integer(name, value, minimum=0)
    if number >> bits:
        raise ValueError(f"{name}={number} must be an integer below 2**{bits}")
    return number
