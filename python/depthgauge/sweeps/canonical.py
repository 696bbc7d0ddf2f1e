"""Parameters as text: two points of a grid are one exactly where their texts are equal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from depthgauge.equation import Block

TAKES = "None, a bool, an int, a float, a string, a Block, or a tuple, list or dict (with string keys) of these"

_DEFAULTS = Block().to_dict()


def plain(where: str, value: object) -> Any:
    """Return `value` in plain Python: NumPy scalars by their value, lists as tuples; `where` names it in errors."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype"):
        value = np.asarray(value).item()
    if isinstance(value, (tuple, list)):
        return tuple(plain(where, item) for item in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): plain(where, item) for key, item in value.items()}
    for kind in (bool, int, float, str):  # a bool is an int as well; an enumeration's member is no plain value
        if type(value) is kind:
            return value
    if value is None or isinstance(value, Block):
        return value
    raise TypeError(
        f"{where} takes {TAKES}; got {value!r} of type {type(value).__name__}. "
        "Sweep over a name or a number that stands for it"
    )


def to_text(value: Any) -> str:
    """Return a plain value as one line of JSON; floats by their shortest exact digits, so that 4 and 4.0 differ."""
    return json.dumps(_tagged(value), sort_keys=True, separators=(",", ":"))


def from_text(text: str) -> Any:
    """Return the plain value that `to_text` wrote."""
    return _untagged(json.loads(text))


def _tagged(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        return {"dict": {key: _tagged(item) for key, item in value.items()}}
    if isinstance(value, Block):
        # Without the fields at their defaults: a field that a later version adds changes no text.
        return {"Block": {name: field for name, field in value.to_dict().items() if field != _DEFAULTS[name]}}
    return value


def _untagged(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_untagged(item) for item in data)
    if isinstance(data, dict):
        ((tag, content),) = data.items()
        return Block.from_dict(content) if tag == "Block" else {key: _untagged(item) for key, item in content.items()}
    return data
