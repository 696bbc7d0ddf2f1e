"""The store of a sweep: one SQLite file, one row a finished cell, committed as it arrives.

The journal is SQLite's rollback journal, not the write-ahead log: a kill or a power cut at any moment leaves what was
committed, the store is one file between runs, and network file systems without shared memory will do. One process
writes at a time, which holds a lock on a file beside the store, while others may read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import socket
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NamedTuple, Self

from depthgauge.sweeps.cells import Outcome

Path = str | os.PathLike[str]

SCHEMA = 1
# "dgsw" in the header of the file tells a store from other SQLite files.
APPLICATION = 0x64677377
BUSY_SECONDS = 60.0

_TABLES = (
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        version TEXT NOT NULL,
        started TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
        grid TEXT NOT NULL,
        environment TEXT NOT NULL
    )""",
    """
    CREATE TABLE cells (
        name TEXT NOT NULL,
        version TEXT NOT NULL,
        parameters TEXT NOT NULL,
        seed INTEGER NOT NULL,
        run INTEGER NOT NULL REFERENCES runs (id),
        seconds REAL NOT NULL,
        error TEXT NOT NULL,
        layout TEXT NOT NULL,
        data BLOB NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (name, version, parameters, seed)
    )""",
)


class Run(NamedTuple):
    """One call of sweep that wrote to the store."""

    id: int
    grid: str
    environment: str


class Row(NamedTuple):
    """One cell of the store."""

    parameters: str
    seed: int
    run: int
    outcome: Outcome

    @property
    def key(self) -> tuple[str, int]:
        """As that of a cell of a grid."""
        return self.parameters, self.seed


class Store:
    """The finished cells of sweeps, in a file.

    Parameters
    ----------
    path : path
        The file.
    write : bool
        Whether to hold the file as its one writer, and to make it where there is none.

    Raises
    ------
    ValueError
        If the file is no store, one of another schema, or damaged.
    OSError
        If the file cannot be opened or written, or another process writes to it.
    """

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path = pathlib.Path(path).absolute()
        if not write and not self.path.exists():
            raise FileNotFoundError(errno.ENOENT, "there is no store", str(self.path))
        self._lock = _WriterLock(self.path) if write else None
        try:
            with self._explained():
                self._database = self._connect(write)
                try:
                    self._check(write)
                except BaseException:
                    self._database.close()
                    raise
        except BaseException:
            self._release()
            raise

    def _connect(self, write: bool) -> sqlite3.Connection:
        # Reading takes the mode rw as well, to roll back what a killed writer left half done; SQLite falls back to
        # reading alone where the file is write-protected.
        uri = f"{self.path.as_uri()}?mode={'rwc' if write else 'rw'}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)

    def _check(self, write: bool) -> None:
        """Raise ValueError unless the file is a store of this schema; make it one if it is new and to be written."""
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (schema,) = self._database.execute("PRAGMA user_version").fetchone()
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, schema, tables) == (0, 0, 0):
            if not write:
                raise ValueError(f"{self} is empty; no sweep has written to it")
            with self._transaction():
                for table in _TABLES:
                    self._database.execute(table)
                self._database.execute(f"PRAGMA application_id = {APPLICATION}")
                self._database.execute(f"PRAGMA user_version = {SCHEMA}")
            return
        if application != APPLICATION:
            raise ValueError(f"{self} is an SQLite file of another program, not a store; choose another file")
        if schema != SCHEMA:
            raise ValueError(
                f"{self} has schema version {schema}; this depthgauge reads version {SCHEMA}. "
                "Read it with the depthgauge that wrote it, or choose another file"
            )
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise ValueError(_damaged(self, verdict.splitlines()[-1]))

    def __str__(self) -> str:
        return f"the store {self.path}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def names(self) -> list[tuple[str, str]]:
        """Return name and version of every function that has a run here."""
        with self._explained():
            return self._database.execute("SELECT DISTINCT name, version FROM runs ORDER BY id").fetchall()

    def runs(self, name: str, version: str) -> list[Run]:
        """Return the runs of a function, the first first."""
        query = "SELECT id, grid, environment FROM runs WHERE name = ? AND version = ? ORDER BY id"
        with self._explained():
            return [Run(*row) for row in self._database.execute(query, (name, version))]

    def begin(self, name: str, version: str, grid: str, environment: str) -> int:
        """Commit that a run begins; return its number."""
        statement = "INSERT INTO runs (name, version, grid, environment) VALUES (?, ?, ?, ?)"
        with self._explained():
            run = self._database.execute(statement, (name, version, grid, environment)).lastrowid
        assert run is not None
        return run

    def rows(self, name: str, version: str) -> Iterator[Row]:
        """Yield the cells of a function, failed ones too, by parameters and seed."""
        query = """
            SELECT parameters, seed, run, seconds, error, layout, data, checksum FROM cells
            WHERE name = ? AND version = ? ORDER BY parameters, seed"""
        with self._explained():
            for parameters, seed, run, seconds, error, layout, data, checksum in self._database.execute(
                query, (name, version)
            ):
                if _checksum(layout, data) != checksum:
                    raise ValueError(_damaged(self, f"the result of {parameters}, seed {seed}, has changed"))
                yield Row(parameters, seed, run, Outcome(seconds, layout, data, error))

    def put(self, run: int, name: str, version: str, parameters: str, seed: int, outcome: Outcome) -> None:
        """Commit one cell; a failed one gives way, a result stays."""
        statement = """
            INSERT INTO cells (name, version, parameters, seed, run, seconds, error, layout, data, checksum)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (name, version, parameters, seed) DO UPDATE SET
                run = excluded.run, seconds = excluded.seconds, error = excluded.error,
                layout = excluded.layout, data = excluded.data, checksum = excluded.checksum
            WHERE error <> ''"""
        row = (outcome.seconds, outcome.error, outcome.layout, outcome.data, _checksum(outcome.layout, outcome.data))
        with self._explained():
            self._database.execute(statement, (name, version, parameters, seed, run, *row))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has rolled back already
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the errors of SQLite into ones that say what happened to which file, and what to do."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kept = "what was committed before is kept; run the sweep again to go on from there"
            match code:
                case sqlite3.SQLITE_NOTADB:
                    raise ValueError(f"{self} is not an SQLite file; choose another file") from error
                case sqlite3.SQLITE_CORRUPT:
                    raise ValueError(_damaged(self, str(error))) from error
                case sqlite3.SQLITE_FULL:
                    raise OSError(errno.ENOSPC, f"the disk is full; {kept}", str(self.path)) from error
                case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                    raise PermissionError(errno.EACCES, "the store cannot be written", str(self.path)) from error
                case sqlite3.SQLITE_CANTOPEN:
                    raise OSError(errno.EIO, "the store cannot be opened", str(self.path)) from error
                case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                    message = f"the store has been locked by another program for {BUSY_SECONDS:g} s; {kept}"
                    raise OSError(errno.EBUSY, message, str(self.path)) from error
                case sqlite3.SQLITE_IOERR:
                    raise OSError(errno.EIO, f"reading or writing the store failed; {kept}", str(self.path)) from error
            raise


