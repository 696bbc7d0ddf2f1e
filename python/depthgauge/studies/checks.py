"""Checks of what the studies are asked for, each with an error that names the argument."""

from __future__ import annotations

import difflib
import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def integer(name: str, value: Any, *, minimum: int) -> int:
    """Return an integer, at least `minimum`; floats and bools are refused."""
    try:
        result = operator.index(value)
    except TypeError:
        result = None
    if result is None or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer; got {value!r} of type {type(value).__name__}")
    if result < minimum:
        raise ValueError(f"{name}={result} must be an integer >= {minimum}")
    return result


def real(name: str, value: Any, *, minimum: float = -math.inf) -> float:
    """Return a finite number, at least `minimum`, as a float; bools are refused."""
    number = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if isinstance(number, bool | np.bool_) or not isinstance(number, numbers.Real):
        raise TypeError(f"{name} must be a real number; got {value!r} of type {type(value).__name__}")
    try:
        result = float(number)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or result < minimum:
        takes = "a finite number" if minimum == -math.inf else f"a finite number >= {minimum:g}"
        raise ValueError(f"{name}={value!r} must be {takes}")
    return result


def flag(name: str, value: object) -> bool:
    """Return a bool; anything else is refused."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False; got {value!r}")
    return bool(value)


def instance(name: str, value: object, kind: type[T]) -> T:
    """Return `value` if it is of `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}; got {type(value).__name__}")
    return value


def choice(name: str, value: object, options: Sequence[str], synonyms: Mapping[str, str]) -> str:
    """Return `value` if it is one of `options`; the error suggests the near one."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, one of {', '.join(options)}; got {value!r}")
    if value in options:
        return value
    key = value.strip().lower()
    near = difflib.get_close_matches(key, [*options, *synonyms], n=1)
    hint = f"; did you mean {synonyms.get(near[0], near[0])!r}?" if near else "."
    raise ValueError(f"{name}={value!r} is unknown{hint} Choose one of: {', '.join(options)}")
