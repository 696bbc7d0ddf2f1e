"""What segments of layers gave, as if from one stack; a single segment costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from depthgauge.backends.protocol import Results


def joined(parts: Sequence[Results], depths: Sequence[int]) -> Results:
    """Return the statistics of all segments, given first to last with their numbers of layers.

    They have a value a state or a value a layer; the last state of a segment is the first of the next.
    """
    if len(parts) == 1:
        return parts[0]
    return {name: _along_depth(name, [part[name] for part in parts], depths[0]) for name in parts[0]}


def _along_depth(name: str, parts: Sequence[Any], first_depth: int) -> Any:
    if parts[0] is None:
        return None
    if isinstance(parts[0], dict):  # gradients of fields (S, L, ...), or their root mean squares (R, L)
        axis = 1 if name == "weights" else -1
        return {field: np.concatenate([part[field] for part in parts], axis=axis) for field in parts[0]}
    axis = -2 if name.endswith("quantiles") else -1
    seam = parts[0].shape[axis] - first_depth
    rest = [np.moveaxis(np.moveaxis(part, axis, 0)[seam:], 0, axis) for part in parts[1:]]
    return np.concatenate([parts[0], *rest], axis=axis)
