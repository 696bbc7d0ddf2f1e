"""A sequence as the caller gives it: tokens, targets, and how many of them are valid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Indices, raw_array
from depthgauge.studies.decoder.config import DecoderConfig
from depthgauge.studies.decoder.errors import EmptyValidityError, NonFiniteValueError

Tokens = npt.ArrayLike
Validity = npt.ArrayLike | None


class ValidSequence(NamedTuple):
    """The tokens and targets of the valid positions, padding cut."""

    inputs: Indices  # (T,)
    targets: Indices  # (T,)


def read_sequence(config: DecoderConfig, input_ids: Tokens, target_ids: Tokens, valid: Validity) -> ValidSequence:
    """Cut the padding, unread, and check what is left; see `observe` for arguments and errors."""
    inputs, targets = _row("input_ids", input_ids), _row("target_ids", target_ids)
    length = len(inputs)
    if len(targets) != length:
        raise ValueError(f"target_ids must have one target for each of the {length} input_ids; got {len(targets)}")
    count = valid_count(valid, length)
    if count > config.max_positions:
        raise ValueError(
            f"input_ids has {count} valid positions, but the decoder has max_positions={config.max_positions}"
        )
    return ValidSequence(
        _ids("input_ids", inputs[:count], config.vocabulary),
        _ids("target_ids", targets[:count], config.vocabulary),
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
    elif (mask := raw_array("valid", valid)).ndim:
        if mask.dtype != np.bool_ and mask.size:
            raise TypeError(f"valid must be a count or a mask of bools; got dtype {mask.dtype}")
        if mask.shape != (length,):
            raise ValueError(f"valid must have shape ({length},), one bool a position; got {mask.shape}")
        count = int(np.count_nonzero(mask))
        if not mask[:count].all():
            raise ValueError("valid has padding before a valid position; padding must be trailing")
    else:
        count = arguments.integer("valid", valid, minimum=0)
        if count > length:
            raise ValueError(f"valid={count} exceeds the {length} positions")
    if count == 0:
        raise EmptyValidityError("no position is valid, so there is nothing to measure")
    return count


def _row(name: str, tokens: Tokens) -> Sequence[Any] | npt.NDArray[Any]:
    """Return tokens as a row that can be cut; a list is left unread, for its padding may hold anything."""
    if isinstance(tokens, list | tuple | range):
        return tokens
    array = raw_array(name, tokens)
    if array.ndim != 1:
        raise ValueError(
            f"{name} must be one row of token ids, shape (T,); got {type(tokens).__name__} of shape {array.shape}"
        )
    return array


def _ids(name: str, tokens: Sequence[Any] | npt.NDArray[Any], vocabulary: int) -> Indices:
    items = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
    found = np.empty(len(items), np.int64)
    for position, token in enumerate(items):
        found[position] = _id(f"{name}[{position}]", token, vocabulary)
    return found


def _id(name: str, token: Any, vocabulary: int) -> int:
    whole = token
    if isinstance(token, float | np.floating):
        # Whoever pads with NaN holds the ids as floats.
        if not np.isfinite(token):
            raise NonFiniteValueError(f"{name} is {token}, at a valid position; tokens run from 0 to {vocabulary - 1}")
        whole = int(token) if token.is_integer() else token
    if arguments.integer(name, whole, minimum=0) >= vocabulary:
        raise ValueError(f"{name}={token} is outside the vocabulary; tokens run from 0 to {vocabulary - 1}")
    return int(whole)
