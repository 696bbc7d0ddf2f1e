"""Reading stores: one as its sweep, several joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep_cells

import depthgauge as dg

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def square(x: int, seed: int) -> dict[str, Any]:
    return {"y": x * x + seed, "ramp": ("i", np.arange(float(x)))}


def test_a_store_reads_as_its_sweep(store: Path) -> None:
    blocks = [dg.Block.placed("post"), dg.Block.placed("pre")]

    def cell(block: dg.Block, depth: int, note: str | None, seed: int) -> dict[str, Any]:
        return {"y": len(block.formula()) + depth, "z": ("layer", np.arange(depth, dtype=np.float32))}

    grid = {"block": blocks, "depth": [4, 2], "note": [None, "a"]}
    result = dg.sweep(cell, grid, seeds=[5, 1], store=store)
    assert dg.read_store(store).identical(result)
    labels = {"block": ["post", "pre"], "layer": [10, 20, 30, 40]}
    assert dg.read_store(store, coords=labels).identical(dg.sweep(cell, grid, seeds=[5, 1], store=store, coords=labels))


def test_stores_are_joined(tmp_path: Path) -> None:
    one, two, three = (tmp_path / f"{name}.db" for name in ("one", "two", "three"))
    dg.sweep(square, {"x": [1, 4]}, seeds=[2, 3], store=one)
    dg.sweep(square, {"x": [2]}, seeds=[0, 1, 2, 3], store=two)
    joined = dg.read_store(one, two)
    assert joined["x"].values.tolist() == [1, 2, 4]
    assert joined["seed"].values.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(joined["y"].sel(x=2), [4, 5, 6, 7])
    np.testing.assert_array_equal(joined["y"].sel(x=4), [np.nan, np.nan, 18, 19])
    dg.sweep(square, {"x": [1, 2, 4]}, seeds=4, store=three)
    assert sweep_cells.same(dg.read_store(two, one, three), dg.read_store(three))


def test_stores_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    for store, factor in ((one, 1), (two, 2)):
        dg.sweep(lambda x, seed, f=factor: {"y": f * x}, {"x": [0, 1]}, store=store, name="f", version="1")
    with pytest.raises(ValueError, match=r'one.db and .*two.db have different results for the cell {"x":1}, seed 0'):
        dg.read_store(one, two)
    dg.sweep(lambda seed: {"y": 0}, {}, store=one, name="f", version="1")
    with pytest.raises(ValueError, match=r"have different axes: \(\) and \(x\)"):
        dg.read_store(one)
    with pytest.raises(TypeError, match="at least one path"):
        dg.read_store()


def test_a_result_beats_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    with pytest.warns(RuntimeWarning, match="1 of 2"):
        dg.sweep(sweep_cells.odd_seeds_fail, {"x": [0]}, seeds=2, store=one)
    monkeypatch.setenv("SWEEP_CELLS_HEALED", "1")
    dg.sweep(sweep_cells.odd_seeds_fail, {"x": [0]}, seeds=[1], store=two)
    for paths in ((one, two), (two, one)):
        assert dg.read_store(*paths)["y"].values.tolist() == [[0, 1]]
