"""The tools beside the package: the comparison with peers, the checks, and the versions they are pinned to."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import depthgauge as dg

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
COMPARE = ROOT / "benchmarks" / "compare.py"
SYMBOLS = ROOT / "tools" / "check_weak_symbols.py"
SMOKE = ROOT / "tools" / "smoke.py"
HOOKS = ROOT / ".pre-commit-config.yaml"
SESSIONS = ROOT / "noxfile.py"

LISTING = """\
0000000000000000 T depthgauge::v3::forward_layer(depthgauge::Layer const&)
0000000000000010 t depthgauge::v3::(anonymous namespace)::product
0000000000000000 r .LC0
                 U memcpy
                 w __gmon_start__
"""


def load(path: Path) -> ModuleType:
    if not path.exists():
        pytest.skip("not a checkout")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_local_global_and_undefined_symbols_may_stay() -> None:
    assert load(SYMBOLS).shared_symbols(LISTING) == []


@pytest.mark.parametrize("kind", ["W", "V", "u", "w"])
def test_symbols_that_the_linker_may_share_are_found(kind: str) -> None:
    name = "std::vector<int, std::allocator<int> >::push_back(int&&)"
    assert load(SYMBOLS).shared_symbols(LISTING + f"0000000000000000 {kind} {name}\n") == [f"{kind} {name}"]


def test_a_build_without_objects_is_an_error(tmp_path: Path) -> None:
    load(SYMBOLS)
    assert subprocess.run([sys.executable, SYMBOLS, tmp_path], capture_output=True, check=False).returncode == 2


def compare(folder: Path, *arguments: str | Path) -> tuple[str, dict[str, Any]]:
    """Run the comparison without torch and JAX; return what it prints and what it writes."""
    for peer in ("torch", "jax"):
        (folder / f"{peer}.py").write_text(f"raise ImportError('no {peer} here')\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    figures = folder / "figures.json"
    result = subprocess.run(
        [sys.executable, COMPARE, *arguments, "--json", figures],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(figures.read_text())


@pytest.mark.skipif(not COMPARE.exists(), reason="not a checkout")
def test_comparison_runs_and_reports_absent_peers(tmp_path: Path) -> None:
    """A peer that cannot be imported is named and left out."""
    printed, found = compare(tmp_path, "stack", "--quick", "--threads", "1")
    for peer in ("torch", "jax"):
        assert f"no {peer} here" in printed
    (run,) = found["runs"]
    assert len(run["problems"]) == 4  # two dtypes, two activations
    for problem in run["problems"]:
        assert "depthgauge" in problem["contenders"]
        for contender in problem["contenders"].values():
            assert contender["median"] > 0
            assert contender["weight_median"] > 0


@pytest.mark.skipif(not COMPARE.exists(), reason="not a checkout")
def test_comparison_of_singular_values_runs(tmp_path: Path) -> None:
    pytest.importorskip("threadpoolctl")
    printed, found = compare(tmp_path, "spread", "--sizes", "3", "33", "--seconds", "0.002", "--repeats", "1")
    assert "no jax here" in printed
    assert [(p["size"], p["dtype"]) for p in found["problems"]] == [
        (size, dtype) for size in (3, 33) for dtype in ("float32", "float64")
    ]
    for problem in found["problems"]:
        assert set(problem["median"]) == {"depthgauge", "NumPy", "pool"}
        assert all(seconds > 0 for seconds in problem["median"].values())


@pytest.mark.skipif(not COMPARE.exists(), reason="not a checkout")
def test_comparison_of_errors_runs(tmp_path: Path) -> None:
    printed, found = compare(tmp_path, "spread", "--accuracy", "--sizes", "1", "5", "--dtypes", "float64")
    assert "the bound is 8 sqrt(d) eps" in printed
    errors = [entry["error"] for entry in found["errors"] if entry["contender"] == "depthgauge"]
    assert len(errors) == 28  # two sizes of every kind of matrix
    assert 0 < max(errors) <= 8 * 5**0.5


@pytest.mark.skipif(not SMOKE.exists(), reason="not a checkout")
def test_smoke_test_finds_what_is_installed() -> None:
    result = subprocess.run([sys.executable, SMOKE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(": ok\n")


@pytest.mark.skipif(not SMOKE.exists(), reason="not a checkout")
def test_smoke_test_fails_where_the_backends_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    smoke = load(SMOKE)
    right = dg.singular_values
    monkeypatch.setattr(
        dg, "singular_values", lambda a, backend: right(a, backend=backend) * (1 + 1e-9 * (backend == "native"))
    )
    with pytest.raises(AssertionError):
        smoke.check_backends()


@pytest.mark.skipif(not HOOKS.exists(), reason="not a checkout")
def test_hooks_and_sessions_use_the_same_versions() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    pinned = {name for name in (*groups["lint"], *groups["types"]) if "==" in name}
    hooks = HOOKS.read_text(encoding="utf-8")
    assert set(re.findall(r"[\w-]+==[\w.]+", hooks)) == pinned


@pytest.mark.skipif(not (ROOT / ".ci" / "run").exists() or not SESSIONS.exists(), reason="not a checkout")
def test_continuous_integration_runs_every_session() -> None:
    """But those that change files, and `tests`, which the README's line stands for."""
    named = re.findall(r"^session (\w+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), flags=re.M)
    found = re.findall(r"^@nox\.session(\(.*\))?\ndef (\w+)", SESSIONS.read_text(encoding="utf-8"), flags=re.M)
    sessions = {name for options, name in found if "default=False" not in options}
    assert len(named) == len(set(named))
    assert set(named) == sessions - {"tests"}
