"""The backends: one small set of functions, `depthgauge.backends.protocol`, implemented twice.

``reference`` is plain NumPy and says what is right; ``native`` is C++ and fast.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import cast

from depthgauge.backends.protocol import Backend

BACKENDS = ("native", "reference")


def available_backends() -> tuple[str, ...]:
    """Return the names of the backends that can be used here."""
    return BACKENDS


def backend_name(name: str | None) -> str:
    """Return the name of the backend that `name` stands for; None means ``DEPTHGAUGE_BACKEND``, or native.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    chosen = name if name is not None else os.environ.get("DEPTHGAUGE_BACKEND") or "native"
    if chosen not in BACKENDS:
        source = "backend" if name is not None else "DEPTHGAUGE_BACKEND"
        raise ValueError(f"{source}={chosen!r} is not a backend; choose one of {', '.join(BACKENDS)}, or None")
    return chosen


def get_backend(name: str | None) -> Backend:
    """Return the backend that `name` stands for, as `backend_name` does."""
    return _module(backend_name(name))


@cache
def _module(name: str) -> Backend:
    return cast(Backend, importlib.import_module(f"depthgauge.backends.{name}"))
