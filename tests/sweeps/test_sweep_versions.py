"""Which stored results a sweep takes for its own: the function's name and version."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import depthgauge as dg
import depthgauge.sweeps.store as store_module


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_another_source_is_another_version(store: Path) -> None:
    def make(factor: int) -> Callable[..., dict[str, Any]]:
        def cell(x: int, seed: int, offset: int = 0) -> dict[str, Any]:
            return {"y": factor * x + offset}

        return cell

    values = {"x": [1]}
    assert dg.sweep(make(2), values, store=store)["y"].item() == 2
    assert dg.sweep(make(3), values, store=store)["y"].item() == 3  # what it encloses differs
    assert dg.sweep(functools.partial(make(3), offset=4), values, store=store)["y"].item() == 7
    other = make(2)
    other.__defaults__ = (5,)
    assert dg.sweep(other, values, store=store)["y"].item() == 7

    def cell(x: int, seed: int) -> dict[str, Any]:
        return {"y": -x}

    assert dg.sweep(cell, values, store=store)["y"].item() == -1
    with pytest.raises(ValueError, match=r"the stores hold name='cell' version=.*choose one by name= and version="):
        dg.read_store(store)
    version = dg.sweep(cell, values).attrs["version"]
    assert dg.read_store(store, version=version)["y"].item() == -1
    with pytest.raises(ValueError, match="none has name='other', version=None"):
        dg.read_store(store, name="other")


FACTOR = 2


def scaled(x: int, seed: int) -> dict[str, Any]:
    return {"y": [FACTOR * value for value in (x,)]}


def test_a_changed_constant_is_another_version(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dg.sweep(scaled, {"x": [5]}, store=store)["y"].item() == 10
    monkeypatch.setitem(scaled.__globals__, "FACTOR", 3)
    assert dg.sweep(scaled, {"x": [5]}, store=store)["y"].item() == 15
    with store_module.Store(store, write=False) as cells:
        assert len(cells.names()) == 2


def test_a_wrapped_function_is_told_from_the_plain_one() -> None:
    def doubled(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @functools.wraps(function)
        def wrapper(**point: Any) -> dict[str, Any]:
            return {name: 2 * value for name, value in function(**point).items()}

        return wrapper

    versions = {dg.sweep(f, {"x": [0]}).attrs["version"] for f in (identity, doubled(identity))}
    assert len(versions) == 2


def identity(x: int, seed: int) -> dict[str, Any]:
    return {"y": x}


def tabulated(x: int, seed: int, table: Any) -> dict[str, Any]:
    return {"y": table[x]}


class Tabulated:
    def __call__(self, x: int, seed: int) -> dict[str, Any]:
        return {"y": x}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, seed: {"y": x}, "a lambda"),
        (Tabulated(), "no function written with def"),
        (functools.partial(tabulated, table=np.arange(5)), "an argument of the partial is of type"),
        (eval("lambda x, seed: {'y': x}"), "a lambda"),
    ],
)
def test_a_function_without_source_needs_a_version(function: Any, reason: str, store: Path) -> None:
    with pytest.raises(ValueError, match=f"{reason}.*; give version="):
        dg.sweep(function, {"x": [2]}, store=store)
    assert dg.sweep(function, {"x": [2]}, store=store, version="1", name="mine")["y"].item() == 2
    assert dg.read_store(store).attrs["name"] == "mine"


def test_a_function_from_nowhere_needs_a_version(store: Path) -> None:
    scope: dict[str, Any] = {}
    exec("def typed(seed):\n    return {'y': seed}", scope)
    with pytest.raises(ValueError, match=r"the source of typed is not available; give version="):
        dg.sweep(scope["typed"], {}, store=store)
