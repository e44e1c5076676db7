"""Many readers, other writers and a forgotten shell: nobody gets an error that waiting would have spared him."""

from __future__ import annotations

import logging
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pytest

from skyserve_exec.errors import StoreBusy
from skyserve_exec.store import ClusterRegistry, ClusterRow, ListQuery, RequestReader, RequestStore
from skyserve_exec.store.database import Database, connect
from skyserve_exec.store.migrations import REQUESTS, migrate
from tests.contract.backends import BOOT, claim, finish, submission, submit
from tests.contract.store_processes import Other, other
from tests.waiting import wait_until

WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|CREATE|ALTER|DROP|PRAGMA user_version =)", re.IGNORECASE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.db"


@pytest.fixture
def store(path: Path) -> Iterator[RequestStore]:
    store = RequestStore.open(path)
    yield store
    store.close()


def traced(database: Database) -> list[str]:
    """The statements that SQLite gets from now on."""
    seen: list[str] = []
    database.connection.set_trace_callback(seen.append)
    return seen


def assert_each_write_has_the_lock_first(seen: list[str]) -> None:
    """Deferred transactions that read and then write fail at once when another one commits in between."""
    assert any(WRITES.match(statement) for statement in seen)
    inside = False
    for statement in seen:
        if statement.startswith("BEGIN"):
            assert statement == "BEGIN IMMEDIATE"
            inside = True
        elif statement in ("COMMIT", "ROLLBACK"):
            inside = False
        else:
            assert inside or not WRITES.match(statement), statement


REQUEST_WRITES: dict[str, Callable[[RequestStore, str], object]] = {
    "insert": lambda store, _: store.insert(submission(idempotency_key="k", fingerprint="f")),
    "claim": lambda store, _: store.claim("short", ["s"], BOOT, 1.0),
    "settle": lambda store, running: store.settle(running, "FAILED", now=1.0),
    "requeue": lambda store, running: store.requeue(running, reason="again"),
    "hand_off": lambda store, running: store.hand_off(running, resume="{}", reason="tail"),
    "mark_cancel": lambda store, running: store.mark_cancel(running, now=1.0, reason="by ann"),
    "cancel_pending": lambda store, _: store.cancel_pending(store.active()[-1][0], now=1.0, error="{}"),
}


@pytest.mark.parametrize("verb", REQUEST_WRITES)
def test_ST02_every_write_of_requests_has_the_lock_first(store: RequestStore, verb: str) -> None:
    running, _ = submit(store), submit(store)
    claim(store)
    seen = traced(store.database)
    with store.transaction():
        assert REQUEST_WRITES[verb](store, running)
    assert_each_write_has_the_lock_first(seen)


CLUSTER_WRITES: dict[str, Callable[[ClusterRegistry], object]] = {
    "insert_or_get": lambda registry: registry.insert_or_get(cluster("new")),
    "set_status": lambda registry: registry.set_status("c", "UP", now=2.0, expected="INIT"),
    "update": lambda registry: registry.update("c", now=2.0, last_task="t"),
    "delete": lambda registry: registry.delete("c"),
}


def cluster(name: str) -> ClusterRow:
    return ClusterRow(name, "local", "INIT", "ann", "/clusters/" + name, "{}", "{}", 1.0, 1.0)


@pytest.mark.parametrize("verb", CLUSTER_WRITES)
def test_ST02_every_write_of_clusters_has_the_lock_first(tmp_path: Path, verb: str) -> None:
    registry = ClusterRegistry.open(tmp_path / "clusters.db")
    registry.insert_or_get(cluster("c"))
    seen = traced(registry.database)
    assert CLUSTER_WRITES[verb](registry)
    assert_each_write_has_the_lock_first(seen)
    registry.close()


def test_ST02_a_migration_has_the_lock_first(path: Path) -> None:
    database = connect(path, busy_seconds=0.1)
    seen = traced(database)
    migrate(database, REQUESTS)
    assert_each_write_has_the_lock_first(seen)
    database.close()


