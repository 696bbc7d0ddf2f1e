"""Normals from counters, the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge import _core
from depthgauge._common import arguments
from depthgauge._common.arrays import Array, supported_dtype
from depthgauge._common.results import shaped
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

    Notes
    -----
    This is version 1 of the layout.  The seed is Philox's key, low word first.  The words of its counter are the number
    b of the block, low word first, then `stream`, then 0; for `GeneratedWeights` the number of the layer takes the
    place of `stream`, and 1 (up), 2 (gate) or 3 (down) that of the 0.

    Let w = 8 and k = 2 in float64, w = 16 and k = 4 in float32.  Number n of the array, in C order, is number
    ``n % (w * k) // w`` of the k numbers of block ``b = n // (w * k) * w + n % w``.

    The words v0, v1, v2, v3 that Philox makes of a block give, in float64, one pair of numbers, from the radius word
    r = v0 + 2^32 v1 and the angle word a = v2 + 2^32 v3; in float32 two, from r = v0, a = v1 and from r = v2, a = v3.
    With words of q = 64 or 32 bits, u = (r + 1/2) / 2^q, rounded to `dtype`, and R = sqrt(-2 ln u).  With e the lowest
    and f the highest bit of a, and t = (a mod 2^(q-1)) / 2^(q-1) - 1/2 in float64, or t = (2 a + 1 mod 2^32, read as a
    signed number) / 2^32 in float32, the pair is C = (-1)^e R cos(pi t / 2), S = R sin(pi t / 2) in this order, or S, C
    where f is 1.  Logarithm, sine and cosine are polynomials in a fixed order, right to about two units in the last
    place; the bits are those of ``backends/reference/philox.py``.
    """
    key = seed_of("seed", seed)
    layer = _below("stream", stream, _STREAM_BITS)
    sizes = _sizes(shape)
    kind = supported_dtype("dtype", dtype)
    if kind.itemsize * math.prod(max(size, 1) for size in sizes) > np.iinfo(np.intp).max:
        raise ValueError(f"shape={sizes} asks for more bytes than the {np.iinfo(np.intp).max} that an array may have")
    workers = arguments.thread_count(threads)
    out = _core.empty((1, 1, math.prod(sizes)), kind)
    get_backend(backend).fill_normals(
        out, np.array([key], np.uint64), first_layer=layer, matrix=0, deviation=1.0, threads=workers
    )
    return shaped(out, sizes)


def seed_of(name: str, value: Any) -> int:
    """Return a seed, checked."""
    if isinstance(value, np.random.SeedSequence):
        raise TypeError(
            f"{name} must be an integer; got a SeedSequence, s, which makes one: int(s.generate_state(1, np.uint64)[0])"
        )
    return _below(name, value, _KEY_BITS)


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape, checked, as a tuple."""
    axes = [shape] if hasattr(shape, "__index__") and np.ndim(shape) == 0 else shape
    if isinstance(axes, str | bytes | Mapping | Set) or not hasattr(axes, "__iter__"):
        raise TypeError(f"shape must be an integer or a sequence of integers; got {shape!r}")
    return tuple(arguments.integer(f"shape[{axis}]", size, minimum=0) for axis, size in enumerate(axes))


def _below(name: str, value: object, bits: int) -> int:
    number = arguments.integer(name, value, minimum=0)
    if number >> bits:
        raise ValueError(f"{name}={number} must be an integer below 2**{bits}")
    return number
