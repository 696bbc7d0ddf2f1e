"""How the extension was built, for bug reports."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np

from depthgauge import _core
from depthgauge._common import arguments
from depthgauge._version import __version__

if _core.__version__ != __version__:
    raise ImportError(
        f"depthgauge is version {__version__}, but its extension {_core.__file__} is version {_core.__version__}; "
        "install the package again: an old build was left behind"
    )


def build_config() -> dict[str, Any]:
    """Return how this package was built and what it uses here, as plain data.

    Returns
    -------
    dict
        `version`, `python`, `numpy`, `platform`, `compiler`, `flags`, `targets_compiled` and `targets_supported` (the
        instruction sets in the extension, and those of them that this CPU has), `target` (the one in use; set
        ``DEPTHGAUGE_TARGET`` to force another) and `threads` (the most a call may use).

    Raises
    ------
    ValueError
        If ``DEPTHGAUGE_TARGET`` or ``DEPTHGAUGE_NUM_THREADS`` asks for what there is not.
    """
    return _core.build_info() | {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "target": _core.choose_target(os.environ.get("DEPTHGAUGE_TARGET", "")),
        "threads": arguments.available_threads(),
    }
