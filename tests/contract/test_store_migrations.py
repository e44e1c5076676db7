"""A file gets from an older schema to this one in one piece, whoever else opens it; a newer one is left alone."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from skyserve_exec.errors import SchemaTooNew, StoreBusy, StoreFailed
from skyserve_exec.store import ClusterRegistry, RequestReader, RequestStore
from skyserve_exec.store.database import connect
from skyserve_exec.store.migrations import REQUESTS, open_database
from tests.contract.backends import submission, submit
from tests.contract.store_processes import NEXT, other
from tests.waiting import pause, seeded_rounds, wait_until

ROWS = 20_000


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of this release with rows, which is old for the next one."""
    path = tmp_path / "requests.db"
    store = RequestStore.open(path)
    with store.transaction():
        for _ in range(ROWS):
            store.insert(submission())
    store.close()
    return path


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as any other program sees it."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        yield connection
    finally:
        connection.close()


def version_of(path: Path) -> int:
    """The schema of a file; asserts that all of it is of that version and nothing is lost."""
    with raw(path) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT COUNT(*) FROM requests").fetchone() == (ROWS,)
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        columns = {row[1] for row in connection.execute("PRAGMA table_info(requests)")}
    is_next = version == 2
    assert ({"takers", "requests_note"} <= names, "takers" in names, "note" in columns) == (is_next, is_next, is_next)
    return int(version)


def is_locked(path: Path) -> bool:
    with raw(path) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


def content(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}


def test_a_new_file_gets_the_newest_schema_and_a_second_open_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    RequestStore.open(path).close()
    before = content(tmp_path)
    RequestStore.open(path).close()
    assert content(tmp_path) == before
    with raw(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(REQUESTS),)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_commits_are_durable(tmp_path: Path) -> None:
    store = RequestStore.open(tmp_path / "requests.db")
    assert store.database.row("PRAGMA synchronous") == (2,), "FULL"
    store.close()


def test_an_old_file_keeps_its_rows(old: Path) -> None:
    assert version_of(old) == 1
    open_database(old, NEXT, busy_seconds=0.1).close()
    assert version_of(old) == 2


def test_a_failing_step_leaves_the_old_schema(old: Path) -> None:
    steps = (*REQUESTS, ("ALTER TABLE requests ADD COLUMN note TEXT", "INSERT INTO nowhere VALUES (1)"))
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        open_database(old, steps, busy_seconds=0.1)
    assert version_of(old) == 1


def test_ST04_killed_in_the_middle_of_a_migration(old: Path) -> None:
    wal = old.with_name("requests.db-wal")
    with other("open_without_end", old) as migrating:
        migrating.begin()
        # It writes more than its cache holds, so uncommitted pages of the new schema are on disk.
        wait_until(lambda: wal.exists() and wal.stat().st_size > 10_000_000, what="the migration writes")
        assert is_locked(old)
        migrating.kill()
    store = RequestStore.open(old)
    assert store.pending_counts() == {"short": ROWS}
    store.close()
    assert version_of(old) == 1
    open_database(old, NEXT, busy_seconds=0.1).close()
    assert version_of(old) == 2


def test_ST04_killed_at_any_moment_of_a_migration(old: Path) -> None:
    with raw(old) as connection:
        pages = connection.serialize()
    seen = []
    for chance in seeded_rounds(10):
        old.with_name("requests.db-wal").unlink(missing_ok=True)
        old.with_name("requests.db-shm").unlink(missing_ok=True)
        old.write_bytes(pages)
        with other("open_next", old) as migrating:
            migrating.begin()
            pause(chance.random() * 0.25)
            migrating.kill()
        seen.append(version_of(old))
        open_database(old, NEXT, busy_seconds=0.1).close()
        assert version_of(old) == 2
    assert set(seen) <= {1, 2}


def test_ST04_four_processes_open_an_old_file_at_once(old: Path) -> None:
    with ExitStack() as stack:
        four = [stack.enter_context(other("open_next", old)) for _ in range(4)]
        for process in four:
            process.begin()
        answers = [process.says() for process in four]
    assert [answer["version"] for answer in answers] == [2] * 4
    assert max(answer["seconds"] for answer in answers) < 5
    assert version_of(old) == 2
    with raw(old) as connection:
        assert connection.execute("SELECT COUNT(*) FROM takers").fetchone() == (1,), "one of them migrated"


def test_ST04_four_processes_make_a_new_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    with ExitStack() as stack:
        four = [stack.enter_context(other("open_new", path)) for _ in range(4)]
        for process in four:
            process.begin()
        ids = [process.says() for process in four]
    store = RequestStore.open(path)
    assert sorted(request_id for request_id, _ in store.active()) == sorted(ids)
    store.close()


OPENERS: dict[str, Callable[[Path], object]] = {
    "store": RequestStore.open,
    "reader": RequestReader,
    "registry": ClusterRegistry.open,
}


@pytest.mark.parametrize("opener", OPENERS)
def test_ST04_a_newer_schema_is_refused_and_not_touched(tmp_path: Path, opener: str) -> None:
    path = tmp_path / "state" / "requests.db"
    path.parent.mkdir()
    RequestStore.open(path).close()
    with raw(path) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("PRAGMA journal_mode = DELETE")
    before = content(path.parent)
    with pytest.raises(SchemaTooNew, match="has schema 99") as caught:
        OPENERS[opener](path)
    assert "newer release" in caught.value.hint
    assert content(path.parent) == before


def test_ST04_a_newer_schema_that_is_still_in_the_log_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    RequestStore.open(path).close()
    with raw(path) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA user_version = 99")
        before = {name: digest for name, digest in content(tmp_path).items() if not name.endswith("-shm")}
        with pytest.raises(SchemaTooNew):
            RequestStore.open(path)
        after = {name: digest for name, digest in content(tmp_path).items() if not name.endswith("-shm")}
        assert after == before


def test_a_reader_waits_for_the_writer_to_migrate(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    with pytest.raises(StoreFailed, match="unable to open"):
        RequestReader(path)
    connect(path, busy_seconds=0.1).close()
    with pytest.raises(StoreBusy, match="not up to date"):
        RequestReader(path)
    RequestStore.open(path).close()
    RequestReader(path).close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777], ids=oct)
def test_files_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = RequestStore.open(tmp_path / "requests.db")
        submit(store)
        modes = {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["requests.db", "requests.db-wal", "requests.db-shm"], "0o600")


def test_files_that_were_open_to_others_are_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    first = RequestStore.open(path)
    submit(first)
    for file in tmp_path.iterdir():
        file.chmod(0o644)
    second = RequestStore.open(path)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    submit(second)
    assert len(first.active()) == 2
    first.close()
    second.close()


def test_opening_again_in_one_process_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    first = RequestStore.open(path)
    with first.transaction():
        RequestStore.open(path).close()
        # The kernel drops all locks a process holds on a file when it closes any descriptor of it.
        with other("try_lock", path) as second:
            second.begin()
            assert second.says() == "locked"
    first.close()
