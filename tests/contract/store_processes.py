"""Processes that use a database beside the test: `python -m tests.contract.store_processes VERB PATH …`.

Each says "ready" when it has started, begins at the first line on its stdin, and answers one line of JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from skyserve_exec.errors import SkyserveError, StoreBusy
from skyserve_exec.store import ClusterRegistry, ListQuery, RequestReader, RequestStore
from skyserve_exec.store.database import connect
from skyserve_exec.store.migrations import REQUESTS, Step, open_database
from tests.contract.backends import claim, finish, submission, submit
from tests.server_under_test import REPOSITORY

# What a next release might do to the table: quick, and so slow that a test can kill it in the middle.
NEXT_STEP: Step = (
    "ALTER TABLE requests ADD COLUMN note TEXT",
    "UPDATE requests SET note = name",
    "CREATE TABLE takers (at REAL)",
    "INSERT INTO takers VALUES (julianday())",
    "CREATE INDEX requests_note ON requests (note)",
)
ENDLESS = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000000000)
INSERT INTO takers SELECT n FROM numbers
"""
NEXT: Sequence[Step] = (*REQUESTS, NEXT_STEP)
NEXT_WITHOUT_END: Sequence[Step] = (*REQUESTS, (*NEXT_STEP[:-1], ENDLESS, NEXT_STEP[-1]))


class Other:
    """A running process of this module, for its test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self._line() == "ready"

    @property
    def stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def begin(self) -> None:
        self.stdin.write("begin\n")
        self.stdin.flush()

    def says(self) -> Any:
        """Its next line."""
        return json.loads(self._line())

    def end(self) -> None:
        """Closes its stdin, which ends it, and waits for that."""
        self.stdin.close()
        assert self.process.wait(20) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def other(verb: str, path: Path, *more: object) -> Iterator[Other]:
    """A process of this module that is ready to begin; killed at the end if it is still there."""
    command = [sys.executable, "-m", __name__, verb, str(path), *map(str, more)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Other(process)
    finally:
        process.kill()
        process.wait(20)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def answer(body: object) -> None:
    print(json.dumps(body), flush=True)


def hold(path: Path) -> None:
    """Holds the write lock, as a forgotten shell does, until stdin closes."""
    database = connect(path, busy_seconds=5.0)
    with database.transaction():
        answer("held")
        sys.stdin.read()


def try_lock(path: Path) -> None:
    """Answers whether the write lock is free."""
    database = connect(path, busy_seconds=0.0)
    try:
        with database.transaction():
            answer("free")
    except StoreBusy:
        answer("locked")


def open_next(path: Path) -> None:
    """Opens the file as the next release."""
    begun = time.monotonic()
    database = open_database(path, NEXT, busy_seconds=0.1)
    answer({"seconds": time.monotonic() - begun, "version": database.row("PRAGMA user_version")[0]})


def open_without_end(path: Path) -> None:
    """Begins a migration that takes longer than any test."""
    open_database(path, NEXT_WITHOUT_END, busy_seconds=0.1)


def open_new(path: Path) -> None:
    """Opens the file and writes one row."""
    store = RequestStore.open(path, busy_seconds=5.0)
    answer(submit(store))


def claim_all(path: Path) -> None:
    """Claims and settles one by one until nothing waits."""
    store = RequestStore.open(path, busy_seconds=10.0)
    ids = []
    while rows := claim(store):
        ids.append(rows[0].request_id)
        assert finish(store, ids[-1]) is not None
    answer(ids)


def poll(path: Path, threads: str) -> None:
    """Reads in many threads until stdin closes."""
    stop, reads, errors = threading.Event(), [0] * int(threads), list[str]()

    def read(number: int) -> None:
        reader = RequestReader(path)
        try:
            while not stop.wait(0.02):
                latest = reader.latest()
                assert latest is None or reader.get(latest) is not None
                reader.list(ListQuery(limit=20))
                reads[number] += 1
        except (SkyserveError, AssertionError) as error:
            errors.append(repr(error))
        finally:
            reader.close()

    all_of_them = [threading.Thread(target=read, args=[number]) for number in range(len(reads))]
    for thread in all_of_them:
        thread.start()
    answer("polling")
    sys.stdin.read()
    stop.set()
    for thread in all_of_them:
        thread.join()
    answer({"least": min(reads), "errors": errors})


def submit_for_ever(path: Path) -> None:
    """Commits request after request and says each id afterwards."""
    store = RequestStore.open(path)
    while True:
        answer(submit(store))


def touch_cluster(path: Path, name: str, times: str) -> None:
    """Updates one cluster again and again; answers the seconds of each."""
    registry = ClusterRegistry.open(path)
    seconds = []
    for number in range(int(times)):
        begun = time.monotonic()
        assert registry.update(name, now=float(number), last_task=f"task-{number}") is not None
        seconds.append(time.monotonic() - begun)
    registry.close()
    answer(seconds)


def fill_under_limit(path: Path, limit: str) -> None:
    """Submits until a file may not grow any more, then on without the limit; answers what happened."""
    store = RequestStore.open(path)
    first = submit(store)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    error, lost = "", list[str]()
    try:
        with store.transaction():
            for _ in range(1000):
                lost.append(store.insert(submission(payload='"' + "x" * 10_000 + '"'))[0])
    except SkyserveError as caught:
        error = type(caught).__name__
    after = [store.status_of(first), *{store.status_of(request_id) for request_id in lost}]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    answer({"error": error, "after": after, "active": len(store.active()), "later": submit(store)})


VERBS: dict[str, Callable[..., None]] = {
    verb.__name__: verb
    for verb in (
        hold,
        try_lock,
        open_next,
        open_without_end,
        open_new,
        claim_all,
        poll,
        submit_for_ever,
        touch_cluster,
        fill_under_limit,
    )
}

if __name__ == "__main__":
    print("ready", flush=True)
    if sys.stdin.readline():
        VERBS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
