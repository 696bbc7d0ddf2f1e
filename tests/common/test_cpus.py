"""CPU quotas of control groups, of both versions, as files in a temporary tree show them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import depthgauge as dg
from depthgauge._common import cpus


def tree(root: Path, membership: str, **files: str) -> Path:
    """Return `root` with the file of memberships, and files of groups by path, ``__`` for ``/``."""
    written = {"proc/self/cgroup": membership} | {
        f"sys/fs/cgroup/{name.replace('__', '/').replace('cpu_', 'cpu.')}": text for name, text in files.items()
    }
    for name, text in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000\n", math.inf), ("150000 100000\n", 1.5), ("5000 100000", 0.05), ("", math.inf), ("junk", math.inf)],
)
def test_version_2(tmp_path: Path, text: str, quota: float) -> None:
    assert cpus.cpu_quota(tree(tmp_path, "0::/\n", cpu_max=text)) == quota


def test_a_group_counts_with_all_above_it(tmp_path: Path) -> None:
    files = {"cpu_max": "max 100000", "a__cpu_max": "300000 100000", "a__b__cpu_max": "800000 100000"}
    assert cpus.cpu_quota(tree(tmp_path, "0::/a/b\n", **files)) == 3


@pytest.mark.parametrize(("quota", "found"), [("-1", math.inf), ("250000", 2.5), ("0", math.inf), ("100000", 1.0)])
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1(tmp_path: Path, mount: str, quota: str, found: float) -> None:
    files = {f"{mount}__docker__x__cpu_cfs_quota_us": quota, f"{mount}__docker__x__cpu_cfs_period_us": "100000"}
    membership = "5:memory:/elsewhere\n4:cpu,cpuacct:/docker/x\n"
    assert cpus.cpu_quota(tree(tmp_path, membership, **files)) == found


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    files = {"cpu__cpu_cfs_quota_us": "50000", "cpu__cpu_cfs_period_us": "100000"}
    assert cpus.cpu_quota(tree(tmp_path, "3:cpu:/docker/0123abc\n", **files)) == 0.5


def test_other_controllers_set_no_quota(tmp_path: Path) -> None:
    files = {"cpuset__cpu_cfs_quota_us": "50000", "cpuset__cpu_cfs_period_us": "100000"}
    assert cpus.cpu_quota(tree(tmp_path, "3:cpuset:/\n", **files)) == math.inf


def test_without_control_groups_nothing_is_limited(tmp_path: Path) -> None:
    assert cpus.cpu_quota(tmp_path) == math.inf


@pytest.mark.parametrize(("quota", "threads"), [(0.05, 1), (1.0, 1), (1.2, 2), (math.inf, None)])
def test_threads_follow_the_quota_rounded_up(
    monkeypatch: pytest.MonkeyPatch, quota: float, threads: int | None
) -> None:
    monkeypatch.delenv("DEPTHGAUGE_NUM_THREADS", raising=False)
    monkeypatch.setattr(cpus, "_own_quota", lambda: math.inf)
    all_cpus = dg.build_config()["threads"]
    monkeypatch.setattr(cpus, "_own_quota", lambda: quota)
    assert dg.build_config()["threads"] == min(all_cpus, threads or all_cpus)
