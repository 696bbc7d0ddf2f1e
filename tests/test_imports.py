"""The package as a whole: who imports whom, what an import loads, and what modules are called."""

from __future__ import annotations

import ast
import graphlib
import inspect
import subprocess
import sys
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import depthgauge as dg
from depthgauge import plots, sweeps

PACKAGE = Path(dg.__file__).parent
OPTIONAL = ("cupy", "matplotlib", "scipy", "sqlite3", "torch", "xarray")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# The extension by its stub, which imports nothing of the package.
PATHS = [*PACKAGE.rglob("*.py"), PACKAGE / "_core.pyi"]
TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in PATHS}


def run_on_import(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements that run when a module is imported: not those of functions, nor those for type checkers."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for branch in ("orelse",) if typing_only else ("body", "orelse", "finalbody", "handlers"):
            yield from run_on_import(getattr(node, branch, ()))


def targets(nodes: Iterable[ast.AST], modules: Collection[str]) -> Iterator[str]:
    """Yield what is imported: a module where there is one of that name, else the module that holds the name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules else str(node.module)


def cycle(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return one cycle among the imports of modules, or nothing."""
    graph = {name: set(targets(run_on_import(tree.body), trees)) & trees.keys() for name, tree in trees.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_a_cycle_is_found_and_named() -> None:
    late = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a\ndef f():\n    from p import a\n"
    for source, found in ((late, set()), (f"{late}try:\n    from p.a import x\nfinally:\n    pass", {"p.a", "p.b"})):
        trees = {"p.a": ast.parse("from p import b"), "p.b": ast.parse(source)}
        assert set(cycle(trees)) == found


def test_there_is_no_cycle_of_imports() -> None:
    assert not cycle(TREES)


def test_imports_are_absolute() -> None:
    """As `targets` takes them to be."""
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{name}, line {node.lineno}"


def test_import_loads_nothing_optional() -> None:
    code = f"import sys, depthgauge; print(*({set(OPTIONAL)} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


PUBLIC = {
    "depthgauge": set(dg.__all__),
    "depthgauge.sweeps": set(sweeps.__all__),
    "depthgauge.plots": {name for name in vars(plots) if not name.startswith("_")},
}


def not_public(tree: ast.Module) -> Iterator[str]:
    """Yield what a study takes from the package that is neither public, nor of the studies, nor common to all areas."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("depthgauge."))
        elif isinstance(node, ast.ImportFrom):
            module = str(node.module)
            for alias in node.names:
                full = f"{module}.{alias.name}"
                own = full == "depthgauge.plots" or full.startswith(("depthgauge.studies.", "depthgauge._common."))
                if module.split(".")[0] == "depthgauge" and not own and alias.name not in PUBLIC.get(module, ()):
                    yield full
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "dg" and node.attr not in dg.__all__:
            yield f"dg.{node.attr}"


@pytest.mark.parametrize("name", [name for name in TREES if name.startswith("depthgauge.studies.")])
def test_studies_use_what_is_public(name: str) -> None:
    assert not list(not_public(TREES[name]))


def test_no_module_bears_the_name_of_a_public_function() -> None:
    """A module would hide a function of the same name, or be hidden by it."""
    functions = {name for name in dg.__all__ if inspect.isroutine(getattr(dg, name))}
    assert {"forward", "sweep"} <= functions
    assert not functions & {name.rpartition(".")[2] for name in TREES}


def test_the_package_is_seen_at_a_glance() -> None:
    entries = {
        path.name for path in PACKAGE.iterdir() if path.name != "__pycache__" and path.suffix not in (".so", ".pyd")
    }
    assert len(entries) <= 16, sorted(entries)


@pytest.mark.parametrize("name", [name for name in dg.__all__ if isinstance(getattr(dg, name), type)])
def test_types_of_public_classes_are_known(name: str) -> None:
    """Wherever a class is written, its annotations are found under the module that it names."""
    assert all(not isinstance(hint, str) for hint in typing.get_type_hints(getattr(dg, name)).values())
