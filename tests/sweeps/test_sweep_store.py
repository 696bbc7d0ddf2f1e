"""The store of a sweep: what it keeps through kills, full disks, other writers and other hands."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep_cells
import xarray

import depthgauge as dg
import depthgauge.sweeps.store as store_module

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
GRID = {"x": range(30)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def square(x: int, seed: int) -> dict[str, Any]:
    return {"y": x * x + seed, "ramp": ("i", np.arange(float(x)))}


def sweep_logged(store: Path | None, log: Path, run: int = 0, **arguments: Any) -> xarray.Dataset:
    """Sweep the function that leaves a line a call; one version for all runs."""
    function = functools.partial(sweep_cells.logged, str(log), run, 0)
    return dg.sweep(function, **({"grid": {"x": [0, 3]}, "version": "1", "store": store} | arguments))


def test_what_is_stored_is_read_and_not_run(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sweep_logged(store, log, 1, seeds=2)
    whole = sweep_logged(store, log, 2, grid={"x": np.array([3, 5, 0])}, seeds=[1, 2, 0])
    assert sorted(cell for run, cell in sweep_cells.calls(log) if run == 1) == [(0, 0), (0, 1), (3, 0), (3, 1)]
    assert sorted(cell for run, cell in sweep_cells.calls(log) if run == 2) == [
        (0, 2), (3, 2), (5, 0), (5, 1), (5, 2),
    ]  # fmt: skip
    assert sweep_cells.same(whole, sweep_logged(None, log, 3, grid={"x": np.array([3, 5, 0])}, seeds=[1, 2, 0]))
    part = sweep_logged(store, log, 4, grid={"x": [3]})
    assert part["y"].item() == np.sin(3)
    assert not any(run == 4 for run, _ in sweep_cells.calls(log))


def test_a_store_is_one_file_of_one_row_a_cell(store: Path, tmp_path: Path) -> None:
    dg.sweep(square, GRID, seeds=2, store=store)
    assert list(tmp_path.iterdir()) == [store]
    with contextlib.closing(sqlite3.connect(store)) as database:
        rows = database.execute("SELECT name, parameters, seed FROM cells").fetchall()
    assert sorted(rows) == sorted(("square", f'{{"x":{x}}}', seed) for x in range(30) for seed in range(2))


def test_failed_cells_are_tried_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(RuntimeWarning, match="the next run tries these cells again"):
        dg.sweep(sweep_cells.odd_seeds_fail, {"x": [0]}, seeds=2, store=store)
    assert "is odd" in dg.read_store(store)["cell_error"].sel(x=0, seed=1).item()
    monkeypatch.setenv("SWEEP_CELLS_HEALED", "1")
    healed = dg.sweep(sweep_cells.odd_seeds_fail, {"x": [0]}, seeds=2, store=store)
    assert healed["y"].values.tolist() == [[0, 1]]
    assert sweep_cells.same(dg.read_store(store), healed)
    assert healed.attrs["failed"] == 0


def test_results_that_do_not_fit_together_stay(store: Path) -> None:
    def changes(x: int, seed: int) -> dict[str, Any]:
        return {"y": np.ones(x)}

    for attempt in (1, 2):  # the second reads the two from the store
        with pytest.raises(ValueError, match=r"do not fit together(.|\n)*x=1, seed=0(.|\n)*x=2, seed=0"):
            dg.sweep(changes, {"x": [1, 2, 3]}, store=store)
        with contextlib.closing(sqlite3.connect(store)) as database:
            assert database.execute("SELECT count(*) FROM cells").fetchone() == (2,), attempt


# ---- kills

KILLED = """
import functools, sys
from concurrent.futures import ThreadPoolExecutor
import sweep_cells
import depthgauge as dg

store, log, run = sys.argv[1:]
function = functools.partial(sweep_cells.logged, log, int(run), 1.0)
executor = ThreadPoolExecutor(2) if int(run) % 2 else None
print("ready", flush=True)
dg.sweep(function, {"x": range(100)}, seeds=4, store=store, version="1", executor=executor)
"""


def committed(store: Path) -> set[tuple[int, int]]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        result = dg.read_store(store)
        seconds = result["cell_seconds"].stack(cell=("x", "seed"))
        return set(seconds.dropna("cell").indexes["cell"])
    return set()


def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    draw = random.Random(5)
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept: list[set[tuple[int, int]]] = []
    for run in range(10):
        arguments = [sys.executable, "-c", KILLED, str(store), str(log), str(run)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            # Some calls later, none for the first, at any moment between two of them.
            enough = len(sweep_cells.calls(log)) + (draw.randrange(25) if run else 0)
            while len(sweep_cells.calls(log)) < enough:
                time.sleep(0.001)
            time.sleep(draw.uniform(0.0, 0.008))
            child.kill()
        assert child.returncode == -signal.SIGKILL
        kept.append(committed(store))
    finished = sweep_logged(store, log, 10, grid={"x": range(100)}, seeds=4)
    undisturbed = sweep_logged(None, tmp_path / "other", grid={"x": range(100)}, seeds=4)
    assert sweep_cells.same(finished, undisturbed)
    assert sweep_cells.same(dg.read_store(store), undisturbed)

    calls = sweep_cells.calls(log)
    for run, cells in enumerate(kept):
        assert cells <= {cell for earlier, cell in calls if earlier <= run}
        assert not cells & {cell for later, cell in calls if later > run}
    assert [len(cells) for cells in kept] == sorted(len(cells) for cells in kept)
    assert 20 < len(kept[-1]) < 400


# ---- two writers

SLOW = """
import sys
import sweep_cells, functools
import depthgauge as dg

