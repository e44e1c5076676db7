"""One connection to one SQLite file: how it is opened, how it is written, what its failures are called.

Room: serve, http and executors. Blocks on the disk and, at most as long as asked, on the lock of another process.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from skyserve_exec.errors import DiskFull, SkyserveError, StoreBusy, StoreFailed

SLOW_SECONDS = 0.1  # a transaction that keeps the lock for longer is logged
OLDEST_SQLITE = (3, 35, 0)

# One call into SQLite waits for a lock at most so long. In between Python delivers signals, so that a cancel is not
# held up by a lock; and the pauses between SQLite's looks at the lock begin short again: they grow to 100 ms, in which
# busy processes take the lock again and again while a patient one starves.
LOCK_STEP_SECONDS = 0.02

# A checkpoint copies the log's pages into the database and waits for the disk, inside the COMMIT that reaches this many
# pages (8 MB). A page that was written many times is copied once, so a longer log means less work in all, but a longer
# stall each time (5 to 10 ms here). The log is then written again from its start, which is faster than to grow it: a
# commit that grows a file waits for the file system's journal too. So the limit to which a log is cut back that outgrew
# its size (a reader held an old snapshot, or a disk was full) lies above what a checkpoint normally finds.
CHECKPOINT_PAGES = 2000
LOG_BYTES = 16 * 1024 * 1024
CACHE_KIB = 8192
FILE_FAULTS = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
    }
)

log = logging.getLogger(__name__)


class Database:
    """A connection in autocommit mode. Not thread-safe: one thread at a time."""

    __slots__ = ("_busy_seconds", "connection", "path")

    def __init__(self, connection: sqlite3.Connection, path: Path, busy_seconds: float) -> None:
        self.connection = connection
        self.path = path
        self._busy_seconds = busy_seconds

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE, then COMMIT, or ROLLBACK when the body raises. Durable when it returns.

        Raises:
            StoreBusy: another process held the lock all the time; nothing was written.
            DiskFull: nothing was written.
            StoreFailed: the disk or the file is damaged; nothing was written.
        """
        if self.is_open():
            raise RuntimeError("transactions do not nest")
        begun = time.monotonic()
        try:
            # Immediate: a transaction that reads first and asks for the lock later gets "database is locked" at once
            # when somebody else committed in between, whatever the timeout.
            self._begin(begun + self._busy_seconds)
            locked = time.monotonic()
            yield
            worked = time.monotonic()
            if not self.is_open():
                raise StoreFailed(f"{self.path}: the transaction was rolled back because a statement of it failed")
            self.execute("COMMIT")
        except BaseException:
            if self.is_open():
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")
            raise
        ended = time.monotonic()
        if ended - locked > SLOW_SECONDS:
            log.warning(
                "slow transaction on %s: %.0f ms, %.0f of them to commit, after %.0f ms of waiting for the lock",
                self.path.name,
                (ended - locked) * 1000,
                (ended - worked) * 1000,
                (locked - begun) * 1000,
            )

    def is_open(self) -> bool:
        """Whether a transaction is open: SQLite itself ends one after some failures."""
        return self.connection.in_transaction

    def write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Runs a statement of the open transaction; returns how many rows it changed."""
        if not self.is_open():
            raise RuntimeError("writes need a transaction")
        return self.execute(sql, values).rowcount

    def row(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first row as a tuple, or None."""
        try:
            return self.connection.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            raise_named(error, self.path)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows as tuples."""
        try:
            return self.connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise_named(error, self.path)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Runs one statement under the errors of this module."""
        try:
            return self.connection.execute(sql, values)
        except sqlite3.Error as error:
            raise_named(error, self.path)

    def close(self) -> None:
        self.connection.close()

    def _begin(self, deadline: float) -> None:
        while True:
            try:
                self.execute("BEGIN IMMEDIATE")
            except StoreBusy:
                if time.monotonic() >= deadline:
                    raise
            else:
                return


def connect(path: Path, *, busy_seconds: float) -> Database:
    """A connection that may write: WAL, durable commits. Makes the file, readable by its owner only."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreFailed(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed")
    _make_private(path)
    database = _connect(path.absolute().as_uri() + "?mode=rw", path, busy_seconds)
    try:
        _set_up(database)
    except BaseException:
        database.close()
        raise
    return database


def connect_read_only(path: Path, *, busy_seconds: float = 5.0) -> Database:
    """A connection that cannot write. The file must be there."""
    return _connect(path.absolute().as_uri() + "?mode=ro", path, busy_seconds)


def raise_named(error: sqlite3.Error, path: Path) -> NoReturn:
    """Raises the error of this project for one of SQLite's; faults of this program stay what they are."""
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}:
        raise StoreBusy(f"{path}: another process holds the lock") from error
    if code == sqlite3.SQLITE_FULL or (code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN} and _is_full(path)):
        raise DiskFull(f"{path}: the disk is full") from error
    if extended == sqlite3.SQLITE_IOERR_WRITE:
        raise DiskFull(f"{path}: over a quota or a file size limit, or the disk fails") from error
    if code in FILE_FAULTS:
        raise StoreFailed(f"{path}: {error}") from error
    raise error


def _connect(uri: str, path: Path, busy_seconds: float) -> Database:
    try:
        connection = sqlite3.connect(
            uri,
            uri=True,
            timeout=min(busy_seconds, LOCK_STEP_SECONDS) if "mode=rw" in uri else busy_seconds,
            isolation_level=None,
            cached_statements=64,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise_named(error, path)
    return Database(connection, path, busy_seconds)


def _set_up(database: Database) -> None:
    # Readers never wait for the writer, and a commit is one append.
    mode = database.row("PRAGMA journal_mode=WAL")[0]
    if mode != "wal":
        raise StoreFailed(f"{database.path}: its file system cannot hold a shared database (journal mode {mode})")
    # A commit returns when the disk has it: what was acknowledged survives a power cut.
    database.execute("PRAGMA synchronous=FULL")
    database.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    database.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
    database.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    database.execute("PRAGMA temp_store=MEMORY")


def _make_private(path: Path) -> None:
    """Makes the file 0600 whatever the umask; SQLite gives -wal and -shm the mode of the database."""
    try:
        with suppress(FileExistsError):
            # Exclusive: to close a descriptor of a file drops all POSIX locks this process holds on it, also those of
            # another SQLite connection. A file that this call made cannot be open anywhere yet.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            with suppress(FileNotFoundError):
                if file.stat().st_mode & 0o777 != 0o600:
                    file.chmod(0o600)
    except OSError as error:
        raise _file_error(path, error) from error


def _file_error(path: Path, error: OSError) -> SkyserveError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFull(f"{path}: {error.strerror}")
    return StoreFailed(f"{path}: cannot be made: {error.strerror}")


def _is_full(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < 64 * 1024 or (disk.f_files > 0 and disk.f_favail == 0)
