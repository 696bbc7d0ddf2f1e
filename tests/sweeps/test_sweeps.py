"""Sweeps: what the function gets, what comes back, where it runs, and what goes wrong."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep_cells
import xarray
from interrupts import needs_signals, output_after_control_c

import depthgauge as dg
from depthgauge.sweeps import cells

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def serial() -> xarray.Dataset:
    return dg.sweep(sweep_cells.transport, sweep_cells.TRANSPORT, seeds=3)


def test_every_cell_is_what_the_function_returns(serial: xarray.Dataset) -> None:
    assert serial["growth"].dims == ("depth", "branch_scale", "seed")
    assert serial["rms"].dims == ("depth", "branch_scale", "seed", "state")
    assert serial["first"].dims == ("depth", "branch_scale", "seed", "first_0")
    for depth, scale, seed in itertools.product(*sweep_cells.TRANSPORT.values(), range(3)):
        cell = serial.sel(depth=depth, branch_scale=scale, seed=seed)
        expected = sweep_cells.transport(depth, scale, seed)
        assert cell["growth"] == expected["growth"]
        np.testing.assert_array_equal(cell["rms"][: depth + 1], expected["rms"][1])
        assert np.isnan(cell["rms"][depth + 1 :]).all()
        np.testing.assert_array_equal(cell["first"], expected["first"])
        assert cell["cell_seconds"] > 0


def test_attributes_say_where_the_numbers_come_from(serial: xarray.Dataset) -> None:
    config = dg.build_config()
    assert json.loads(serial.attrs["build_config"]) == config
    assert serial.attrs["depthgauge"] == dg.__version__
    assert (serial.attrs["numpy"], serial.attrs["python"]) == (config["numpy"], config["python"])
    assert (serial.attrs["name"], len(serial.attrs["version"])) == ("transport", 16)
    assert (serial.attrs["cells"], serial.attrs["failed"]) == (18, 0)


def test_no_axes_is_one_cell_a_seed() -> None:
    result = dg.sweep(lambda seed: {"y": seed**2}, {}, seeds=[7, -2, 5])
    assert result["y"].dims == ("seed",)
    assert result["y"].values.tolist() == [49, 4, 25]
    assert result["seed"].values.tolist() == [7, -2, 5]


def test_the_function_gets_plain_values() -> None:
    got = []

    def record(**point: Any) -> dict[str, Any]:
        got.append(point)
        return {"y": 0}

    block = dg.Block(branch_scale=[0.5, 1.0])
    grid = {
        "n": np.array([4]),
        "x": np.array([0.1], np.float32),
        "shape": [[1, [2, 3]]],
        "block": [block],
        "options": [{"a": [1]}],
        "none": [None],
        "flag": np.array([True]),
        "word": np.array(["w"]),
    }
    dg.sweep(record, grid)
    (point,) = got
    expected = {
        "n": 4,
        "x": float(np.float32(0.1)),
        "shape": (1, (2, 3)),
        "block": block,
        "options": {"a": (1,)},
        "none": None,
        "flag": True,
        "word": "w",
        "seed": 0,
    }
    assert point == expected
    assert {name: type(value) for name, value in point.items()} == {n: type(value) for n, value in expected.items()}


def test_gaps_keep_floats_and_make_floats_of_the_rest() -> None:
    def padded(n: int, seed: int) -> dict[str, Any]:
        return {
            "single": ("k", np.ones(n, np.float32)),
            "count": ("k", np.arange(n)),
            "flag": ("k", np.ones(n, bool)),
            "word": ("k", np.full(n, "w" * (n + 1))),
            "fixed": np.arange(2),
            "complex": (("k", "l"), np.ones((n, 2), complex)),
            "zero": ((), 3),
        }

    result = dg.sweep(padded, {"n": [0, 2]}).isel(seed=0)
    kinds = {name: variable.dtype.str[1:] for name, variable in result.data_vars.items()}
    assert kinds == {
        "single": "f4", "count": "f8", "flag": "f8", "word": "U3", "fixed": "i8", "complex": "c16", "zero": "i8",
    }  # fmt: skip
    assert np.isnan(result.sel(n=0)["count"]).all()
    assert result.sel(n=2)["count"].values.tolist() == [0.0, 1.0]
    assert result["word"].values.tolist() == [["", ""], ["www", "www"]]


def test_failed_cells_are_kept_apart_and_told() -> None:
    with pytest.warns(RuntimeWarning, match="2 of 4 cells of odd_seeds_fail failed, such as x=0, seed=1: Arithmetic"):
        result = dg.sweep(sweep_cells.odd_seeds_fail, {"x": [0, 1]}, seeds=2)
    assert result.attrs["failed"] == 2
    np.testing.assert_array_equal(result["y"], [[0.0, np.nan], [10.0, np.nan]])
    assert result["word"].values.tolist() == [["a", ""], ["ab", ""]]
    errors = result["cell_error"]
    assert (errors.sel(seed=0) == "").all()
    text = errors.sel(x=1, seed=1).item()
    assert text.startswith("Traceback")
    assert "sweep_cells.py" in text
    assert "run_cell" not in text


def test_on_error_raise_stops_at_the_first() -> None:
    seen = []

    def fails(seed: int) -> dict[str, Any]:
        seen.append(seed)
        if seed == 2:
            raise ArithmeticError("two")
        return {"y": seed}

    with pytest.raises(RuntimeError, match=r"fails failed at seed=2:\nTraceback(.|\n)*ArithmeticError: two"):
        dg.sweep(fails, {}, seeds=9, on_error="raise")
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (3, "must return a dict"),
        ({1: 2}, "names of results must be strings"),
        ({"y": object()}, "numbers, bools or strings; got dtype object"),
        ({"y": np.ma.masked_array([1.0])}, "masked array"),
        ({"x": 1}, "cannot be named 'x'"),
        ({"seed": 1}, "cannot be named 'seed'"),
        ({"y": ("x", [1])}, "an axis of the sweep already"),
        ({"y": (("a", "a"), [[1]])}, r"declares a dimension twice: \('a', 'a'\)"),
        ({"y": (("a", "b"), [1])}, "its array has shape"),
        ({"y": ("a", [1]), "z": ("a", [1, 2])}, "length 2 along 'a', another result 1"),
        ({"a": 1, "z": ("a", [1, 2])}, "'a' is the name of a result and of a dimension"),
    ],
)
def test_results_that_cannot_be_kept_fail_their_cell(result: Any, message: str) -> None:
    with pytest.warns(RuntimeWarning, match=f"1 of 1 cells .*{message}"):
        dataset = dg.sweep(lambda x, seed: result, {"x": [1]})
    assert not dataset.data_vars


def test_a_result_too_large_for_a_row_fails_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "LARGEST", 1000)
    with pytest.warns(RuntimeWarning, match="1 of 2 cells .* the result has 1128 bytes; a cell holds 1000"):
        result = dg.sweep(lambda n, seed: {"y": ("i", np.ones(n))}, {"n": [100, 125]})
    assert result["y"].sel(n=100).sum() == 100


@pytest.mark.parametrize("leave", [sys.exit, lambda: 1 / 0, lambda: Path("\udcff").read_text()])
def test_a_cell_may_end_in_any_way(leave: Callable[[], Any]) -> None:
    def leaves(seed: int) -> dict[str, Any]:
        leave()
        return {"y": seed}

    with pytest.warns(RuntimeWarning, match="2 of 2 cells of leaves failed"):
        result = dg.sweep(leaves, {}, seeds=2)
    assert result.attrs["failed"] == 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"y": np.ones(3)}, r"shape \(2,\) in one, \(3,\) in the other"),
        ({"y": np.ones(2, np.float32)}, "dtype float64 in one, float32"),
        ({"y": ("k", np.ones(2))}, r"dims undeclared in one, \('k',\)"),
        ({"z": np.ones(2)}, "one holds y, the other z"),
    ],
)
def test_results_that_do_not_fit_together_name_both_cells(other: dict[str, Any], message: str) -> None:
    def changes(x: int, seed: int) -> dict[str, Any]:
        return other if x == 1 and seed == 1 else {"y": np.ones(2)}

    with pytest.raises(ValueError, match=message) as caught:
        dg.sweep(changes, {"x": [0, 1]}, seeds=2)
    assert "one cell: x=0, seed=0" in str(caught.value)
    assert "another:  x=1, seed=1" in str(caught.value)


def plain(x: int, seed: int) -> dict[str, Any]:
    return {"y": ("k", [x, seed])}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"function": 3}, TypeError, "function must be callable"),
        ({"grid": {"z": [1]}}, TypeError, "called with z, seed by name"),
        ({"grid": {"x": 3}}, TypeError, r"grid\['x'\] must be a sequence of values; got 3. Write \[value\]"),
        ({"grid": {"x": "abc"}}, TypeError, "must be a sequence of values"),
        ({"grid": {"x": [object]}}, TypeError, r"grid\['x'\] takes None, a bool"),
        ({"grid": {"x": [np.ones(2)]}}, TypeError, r"grid\['x'\] takes None, a bool"),
        ({"grid": {"x": []}}, ValueError, "has no values"),
        ({"grid": {"x": [1, np.int8(1)]}}, ValueError, "has the value 1 twice"),
        ({"grid": {"x": [4, 4.0]}}, ValueError, "has the value 4.0 twice"),
        ({"grid": {"seed": [1]}}, ValueError, "seeds are the business of seeds="),
        ({"grid": [("x", [1]), ("x", [2])]}, ValueError, "grid has two axes 'x'"),
        ({"grid": {"a b": [1]}}, ValueError, "arguments of the function"),
        ({"grid": 3}, TypeError, "grid must be a dict"),
        ({"grid": ["x"]}, TypeError, "or such pairs"),
        ({"seeds": 0}, ValueError, "seeds=0 must be an integer >= 1"),
        ({"seeds": 1.5}, TypeError, "seeds must be an integer"),
        ({"seeds": []}, ValueError, "seeds has no values"),
        ({"seeds": [1, 1]}, ValueError, "seeds has a value twice"),
        ({"seeds": [2**63]}, ValueError, r"seeds\[0\]=9223372036854775808 must be below"),
        ({"coords": {"x": [1, 2, 3]}}, ValueError, r"coords\['x'\] has 3 labels; the axis has 2"),
        ({"coords": {"k": [1]}}, ValueError, r"coords\['k'\] has 1 labels; 'y' has length 2 in the cell x=0, seed=0"),
        ({"coords": {"l": [1]}}, ValueError, "coords has 'l', which is no dimension of the result"),
        ({"coords": {"x": [[1], [2]]}}, ValueError, "must be a list of numbers or of strings"),
        ({"coords": 3}, TypeError, "coords must be a dict"),
        ({"executor": 3}, TypeError, "executor must be a concurrent.futures.Executor"),
        ({"on_error": "stop"}, ValueError, "on_error='stop' is unknown"),
        ({"progress": "yes"}, TypeError, "progress must be True or False"),
        ({"name": 3}, TypeError, "name must be a string"),
        ({"version": 3}, TypeError, "version must be a string"),
    ],
)
def test_arguments_are_refused_by_name(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"function": plain, "grid": {"x": [0, 1]}} | change
    with pytest.raises(error, match=message):
        dg.sweep(**arguments)


# ---- what else a user meets

INTERRUPTED = """
import sys, time
import depthgauge as dg