store, log = sys.argv[1:]
function = functools.partial(sweep_cells.logged, log, 1, 20.0)
print("ready", flush=True)
dg.sweep(function, {"x": range(25)}, store=store, version="1")
"""


def test_a_second_writer_is_told_and_a_reader_is_not_in_the_way(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen([sys.executable, "-c", SLOW, store, log], env={**os.environ, "PYTHONPATH": path}) as child:
        while len(sweep_cells.calls(log)) < 3:
            time.sleep(0.005)
        with pytest.raises(OSError, match=f"process {child.pid} on .* is writing to the store.*use another store"):
            sweep_logged(store, log, 2, grid={"x": range(25)})
        assert dg.read_store(store).attrs["cells"] == 25
    assert child.returncode == 0
    result = sweep_logged(store, log, 3, grid={"x": range(25)})
    assert result["y"].notnull().all()
    calls = sweep_cells.calls(log)
    assert sorted(cell for _, cell in calls) == [(x, 0) for x in range(25)]
    assert {run for run, _ in calls} == {1}


def test_a_second_writer_in_the_same_process_is_told(store: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def waits(seed: int) -> dict[str, Any]:
        begun.set()
        go_on.wait(10)
        return {"y": seed}

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(dg.sweep, waits, {}, store=store, version="1")
        begun.wait(10)
        try:
            with pytest.raises(OSError, match="this process is writing to the store"):
                dg.sweep(waits, {}, store=store.parent / "." / store.name, version="1")
        finally:
            go_on.set()
        assert first.result()["y"].item() == 0
    assert dg.sweep(waits, {}, store=store, version="1")["y"].item() == 0


# ---- broken files


def test_a_full_disk_is_told_and_loses_nothing(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    connect = store_module.Store._connect

    def small(self: store_module.Store, write: bool) -> sqlite3.Connection:
        database = connect(self, write)
        database.execute("PRAGMA max_page_count = 10")
        return database

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as executor:
        patch.setattr(store_module.Store, "_connect", small)
        for pool in (None, executor):
            with pytest.raises(OSError, match="the disk is full; what was committed before is kept") as caught:
                sweep_logged(store, log, 1, grid={"x": range(100)}, executor=pool)
            assert caught.value.filename == str(store)
    kept = committed(store)
    assert len(kept) > 5
    result = sweep_logged(store, log, 2, grid={"x": range(100)})
    assert sweep_cells.same(result, sweep_logged(None, tmp_path / "other", grid={"x": range(100)}))
    assert not kept & {cell for run, cell in sweep_cells.calls(log) if run == 2}


def refused(store: Path, error: type[Exception], message: str) -> None:
    """Both ways to open the store say the same, and leave the file as it is."""
    before = store.read_bytes()
    with pytest.raises(error, match=message):
        dg.sweep(square, GRID, store=store)
    with pytest.raises(error, match=message):
        dg.read_store(store)
    assert store.read_bytes() == before
    assert list(store.parent.iterdir()) == [store]


def test_a_store_of_another_schema_is_refused(store: Path) -> None:
    dg.sweep(square, GRID, store=store)
    with contextlib.closing(sqlite3.connect(store)) as database:
        database.execute("PRAGMA user_version = 99")
    refused(store, ValueError, "schema version 99; this depthgauge reads version 1")


def test_a_file_of_another_kind_is_refused(store: Path) -> None:
    store.write_text("depth,rank\n" * 500)
    refused(store, ValueError, "is not an SQLite file")


def test_the_database_of_another_program_is_refused(store: Path) -> None:
    with contextlib.closing(sqlite3.connect(store)) as database:
        database.execute("CREATE TABLE t (x)")
    refused(store, ValueError, "of another program")


def test_a_cut_off_store_is_refused(store: Path) -> None:
    dg.sweep(square, GRID, seeds=4, store=store)
    os.truncate(store, store.stat().st_size // 2)
    refused(store, ValueError, "is damaged: .*restore a copy")


@pytest.mark.parametrize("page", range(1, 6))
def test_overwritten_pages_are_found(page: int, store: Path) -> None:
    dg.sweep(square, GRID, seeds=4, store=store)
    with store.open("r+b") as file:
        file.seek(4096 * page)
        file.write(b"\xa5" * 4096)
    refused(store, ValueError, "is damaged")


def test_a_flipped_bit_in_a_result_is_found(store: Path) -> None:
    dg.sweep(square, {"x": [3]}, store=store)
    content = bytearray(store.read_bytes())
    content[content.index(np.float64(2.0).tobytes(), content.index(b"\x93NUMPY"))] ^= 1
    store.write_bytes(content)
    message = r'the result of {"x":3}, seed 0, has changed'
    with pytest.raises(ValueError, match=message):
        dg.sweep(square, {"x": [3]}, store=store)
    with pytest.raises(ValueError, match=message):
        dg.read_store(store)


def test_a_store_that_cannot_be_written_is_told(store: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be written, nor a lock beside it: No such file or directory"):
        dg.sweep(square, GRID, store=tmp_path / "nowhere" / "store.db")
    with pytest.raises(OSError, match="there is no store"):
        dg.read_store(store)
    result = dg.sweep(square, GRID, store=store)
    store.chmod(0o444)
    assert sweep_cells.same(dg.read_store(store), result)
    if not os.access(store, os.W_OK):  # not as root
        with pytest.raises(PermissionError, match="the store cannot be written"):
            dg.sweep(square, GRID, seeds=2, store=store)
    store.chmod(0o644)
    store.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        dg.read_store(store)
