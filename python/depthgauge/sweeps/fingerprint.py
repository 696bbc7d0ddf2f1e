"""A function's name and version, by which its finished cells are known again."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from depthgauge.sweeps import canonical


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the function below a partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def source_version(function: Callable[..., Any]) -> str:
    """Return a hash of the function's source and of the values bound to it.

    Those are its defaults, what it closes over, the arguments of a partial, and of the globals that it names those that
    are constants by their type, such as numbers and strings. Other globals, and the functions it calls, are not
    followed.

    Raises
    ------
    ValueError
        If that is not to be had, with the reason.
    """
    digest = hashlib.sha256()
    for part in _parts(function, frozenset()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _parts(function: Any, above: frozenset[int]) -> Iterator[str]:
    if id(function) in above:  # a function that closes over itself
        return
    above |= {id(function)}
    if isinstance(function, functools.partial):
        yield from _parts(function.func, above)
        yield from _values("an argument of the partial", (*function.args, function.keywords), above)
        return
    if not inspect.isfunction(function):
        raise ValueError(f"{function!r} is no function written with def")
    if function.__name__ == "<lambda>":
        raise ValueError("the source of a lambda is not told apart from its line")
    try:
        # Of the code, not of the function, which may be a wrapper that passes for the wrapped one.
        yield textwrap.dedent(inspect.getsource(function.__code__))
    except OSError:
        raise ValueError(f"the source of {function.__name__} is not available") from None
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        if not name.startswith("__"):  # __name__ differs between a script and its import
            with contextlib.suppress(TypeError):
                yield f"{name}={canonical.to_text(canonical.plain(name, function.__globals__[name]))}"
    yield from _values("a default", (*(function.__defaults__ or ()), function.__kwdefaults__ or {}), above)
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            content = None
        yield variable
        yield from _values(f"the enclosed variable {variable}", (content,), above)


def _names(code: CodeType) -> set[str]:
    """Return the globals and attributes that a function names, those inside its comprehensions and lambdas too."""
    return set(code.co_names).union(*(_names(const) for const in code.co_consts if isinstance(const, CodeType)))


def _values(where: str, values: tuple[Any, ...], above: frozenset[int]) -> Iterator[str]:
    for value in values:
        if inspect.isfunction(value) or isinstance(value, functools.partial):
            yield from _parts(value, above)
            continue
        try:
            yield canonical.to_text(canonical.plain(where, value))
        except TypeError:
            raise ValueError(f"{where} is of type {type(value).__name__}, whose value has no canonical text") from None
