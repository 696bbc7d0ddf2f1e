"""Checks of options, scalars and thread counts, each with an error that teaches."""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from depthgauge._common.cpus import usable_cpus

T = TypeVar("T")

# More than any machine has; beyond, a number is a mistake.
_MOST_THREADS = 1 << 15

# The share of threads that calls in this context have, one worker among several; None where they have all.
_share: ContextVar[int | None] = ContextVar("share", default=None)


def choice(name: str, value: object, options: Sequence[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Return `value` if it is one of `options`; else raise an error that suggests the near one."""
    if isinstance(value, str) and value in options:
        return str(value)
    listing = ", ".join(options)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, one of {listing}; got {value!r}")
    near = _nearest(value, options, synonyms or {})
    hint = f"; did you mean {near!r}?" if near else "."
    raise ValueError(f"{name}={value!r} is unknown{hint} Choose one of: {listing}")


def _nearest(value: str, options: Sequence[str], synonyms: Mapping[str, str]) -> str | None:
    import difflib  # only an error needs it

    key = value.strip().lower().replace("-", "_").replace(" ", "_")
    if key in options:
        return key
    if key in synonyms:
        return synonyms[key]
    matches = difflib.get_close_matches(key, [*options, *synonyms], n=1)
    return synonyms.get(matches[0], matches[0]) if matches else None


def real(name: str, value: object, *, minimum: float = -math.inf) -> float:
    """Return a finite real scalar, at least `minimum`, as a float.

    Python and NumPy numbers and zero-dimensional arrays pass; a bool is refused, for it is nearly always
    a misplaced argument.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number; got {value!r} of type {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or result < minimum:
        takes = "a finite number" if minimum == -math.inf else f"a finite number >= {minimum:g}"
        raise ValueError(f"{name}={value!r} must be {takes}")
    return result


def scale(name: str, value: object) -> float | tuple[float, ...]:
    """Return one finite scalar, or a tuple of them, one a layer."""
    if isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        return real(name, value)
    if getattr(value, "ndim", 1) != 1:
        shape = getattr(value, "shape", None)
        raise ValueError(f"{name} must be a scalar or one value a layer, shape (L,); got shape {shape}")
    return tuple(real(f"{name}[{index}]", item) for index, item in enumerate(value))


def integer(name: str, value: object, *, minimum: int) -> int:
    """Return an integer, at least `minimum`; floats and bools are refused."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer; got {value!r}")
    try:
        result = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {value!r} of type {type(value).__name__}") from None
    if result < minimum:
        raise ValueError(f"{name}={result} must be an integer >= {minimum}")
    return result


def flag(name: str, value: object) -> bool:
    """Return a bool; anything else is refused."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False; got {value!r}")
    return bool(value)


def instance(name: str, value: object, kind: type[T]) -> T:
    """Return `value` if it is of `kind`; anything else is refused."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}; got {type(value).__name__}")
    return value


def quantile_levels(value: object) -> tuple[float, ...]:
    """Return quantile levels, each in [0, 1], as a tuple."""
    if isinstance(value, tuple) and not value:  # most calls ask for none
        return ()
    levels = scale("quantiles", value)
    if isinstance(levels, float):
        levels = (levels,)
    for level in levels:
        if not 0.0 <= level <= 1.0:
            raise ValueError(f"quantiles must lie in [0, 1]; got {level!r}")
    return levels


def available_threads() -> int:
    """Return the most threads a call may use.

    That is the share of this context where `share_of_threads` gave it one, no more than ``DEPTHGAUGE_NUM_THREADS``;
    else that variable where it is set, which may exceed the number of CPUs; else the number of CPUs this process may
    use, by its affinity and by the quota of its control group.
    """
    asked, share = _asked_threads(), _share.get()
    if share is not None:
        return share if asked is None else min(share, asked)
    if asked is not None:
        return asked
    return usable_cpus()


@contextmanager
def share_of_threads(share: int | None) -> Iterator[None]:
    """Give calls in this context a share of the threads; None stands for what the environment asks for, or 1."""
    token = _share.set((_asked_threads() or 1) if share is None else share)
    try:
        yield
    finally:
        _share.reset(token)


def _asked_threads() -> int | None:
    """Return ``DEPTHGAUGE_NUM_THREADS``, None where it is not set."""
    text = os.environ.get("DEPTHGAUGE_NUM_THREADS", "").strip()
    if not text:
        return None
    if not (text.isdecimal() and len(text) < 10 and 1 <= int(text) <= _MOST_THREADS):
        raise ValueError(f"DEPTHGAUGE_NUM_THREADS={text!r} must be an integer from 1 to {_MOST_THREADS}")
    return int(text)


def thread_count(value: object) -> int:
    """Return the number of threads to use; None means all that are available, and no call gets more."""
    available = available_threads()
    if value is None:
        return available
    return min(integer("threads", value, minimum=1), available)


def shape_text(shape: Sequence[Any]) -> str:
    """Return a shape for an error message, symbols unquoted: ``(B, 4)``."""
    return f"({', '.join(str(size) for size in shape)}{',' if len(shape) == 1 else ''})"
