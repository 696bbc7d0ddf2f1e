"""Powers of two taken out of arrays, so that squares and sums of them stay in range; nothing is rounded by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array, Floats


def top_exponent(a: Array, axis: int | tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the binary exponent of the largest magnitude along `axis`, which is kept; 0 where it is not finite."""
    top = np.max(np.abs(a), axis=axis, keepdims=True, initial=0.0)
    return np.frexp(np.where(np.isfinite(top), top, 0.0))[1]


def split_exponent(a: Array, axis: int | tuple[int, ...]) -> tuple[Floats, npt.NDArray[Any]]:
    """Return s in float64 and e with ``a = s * 2**e``, e as of `top_exponent`: the largest of s is in [1/2, 1)."""
    value = a.astype(np.float64)
    exponent = top_exponent(value, axis)
    return np.ldexp(value, -exponent), exponent