def claim_in_two_processes(path: Path, store: RequestStore, count: int) -> None:
    with store.transaction():
        ids = [store.insert(submission())[0] for _ in range(count)]
    with other("claim_all", path) as one, other("claim_all", path) as two:
        one.begin()
        two.begin()
        claimed = [one.says(), two.says()]
    assert Counter(claimed[0] + claimed[1]) == Counter(ids)
    assert store.active() == []


def test_ST02_two_processes_that_claim_get_each_request_once_and_no_error(path: Path, store: RequestStore) -> None:
    claim_in_two_processes(path, store, 1000)


@pytest.mark.soak
def test_ST02_two_processes_claim_ten_thousand(path: Path, store: RequestStore) -> None:
    claim_in_two_processes(path, store, 10_000)


def held_lock(stack: ExitStack, path: Path) -> Other:
    """A process that holds the write lock from now on."""
    shell = stack.enter_context(other("hold", path))
    shell.begin()
    assert shell.says() == "held"
    return shell


def test_a_lock_held_elsewhere_is_said_soon_and_nothing_is_written(path: Path, store: RequestStore) -> None:
    running = submit(store)
    claim(store)
    with ExitStack() as stack:
        shell = held_lock(stack, path)
        begun = time.monotonic()
        with pytest.raises(StoreBusy, match="another process holds the lock") as caught, store.transaction():
            pytest.fail("the body ran without the lock")
        assert 0.05 < time.monotonic() - begun < 1.0
        assert (caught.value.http_status, caught.value.retry_after) == (503, 1)
        assert store.active() == [(running, "RUNNING")], "reading goes on"
        reader = RequestReader(path)
        assert reader.get(running) is not None
        reader.close()
        shell.end()
    later = submit(store)
    assert store.active() == [(running, "RUNNING"), (later, "PENDING")]


def test_readers_hold_nothing_between_two_calls(path: Path, store: RequestStore) -> None:
    # The log is written again from its start only when no reader needs what is in it; otherwise it grows.
    request_id = submit(store)
    reader = RequestReader(path)
    row = reader.get(request_id)
    assert row is not None
    assert reader.list(ListQuery()).rows
    assert reader.latest() == request_id
    assert reader.resolve(request_id[:4])
    reader.waiting(row)
    assert store.database.row("PRAGMA wal_checkpoint(TRUNCATE)") == (0, 0, 0)
    reader.close()


def test_opening_waits_for_a_lock_only_when_it_has_to_write(path: Path, store: RequestStore) -> None:
    with ExitStack() as stack:
        held_lock(stack, path)
        begun = time.monotonic()
        RequestStore.open(path).close()
        assert time.monotonic() - begun < 1.0


class Alarm(BaseException):
    """Raised by a signal."""


def test_a_signal_is_not_held_up_by_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "clusters.db"
    registry = ClusterRegistry.open(path)
    registry.insert_or_get(cluster("c"))

    def ring(_signum: int, _frame: FrameType | None) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with ExitStack() as stack:
            held_lock(stack, path)
            begun = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Alarm):
                registry.update("c", now=2.0)
            assert time.monotonic() - begun < 2.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert registry.update("c", now=3.0) is not None
    registry.close()


def test_a_slow_transaction_is_logged_with_its_parts(store: RequestStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "skyserve_exec.store.database"):
        submit(store)
        assert caplog.messages == []
        begun = time.monotonic()
        with store.transaction():
            wait_until(lambda: time.monotonic() - begun > 0.12, what="time has passed")
    (message,) = caplog.messages
    assert re.fullmatch(
        r"slow transaction on requests.db: 1\d\d ms, \d+ of them to commit, after \d ms of waiting for the lock",
        message,
    )


