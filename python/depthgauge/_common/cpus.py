"""How many CPUs this process may use: its affinity, and the quota of its control group, as containers set it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on, no more than the quota of its control group, rounded up.

    The affinity is that of now; the quota is read once.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cpus, _own_quota())))


@cache
def _own_quota() -> float:
    return cpu_quota(Path("/"))


def cpu_quota(root: Path) -> float:
    """Return how many CPUs' time the control groups of this process allow, infinite where they set no limit.

    A group counts with all those above it.  Files are looked for below `root`, those of version 2 (``cpu.max``) and of
    version 1 (``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``); what cannot be read limits nothing.
    """
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return math.inf
    quotas = [math.inf]
    for line in memberships:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mounts = _mounts(root / "sys/fs/cgroup", controllers)
        quotas += (_quota(group) for mount in mounts for group in _with_parents(mount, path))
    return min(quotas)


def _mounts(cgroup: Path, controllers: str) -> list[Path]:
    if not controllers:  # version 2, by itself or beside version 1
        return [cgroup, cgroup / "unified"]
    return [cgroup / controllers, cgroup / "cpu"] if "cpu" in controllers.split(",") else []


def _with_parents(mount: Path, path: str) -> Iterator[Path]:
    # A container may see its own group as the root, under whatever path the host has for it.
    yield mount
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for length in range(1, len(parts) + 1):
        yield mount.joinpath(*parts[:length])


def _quota(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        found = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" stands for no limit
        return math.inf
    return found if found > 0 else math.inf  # as version 1 does with -1
