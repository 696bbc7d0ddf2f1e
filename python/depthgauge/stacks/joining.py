"""What stretches of layers gave, as if from one stack; a single stretch costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from depthgauge.backends.protocol import BackwardArrays, ForwardArrays

# Statistics with one value a state, of which a stretch has one more than layers, and with one value a layer.
_AT_STATES = ("rms", "max_abs", "batch_mean_norm", "nonfinite", "cosine")
_AT_BLOCKS = ("branch_rms", "live_fraction", "dead_units", "saturation", "branch_scale", "skip_scale")


def joined_forward(parts: Sequence[ForwardArrays]) -> ForwardArrays:
    """Return statistics of all stretches, given first to last, and what else the last one has."""
    if len(parts) == 1:
        return parts[0]
    return parts[-1]._replace(
        **_statistics(parts),
        state_quantiles=along_depth([part.state_quantiles for part in parts], seam=1, axis=-2),
        derivative_quantiles=along_depth([part.derivative_quantiles for part in parts], axis=-2),
    )


def joined_backward(parts: Sequence[BackwardArrays]) -> BackwardArrays:
    """Return statistics and weight gradients of all stretches, given first to last, and what else the first one has."""
    if len(parts) == 1:
        return parts[0]
    return parts[0]._replace(
        **_statistics(parts),
        gradient_quantiles=along_depth([part.gradient_quantiles for part in parts], seam=1, axis=-2),
        weights=_by_name([part.weights for part in parts], axis=1),
        weight_rms=_by_name([part.weight_rms for part in parts], axis=-1),
    )


def along_depth(parts: Sequence[Any], *, seam: int = 0, axis: int = -1) -> Any:
    """Return arrays in one along their axis of depth, the first `seam` entries of all but the first left out."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    rest = [np.moveaxis(np.moveaxis(part, axis, 0)[seam:], 0, axis) for part in parts[1:]]
    return np.concatenate([parts[0], *rest], axis=axis)


def _statistics(parts: Sequence[Any]) -> dict[str, Any]:
    fields = parts[0]._fields
    return {
        name: along_depth([getattr(part, name) for part in parts], seam=seam)
        for names, seam in ((_AT_STATES, 1), (_AT_BLOCKS, 0))
        for name in names
        if name in fields
    }


def _by_name(parts: Sequence[Any], axis: int) -> Any:
    if parts[0] is None:
        return None
    return {name: along_depth([part[name] for part in parts], axis=axis) for name in parts[0]}
