"""Where the cells of a sweep run: threads, processes, Dask and MPI, each with its share of threads."""

from __future__ import annotations

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

import depthgauge as dg

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def serial() -> xarray.Dataset:
    return dg.sweep(sweep_cells.transport, sweep_cells.TRANSPORT, seeds=3)


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    # Not forked: pytest's process has threads.
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def test_threads_give_the_same_bits(serial: xarray.Dataset) -> None:
    with ThreadPoolExecutor(2) as executor:
        result = dg.sweep(sweep_cells.transport, sweep_cells.TRANSPORT, seeds=3, executor=executor)
    assert sweep_cells.same(result, serial)


def test_processes_give_the_same_bits(serial: xarray.Dataset, processes: Executor) -> None:
    result = dg.sweep(sweep_cells.transport, sweep_cells.TRANSPORT, seeds=3, executor=processes)
    assert sweep_cells.same(result, serial)


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
    assert sweep_cells.same(result, serial)
    assert set(share.values.tolist()) == {1}
    assert sent["y"].values.tolist() == [0, 1, 2]


MPI = """
import pickle, sys
import sweep_cells
import depthgauge as dg
from mpi4py.futures import MPIPoolExecutor

pytestmark = pytest.mark.slow

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
    assert sweep_cells.same(result, serial)


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


def shares(**sweep: Any) -> set[int]:
    return set(dg.sweep(sweep_cells.threads, {}, seeds=6, **sweep)["threads"].values.tolist())


def test_workers_have_their_share_of_threads(monkeypatch: pytest.MonkeyPatch, processes: Executor) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    with ThreadPoolExecutor(2) as pool:
        for executor, share in ((None, 7), (pool, 3), (processes, 3)):
            assert shares(executor=executor) == {share}
        assert pool.submit(sweep_cells.threads, 0).result()["threads"] == 7  # the share ends with the cell
    monkeypatch.delenv("DEPTHGAUGE_NUM_THREADS")
    with ThreadPoolExecutor(64) as pool:
        assert shares(executor=pool) == {1}


def test_the_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    with ThreadPoolExecutor(2) as pool:
        for executor in (None, pool):
            asked = dg.sweep(sweep_cells.threads, {}, seeds=6, executor=executor)["asked"]
            assert set(asked.values.tolist()) == {"7"}


def test_two_sweeps_at_a_time_have_each_its_own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "12")
    meet = threading.Barrier(2, timeout=10)

    def cell(seed: int) -> dict[str, Any]:
        meet.wait()  # one of each sweep
        return {"threads": dg.build_config()["threads"]}

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as driver:
        monkeypatch.setattr(other, "_max_workers", 4)  # as it says; it starts no more than one thread here
        later = driver.submit(dg.sweep, cell, {}, seeds=[0], executor=one)
        assert dg.sweep(cell, {}, seeds=[0], executor=other)["threads"].item() == 3
        assert later.result()["threads"].item() == 12


def test_a_workers_own_limit_holds_below_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "8")
    context = multiprocessing.get_context("spawn")
    start = (sweep_cells.allow_threads, (2,))
    with ProcessPoolExecutor(1, context, *start) as executor:
        assert shares(executor=executor) == {2}


class OfNoSize(Executor):
    """A pool that does not tell how many workers it has."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.pool.submit(fn, *args, **kwargs)


def test_without_a_number_of_workers_a_share_is_what_was_set_or_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.delenv("DEPTHGAUGE_NUM_THREADS", raising=False)
        assert shares(executor=OfNoSize(pool)) == {1}
        monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "5")
        assert shares(executor=OfNoSize(pool)) == {5}


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