def cell(seed):
    if seed == 3:
        print("ready", flush=True)
        time.sleep(30)
    return {"y": seed}

try:
    dg.sweep(cell, {}, seeds=9, store=sys.argv[1], version="1")
except KeyboardInterrupt as interrupt:
    print(interrupt)
"""


@needs_signals
def test_control_c_says_what_is_lost_without_a_store() -> None:
    words = output_after_control_c(INTERRUPTED.replace("store=sys.argv[1], ", ""), after=0.1)
    assert " ".join(words) == ("cell: 3 of 9 cells have a result; they are lost without store=")


@needs_signals
def test_control_c_keeps_what_is_stored_and_says_how_to_go_on(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    words = output_after_control_c(INTERRUPTED, str(store), after=0.1)
    assert " ".join(words) == (
        f"cell: 3 of 9 cells have a result in the store {store}; call it again to go on from there"
    )
    again = []

    def cell(seed: int) -> dict[str, Any]:
        again.append(seed)
        return {"y": seed}

    assert dg.sweep(cell, {}, seeds=9, store=store, version="1")["y"].values.tolist() == list(range(9))
    assert again == [3, 4, 5, 6, 7, 8]


def test_progress_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    for progress in (None, False):
        dg.sweep(plain, {"x": [1, 2]}, progress=progress)  # no terminal here
    assert capsys.readouterr().err == ""
    dg.sweep(plain, {"x": [1, 2]}, progress=True)
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["xarray", "tqdm"])
def test_missing_packages_name_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(ImportError, match=rf"sweeps need {missing}.*pip install 'depthgauge\[studies\]'"):
        dg.sweep(plain, {"x": [1]}, progress=True)
    if missing == "xarray":
        with pytest.raises(ImportError, match="studies"):
            dg.read_store("nowhere")


def test_a_sweep_without_a_store_uses_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("sqlite3.connect", refuse)
    with pytest.warns(RuntimeWarning, match="such as x=0, seed=1"):
        result = dg.sweep(sweep_cells.odd_seeds_fail, {"x": [1, 0]}, seeds=2)
    assert result["y"].sel(seed=0).values.tolist() == [10.0, 0.0]


def test_import_loads_nothing_that_only_sweeps_need() -> None:
    code = """
import sys
import depthgauge as dg
heavy = {"sqlite3", "xarray", "pandas", "tqdm"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert {"sweep", "read_store"} <= set(dir(dg))
dg.sweep
assert "xarray" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_partials_and_wrappers_can_be_swept() -> None:
    result = dg.sweep(functools.partial(plain, 3), {}, seeds=2)
    assert result.attrs["name"] == "plain"
    assert result["y"].values.tolist() == [[3, 0], [3, 1]]


def test_both_functions_are_at_home_in_the_package() -> None:
    for function in (dg.sweep, dg.read_store):
        assert function.__module__ == "depthgauge"
        assert pickle.loads(pickle.dumps(function)) is function
