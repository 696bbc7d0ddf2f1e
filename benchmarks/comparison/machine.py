"""The machine record: where a set of figures was measured, and with what."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

import depthgauge as dg

LIBRARIES = ("numpy", "scipy", "torch", "jax", "jaxlib")
SYSTEM = Path("/sys/devices/system/cpu")


def machine_record() -> dict[str, Any]:
    """Return CPU, caches, versions and the build of depthgauge, as plain data."""
    return {
        "cpu": _cpu_model(),
        "cpus_usable": len(usable_cpus()),
        "caches": _caches(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "libraries": {"depthgauge": dg.__version__} | {name: _version(name) for name in LIBRARIES},
        "build_config": dg.build_config(),
    }


def blas_record() -> list[str]:
    """Return the BLAS and OpenMP libraries loaded into this process, with their threads."""
    try:
        threadpoolctl: Any = importlib.import_module("threadpoolctl")
    except ImportError:
        return ["unknown: threadpoolctl is not installed"]
    return [
        f"{pool.get('internal_api')} {pool.get('version') or ''} "
        f"({Path(pool['filepath']).name}, {pool['num_threads']} threads)"
        for pool in threadpoolctl.threadpool_info()
    ]


def usable_cpus() -> list[int]:
    """Return the CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin_one_cpu_a_core(count: int) -> list[int] | None:
    """Keep this process on `count` usable CPUs on as many cores, so that no two share execution units.

    Return them; None if there are too few, or they cannot be chosen here.
    """
    chosen: dict[str, int] = {}
    for cpu in usable_cpus():
        siblings = _read(SYSTEM / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        chosen.setdefault(siblings, cpu)
    cpus = list(chosen.values())
    if len(cpus) < count or not hasattr(os, "sched_setaffinity"):
        return None
    os.sched_setaffinity(0, cpus[:count])
    return cpus[:count]


def peak_megabytes() -> float:
    """Return the most memory this process has held, in MB (10^6 bytes)."""
    resource: Any = importlib.import_module("resource")  # not on Windows
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _cpu_model() -> str:
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _caches() -> dict[str, str]:
    caches = {}
    for cache in sorted(SYSTEM.glob("cpu0/cache/index*")):
        level, kind, size = (_read(cache / name) for name in ("level", "type", "size"))
        if level and kind and size:
            caches[f"L{level} {kind.lower()}"] = size
    return caches


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
