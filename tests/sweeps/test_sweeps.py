"""Sweeps: what the function gets, what comes back, where it runs, and what goes wrong."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep_cells
import xarray
from hypothesis import given
from hypothesis import strategies as st
from interrupts import needs_signals, output_after_control_c

import depthgauge as dg
from depthgauge.sweeps import canonical, cells, grid

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]


def untimed(dataset: xarray.Dataset) -> xarray.Dataset:
    return dataset.drop_vars("cell_seconds")


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


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(VALUES)
def test_text_gives_the_value_back(value: Any) -> None:
    text = canonical.to_text(value)
    back = canonical.from_text(text)
    assert repr(back) == repr(value) or isinstance(value, tuple | dict)
    assert canonical.to_text(back) == text
    assert "\n" not in text


@given(st.floats(), st.floats())
def test_floats_have_one_text_only_if_they_have_one_value(one: float, other: float) -> None:
    same = one.hex() == other.hex()
    assert (canonical.to_text(one) == canonical.to_text(other)) == same


def test_numbers_of_any_kind_have_one_text_an_int_and_a_float_two() -> None:
    ints = [4, np.int64(4), np.uint8(4), np.array(4)]
    floats = [4.0, np.float32(4), np.float64(4)]
    assert {canonical.to_text(canonical.plain("x", four)) for four in ints} == {"4"}
    assert {canonical.to_text(canonical.plain("x", four)) for four in floats} == {"4.0"}
    assert canonical.to_text(True) == "true"


def test_blocks_have_a_text() -> None:
    block = dg.Block(branch_scale=[0.1, 0.2], post_norm="layer")
    text = canonical.to_text(block)
    assert canonical.from_text(text) == block
    assert text == '{"Block":{"branch_scale":[0.1,0.2],"post_norm":"layer"}}'


def test_the_order_of_axes_is_no_part_of_a_cell() -> None:
    one = grid.checked_grid({"a": [1, 2], "b": ["x"]}, 2)
    other = grid.checked_grid([("b", ["x"]), ("a", [2, 1])], [1, 0])
    assert {cell.key for cell in one.cells()} == {cell.key for cell in other.cells()}
    assert grid.Grid.from_json(one.to_json()) == one
    for cell in one.cells():
        values = canonical.from_text('{"dict":' + cell.parameters + "}")
        assert values == cell.point


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([4, 2], [4, 2]),
        ([1, 0.5], [1.0, 0.5]),
        (["b", "a"], ["b", "a"]),
        ([False, True], [False, True]),
        ([None, 3], ["None", "3"]),
        ([3, "3"], ["3", '"3"']),
        ([(1, 2), (3,)], ["(1, 2)", "(3,)"]),
        ([2**80], [str(2**80)]),
        ([-1, 2**63], ["-1", str(2**63)]),
        ([dg.Block()], [dg.Block().formula()]),
    ],
)
def test_labels_of_an_axis(values: list[Any], labels: list[Any]) -> None:
    result = dg.sweep(lambda v, seed: {"y": 1}, {"v": values})
    assert result["v"].values.tolist() == labels


def test_ints_beside_floats_are_floats() -> None:
    assert dg.sweep(lambda v, seed: {"y": v * 2}, {"v": [1, 0.5]})["y"].values.tolist() == [[2.0], [1.0]]


def test_coords_label_axes_and_declared_dimensions() -> None:
    def states(block: dg.Block, seed: int) -> dict[str, Any]:
        return {"rms": ("depth", [1.0, 2.0])}

    blocks = [dg.Block.placed("pre"), dg.Block.placed("post")]
    result = dg.sweep(states, {"block": blocks}, coords={"block": ["pre", "post"], "depth": [12, 24, 48]})
    assert result["rms"].sel(block="post", depth=24).item() == 2.0
    assert np.isnan(result["rms"].sel(depth=48)).all()


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


# ---- executors


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    # Not forked: pytest's process has threads.
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def test_threads_give_the_same_bits(serial: xarray.Dataset) -> None:
    with ThreadPoolExecutor(2) as executor:
        result = dg.sweep(sweep_cells.transport, sweep_cells.TRANSPORT, seeds=3, executor=executor)
    assert untimed(result).identical(untimed(serial))


def test_processes_give_the_same_bits(serial: xarray.Dataset, processes: Executor) -> None:
    result = dg.sweep(sweep_cells.transport, sweep_cells.TRANSPORT, seeds=3, executor=processes)
    assert untimed(result).identical(untimed(serial))


def test_dask_gives_the_same_bits(serial: xarray.Dataset) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        warnings.catch_warnings(action="ignore"),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        with pytest.raises(TypeError, match=r"client\.get_executor\(\)"):
            dg.sweep(sweep_cells.transport, sweep_cells.TRANSPORT, executor=client)
        executor = client.get_executor()
        result = dg.sweep(sweep_cells.transport, sweep_cells.TRANSPORT, seeds=3, executor=executor)
        share = dg.sweep(sweep_cells.threads, {}, seeds=3, executor=executor)["threads"]
        sent = dg.sweep(lambda seed: {"y": seed}, {}, seeds=3, executor=executor)  # Dask sends more than pickle does
    assert untimed(result).identical(untimed(serial))
    assert set(share.values.tolist()) == {1}
    assert sent["y"].values.tolist() == [0, 1, 2]


MPI = """
import pickle, sys
import sweep_cells
import depthgauge as dg
from mpi4py.futures import MPIPoolExecutor

