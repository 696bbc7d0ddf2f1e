"""A sequence as the caller gives it: tokens, targets, and how many of them are valid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from depthgauge import _arguments
from depthgauge.backends import Indices
from depthgauge.studies.decoder.config import DecoderConfig
from depthgauge.studies.decoder.errors import EmptyValidityError

Tokens = Sequence[int] | npt.NDArray[Any]
Validity = int | Sequence[bool] | npt.NDArray[np.bool_] | None


class ValidSequence(NamedTuple):
    """The tokens and targets of the valid positions, padding cut."""

    inputs: Indices  # (T,)
    targets: Indices  # (T,)


def read_sequence(config: DecoderConfig, input_ids: Tokens, target_ids: Tokens, valid: Validity) -> ValidSequence:
    """Cut the padding, unread, and check what is left; see `observe` for arguments and errors."""
    length, targets = _length("input_ids", input_ids), _length("target_ids", target_ids)
    if targets != length:
        raise ValueError(f"target_ids must have one target for each of the {length} input_ids; got {targets}")
    count = valid_count(valid, length)
    if count > config.max_positions:
        raise ValueError(
            f"input_ids has {count} valid positions, but the decoder has max_positions={config.max_positions}"
        )
    return ValidSequence(
        _ids("input_ids", input_ids[:count], config.vocabulary),
        _ids("target_ids", target_ids[:count], config.vocabulary),
    )


def valid_count(valid: Validity, length: int) -> int:
    """Return how many of `length` positions are valid, the first ones; padding is trailing.

    Raises
    ------
    EmptyValidityError
        If none is.
    ValueError
        If `valid` exceeds the length, is of another shape, or has padding before a valid position.
    TypeError
        If it is neither a count nor a mask.
    """
    if valid is None:
        count = length
    elif isinstance(valid, list | tuple | np.ndarray) and np.ndim(valid):
        mask = np.asarray(valid)
        if mask.dtype != np.bool_ and mask.size:
            raise TypeError(f"valid must be a count or a mask of bools; got dtype {mask.dtype}")
        if mask.shape != (length,):
            raise ValueError(f"valid must have shape ({length},), one bool a position; got {mask.shape}")
        count = int(np.count_nonzero(mask))
        if not mask[:count].all():
            raise ValueError("valid has padding before a valid position; padding must be trailing")
    else:
        count = _arguments.integer("valid", valid, minimum=0)
        if count > length:
            raise ValueError(f"valid={count} exceeds the {length} positions")
    if count == 0:
        raise EmptyValidityError("no position is valid, so there is nothing to measure")
    return count


def _length(name: str, tokens: Tokens) -> int:
    if not isinstance(tokens, list | tuple | range | np.ndarray) or np.ndim(tokens) != 1:
        raise ValueError(f"{name} must be one sequence of token ids, shape (T,)")
    return len(tokens)


def _ids(name: str, tokens: Tokens, vocabulary: int) -> Indices:
    values = np.asarray(tokens)
    if not _are_whole(values):
        raise TypeError(f"{name} must hold integers; got dtype {values.dtype}")
    outside = values[(values < 0) | (values >= vocabulary)]
    if outside.size:
        raise ValueError(f"{name} has {outside[0]}, but tokens run from 0 to {vocabulary - 1}")
    return values.astype(np.int64)


def _are_whole(values: npt.NDArray[Any]) -> bool:
    if values.dtype.kind == "f":
        # Whoever pads with NaN holds the ids as floats.
        return bool((values == np.trunc(values)).all())
    if values.dtype.kind == "O":
        # Integers beyond 64 bits, which are out of any vocabulary.
        return all(isinstance(value, int) for value in values)
    return values.dtype.kind in "iu"
