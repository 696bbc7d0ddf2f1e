"""Where the cells of a sweep run: here one after the other, or on an executor, which stays a little ahead."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any

from depthgauge._common import arguments
from depthgauge.sweeps.cells import Outcome, run_cell
from depthgauge.sweeps.grid import Cell

# Enough that no worker waits for the driver, few enough that a large grid does not fill the executor's queue.
IN_FLIGHT_A_WORKER = 3

Function = Callable[..., Mapping[str, Any]]
Keep = Callable[[Cell, Outcome], None]


def checked_executor(executor: object) -> Executor | None:
    """Return the executor if it is one."""
    if executor is None or isinstance(executor, Executor):
        return executor
    hint = ". A Dask client has one: client.get_executor()" if hasattr(executor, "get_executor") else ""
    raise TypeError(f"executor must be a concurrent.futures.Executor; got {executor!r}{hint}")


def outcomes(
    function: Function, cells: Sequence[Cell], executor: Executor | None, keep: Keep
) -> Generator[tuple[Cell, Outcome]]:
    """Run the cells; keep the outcome of each as it arrives, and yield it then.

    Whatever ends this before its time, cells that wait are cancelled, and those that have finished are kept.
    """
    if executor is None:
        for cell in cells:
            outcome = run_cell(function, cell.point, cell.seed, arguments.available_threads())
            keep(cell, outcome)
            yield cell, outcome
        return
    workers = _pool_size(executor)
    threads = workers and max(1, arguments.available_threads() // workers)
    waiting = iter(cells)
    flying: dict[Future[Outcome], Cell] = {}
    try:
        while True:
            free = IN_FLIGHT_A_WORKER * (workers or _cluster_size(executor)) - len(flying)
            for cell in itertools.islice(waiting, max(0, free)):
                flying[_submitted(executor, function, cell, threads)] = cell
            if not flying:
                return
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                cell = flying.pop(future)
                outcome = _outcome(future, function, cell)
                keep(cell, outcome)
                yield cell, outcome
    except OSError:  # the store takes no more
        _cancel(flying)
        raise
    except BaseException:
        for future, cell in _cancel(flying):
            if future.exception() is None:
                keep(cell, future.result())
        raise


def _cancel(flying: Mapping[Future[Outcome], Cell]) -> list[tuple[Future[Outcome], Cell]]:
    """Cancel all futures that can be; return those that have finished."""
    return [(future, cell) for future, cell in flying.items() if not future.cancel() and future.done()]


def _submitted(executor: Executor, function: Function, cell: Cell, threads: int | None) -> Future[Outcome]:
    try:
        return executor.submit(run_cell, function, cell.point, cell.seed, threads)
    except Exception as error:
        raise _explained(error, function, cell) from error


def _outcome(future: Future[Outcome], function: Function, cell: Cell) -> Outcome:
    """Return what came of a cell; an error here is the executor's, for the function's own are outcomes."""
    try:
        return future.result()
    except Exception as error:
        raise _explained(error, function, cell) from error


def _explained(error: Exception, function: Function, cell: Cell) -> Exception:
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, pickle.PicklingError | AttributeError | TypeError) and not _picklable(function):
        return TypeError(
            f"the function cannot be sent to the executor's processes ({what}); "
            "define it at the top level of a module that they can import"
        )
    return RuntimeError(
        f"the executor could not run the cell {cell} ({what}). A worker may have been killed, for want of memory say, "
        "or cannot import the function's module; what was stored before is kept"
    )


def _picklable(function: Function) -> bool:
    try:
        pickle.dumps(function)
    except Exception:
        return False
    return True


def _pool_size(executor: Executor) -> int | None:
    """Return the number of workers where the executor tells it, as pools and mpi4py's do."""
    workers = getattr(executor, "_max_workers", None)
    return workers if isinstance(workers, int) and workers > 0 else None


def _cluster_size(executor: Executor) -> int:
    """Return how many cells run at a time on an executor that is no pool; of Dask's, which may grow, as of now."""
    client = getattr(executor, "_client", None)
    if client is None:
        return arguments.available_threads()
    return max(1, int(sum(client.nthreads().values())))