def _checksum(layout: str, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(layout.encode()))


def _damaged(store: Store, how: str) -> str:
    return (
        f"{store} is damaged: {how}. Nothing was written to it; restore a copy, save its rows with the command "
        "`.recover` of the sqlite3 program, or choose another file"
    )


class _WriterLock:
    """The right to write to a store, held by one sweep in one process; it ends with the process, however that ends.

    A POSIX record lock, since that is not inherited by forked workers, which may outlive a killed driver. It does not
    hold among the threads of a process, which a set of paths does.
    """

    _held: set[pathlib.Path] = set()  # noqa: RUF012
    _guard = threading.Lock()

    def __init__(self, store: pathlib.Path) -> None:
        store = store.resolve()
        self._store = store
        self._path = store.with_name(store.name + ".lock")
        with self._guard:
            if store in self._held:
                raise _in_use(store, "this process")
            # Before the file is opened: closing it would let go of the lock that another thread holds.
            self._held.add(store)
        try:
            self._file = self._locked()
        except BaseException:
            self._held.discard(store)
            raise

    def _locked(self) -> int:
        while True:
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                message = f"the store cannot be written, nor a lock beside it: {error.strerror}"
                raise OSError(error.errno, message, str(self._store)) from None
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The holder before may have removed the file between our opening and locking it.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file), os.stat(self._path)):
                        os.ftruncate(file, 0)
                        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
                        return file
            except (BlockingIOError, PermissionError):
                holder = os.read(file, 200).decode(errors="replace")
                os.close(file)
                raise _in_use(self._store, holder or "another process") from None
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def release(self) -> None:
        """Give the right back."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._file)
        self._held.discard(self._store)


def _in_use(store: pathlib.Path, holder: str) -> OSError:
    message = f"{holder} is writing to the store; wait for it, or use another store and join both by read_store"
    return OSError(errno.EBUSY, message, str(store))
