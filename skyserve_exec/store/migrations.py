"""The schemas of the databases, as numbered steps, and how a file gets to the newest one.

`PRAGMA user_version` is the number of steps a file has seen. Each step is one immediate transaction that includes the
new number: a process killed in it leaves the old schema, and of several that open a file one migrates, the others wait.

Room: the store, while a database is opened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from skyserve_exec.errors import SchemaTooNew, StoreBusy
from skyserve_exec.store.database import Database, connect, connect_read_only

Step = Sequence[str]
Made = TypeVar("Made")
OPEN_SECONDS = 5.0  # how long opening may wait for another process that migrates
RETRY_SECONDS = 0.005

REQUESTS: Sequence[Step] = (
    (
        """
        CREATE TABLE requests (
            seq                 INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused, so it is the order and the cursor
            request_id          TEXT NOT NULL,
            name                TEXT NOT NULL,
            status              TEXT NOT NULL CHECK (status IN (
                -- (submit) -> PENDING
                -- PENDING  -> RUNNING | CANCELLED
                -- RUNNING  -> SUCCEEDED | FAILED | CANCELLED | PENDING
                'PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
            schedule_type       TEXT NOT NULL CHECK (schedule_type IN ('long', 'short')),
            "user"              TEXT NOT NULL,
            cluster             TEXT,
            lock_key            TEXT CHECK (lock_key <> ''),
            restartable         INTEGER NOT NULL,
            deadline            REAL,
            idempotency_key     TEXT,
            fingerprint         TEXT,
            created_at          REAL NOT NULL,
            started_at          REAL,
            finished_at         REAL,
            attempts            INTEGER NOT NULL,
            boot_id             TEXT,
            slot                TEXT,
            cancel_requested_at REAL,
            reason              TEXT,
            exit_code           INTEGER,
            peak_rss            INTEGER,
            payload             TEXT NOT NULL,
            result              TEXT,
            error               TEXT,
            resume              TEXT
        )
        """,
        "CREATE UNIQUE INDEX requests_id ON requests (request_id)",
        """
        CREATE UNIQUE INDEX requests_key ON requests ("user", idempotency_key) WHERE idempotency_key IS NOT NULL
        """,
        # The queues. Requests without a lock key stand together (NULL), in order; those with one stand by key.
        "CREATE INDEX requests_pending ON requests (schedule_type, lock_key, seq) WHERE status = 'PENDING'",
        "CREATE INDEX requests_running ON requests (seq) WHERE status = 'RUNNING'",
        """
        CREATE INDEX requests_locks ON requests (lock_key, status, seq)
        WHERE lock_key IS NOT NULL AND status IN ('PENDING', 'RUNNING')
        """,
        # All that lists filter by, in list order: one index for every combination, scanned without touching the rows,
        # and always written at its end, where an index per filter would dirty one more page each.
        'CREATE INDEX requests_list ON requests (seq, status, name, "user", cluster, schedule_type, created_at)',
    ),
)

CLUSTERS: Sequence[Step] = (
    (
        """
        CREATE TABLE clusters (
            name       TEXT PRIMARY KEY,
            infra      TEXT NOT NULL,
            status     TEXT NOT NULL CHECK (status IN (
                -- (launch) -> INIT -> UP -> STOPPED -> INIT; any -> (down)
                'INIT', 'UP', 'STOPPED')),
            "user"     TEXT NOT NULL,
            directory  TEXT NOT NULL,
            resources  TEXT NOT NULL,
            handle     TEXT NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            last_task  TEXT
        )
        """,
    ),
)


def open_database(path: Path, steps: Sequence[Step], *, busy_seconds: float) -> Database:
    """Opens the file, makes it if it is not there, and brings its schema up to date.

    Raises:
        SchemaTooNew: a newer release wrote it; it is not touched.
        StoreBusy: another process migrates for longer than 5 s.
        DiskFull, StoreFailed: the file cannot be made or written.
    """
    if os.access(path, os.F_OK):
        _refuse_newer_unopened(path, steps)
    database = _retried(partial(connect, path, busy_seconds=busy_seconds))
    try:
        migrate(database, steps)
    except BaseException:
        database.close()
        raise
    return database


def migrate(database: Database, steps: Sequence[Step]) -> None:
    """Takes the steps that the database has not seen; safe in several processes at once.

    Raises:
        SchemaTooNew: a newer release wrote it.
        StoreBusy: another process migrates for longer than 5 s.
    """
    for number in range(_version(database, steps), len(steps)):
        _retried(partial(_step, database, steps, number))


def open_reader(path: Path, steps: Sequence[Step]) -> Database:
    """Opens the file for reading only.

    Raises:
        SchemaTooNew: a newer release wrote it.
        StoreBusy: it has not been brought up to date yet.
        StoreFailed: it is not there or damaged.
    """
    database = connect_read_only(path)
    try:
        if _version(database, steps) < len(steps):
            raise StoreBusy(f"{path}: its schema is not up to date yet", hint="The server does that when it starts.")
    except BaseException:
        database.close()
        raise
    return database


def _step(database: Database, steps: Sequence[Step], number: int) -> None:
    with database.transaction():
        if _version(database, steps) != number:
            return  # another process was first
        for sql in steps[number]:
            database.execute(sql)
        database.execute(f"PRAGMA user_version = {number + 1}")


def _version(database: Database, steps: Sequence[Step]) -> int:
    version = int(database.row("PRAGMA user_version")[0])
    if version > len(steps):
        raise SchemaTooNew(f"{database.path}: has schema {version}, this release knows schemas up to {len(steps)}")
    return version


def _refuse_newer_unopened(path: Path, steps: Sequence[Step]) -> None:
    # A connection that may write would already touch the file: it sets the journal mode and, as the last one to leave,
    # copies what is left in the log.
    database = connect_read_only(path)
    try:
        _version(database, steps)
    finally:
        database.close()


def _retried(action: Callable[[], Made]) -> Made:
    """Repeats what fails on a lock: SQLite itself does not wait for the lock in which the journal mode is changed."""
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return action()
        except StoreBusy:
            if time.monotonic() >= deadline:
                raise
            time.sleep(RETRY_SECONDS)