if __name__ == "__main__":
    with MPIPoolExecutor() as executor:
        result = dg.sweep(sweep_cells.transport, sweep_cells.TRANSPORT, seeds=3, executor=executor)
        try:
            dg.sweep(lambda seed: {"y": 0}, {}, executor=executor)
        except TypeError as error:
            result.attrs["error"] = str(error)
    with open(sys.argv[1], "wb") as file:
        pickle.dump(result, file)
"""


def test_mpi_gives_the_same_bits(serial: xarray.Dataset, tmp_path: Path) -> None:
    launcher = shutil.which("mpiexec")
    importable = subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], capture_output=True, check=False)
    if launcher is None or importable.returncode:
        pytest.skip("no mpiexec, or no mpi4py that finds its MPI")
    script, out = tmp_path / "script.py", tmp_path / "out.pickle"
    script.write_text(MPI)
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        [launcher, "-n", "2", sys.executable, "-m", "mpi4py.futures", script, out],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        timeout=60,
    )
    result = pickle.loads(out.read_bytes())
    assert "top level of a module" in result.attrs.pop("error")
    assert untimed(result).identical(untimed(serial))


class Counting(ThreadPoolExecutor):
    """Counts the futures that have not finished."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.most = self.now = 0
        self.count = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self.count:
            self.now += 1
            self.most = max(self.most, self.now)
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(self.landed)
        return future

    def landed(self, future: Future[Any]) -> None:
        with self.count:
            self.now -= 1


def test_futures_in_flight_are_bounded() -> None:
    with Counting(2) as executor:
        result = dg.sweep(lambda seed: {"y": seed}, {}, seeds=100, executor=executor)
    assert result["y"].values.tolist() == list(range(100))
    assert 2 < executor.most <= 6


def test_workers_are_told_their_share_of_threads(monkeypatch: pytest.MonkeyPatch, processes: Executor) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    with ThreadPoolExecutor(2) as pool:
        for executor, share in ((None, 7), (pool, 3), (processes, 3)):
            threads = dg.sweep(sweep_cells.threads, {}, seeds=6, executor=executor)["threads"]
            assert set(threads.values.tolist()) == {share}
    assert os.environ["DEPTHGAUGE_NUM_THREADS"] == "7"
    monkeypatch.delenv("DEPTHGAUGE_NUM_THREADS")
    with ThreadPoolExecutor(64) as pool:
        assert set(dg.sweep(sweep_cells.threads, {}, seeds=6, executor=pool)["threads"].values.tolist()) == {1}
    assert "DEPTHGAUGE_NUM_THREADS" not in os.environ


def test_a_function_that_cannot_be_sent_is_an_error(processes: Executor) -> None:
    with pytest.raises(TypeError, match=r"cannot be sent to the executor's processes .* top level of a module"):
        dg.sweep(lambda seed: {"y": 0}, {}, seeds=3, executor=processes)
    assert dg.sweep(sweep_cells.threads, {}, executor=processes).sizes == {"seed": 1}  # the pool goes on


def test_a_killed_worker_loses_no_stored_cell(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=context) as executor,
        pytest.raises(RuntimeError, match=r"could not run the cell seed=\d .*BrokenProcessPool"),
    ):
        dg.sweep(sweep_cells.kills_its_process, {}, seeds=5, executor=executor, store=store)
    kept = dg.read_store(store)["y"].values
    np.testing.assert_array_equal(kept, [0, 1, 2, np.nan, np.nan])


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
