"""Memory of large arrays."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from depthgauge import _core
from depthgauge._arrays import Array

# Arrays from this many bytes on are in memory that is handed out again once they are gone. It starts at a large page.
LARGE = 4 << 20


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array that owns its memory, not initialized."""
    kind, axes = np.dtype(dtype), (shape,) if isinstance(shape, int) else shape
    if math.prod(axes) * kind.itemsize < LARGE:
        return np.empty(axes, kind)
    return _core.empty(axes, kind)