def one_turn(store: RequestStore, deadline: float) -> float:
    """What serve does each turn: the whole turn again when the lock is taken. Its seconds."""
    begun = time.monotonic()
    while True:
        try:
            with store.transaction():
                store.insert(submission())
                for row in store.claim("short", ["a", "b"], BOOT, 1.0):
                    store.settle(row.request_id, "SUCCEEDED", now=2.0)
        except StoreBusy:
            assert time.monotonic() < deadline
        else:
            return time.monotonic() - begun


def test_ST01_one_writer_fifty_pollers_and_a_shell_that_holds_the_lock_for_3_s(path: Path, store: RequestStore) -> None:
    with ExitStack() as stack:
        pollers = stack.enter_context(other("poll", path, 50))
        pollers.begin()
        assert pollers.says() == "polling"
        seconds = sorted(one_turn(store, time.monotonic() + 5) for _ in range(400))
        assert seconds[int(len(seconds) * 0.99)] < 0.5
        shell = held_lock(stack, path)
        let_go = time.monotonic() + 3
        waited = one_turn_while_held(store, shell, let_go)
        assert 2.5 < waited < 5
        one_turn(store, time.monotonic() + 5)
        pollers.stdin.close()
        polled = pollers.says()
    assert polled["errors"] == []
    assert polled["least"] > 0, "every one of them could read"
    assert len(store.active()) == 0


def one_turn_while_held(store: RequestStore, shell: Other, let_go: float) -> float:
    """A turn that begins under the lock; the shell lets go at the time given."""
    begun = time.monotonic()
    while time.monotonic() < let_go:
        with pytest.raises(StoreBusy), store.transaction():
            pytest.fail("the body ran without the lock")
    shell.end()
    one_turn(store, time.monotonic() + 2)
    return time.monotonic() - begun


def update_in_many_processes(tmp_path: Path, processes: int, times: int, *, held_seconds: float = 0.0) -> list[float]:
    """The seconds of all updates, sorted; with a shell that holds the lock at first."""
    path = tmp_path / "clusters.db"
    registry = ClusterRegistry.open(path)
    for number in range(processes):
        registry.insert_or_get(cluster(f"c{number}"))
    with ExitStack() as stack:
        writers = [stack.enter_context(other("touch_cluster", path, f"c{n}", times)) for n in range(processes)]
        shell = held_lock(stack, path) if held_seconds else None
        for writer in writers:
            writer.begin()
        let_go = time.monotonic() + held_seconds
        wait_until(lambda: time.monotonic() > let_go, what="the shell has held the lock for its time")
        if shell:
            shell.end()
        seconds = [each for writer in writers for each in writer.says()]
    assert {row.last_task for row in registry.list()} == {f"task-{times - 1}"}, "no update is lost"
    assert len(seconds) == processes * times
    registry.close()
    return sorted(seconds)


def test_ST01_many_processes_update_the_clusters(tmp_path: Path) -> None:
    seconds = update_in_many_processes(tmp_path, 8, 50)
    assert seconds[int(len(seconds) * 0.99)] < 0.5


def test_ST01_many_processes_wait_for_a_shell(tmp_path: Path) -> None:
    seconds = update_in_many_processes(tmp_path, 4, 20, held_seconds=1.0)
    assert 0.9 < seconds[-1] < 5


@pytest.mark.soak
def test_ST01_a_hundred_processes_update_the_clusters(tmp_path: Path) -> None:
    seconds = update_in_many_processes(tmp_path, 100, 200)
    assert seconds[int(len(seconds) * 0.99)] < 0.5


@pytest.mark.soak
def test_ST01_a_hundred_processes_wait_3_s_for_a_shell(tmp_path: Path) -> None:
    assert update_in_many_processes(tmp_path, 100, 200, held_seconds=3.0)[-1] < 10


def test_settling_what_another_process_settled_is_refused(path: Path, store: RequestStore) -> None:
    request_id = submit(store)
    claim(store)
    second = RequestStore.open(path)
    assert finish(second, request_id, "FAILED") is not None
    assert finish(store, request_id) is None
    assert store.status_of(request_id) == "FAILED"
    second.close()
