"""The databases that the store suite runs on; PostgreSQL joins it as one more row of BACKENDS."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from skyserve_exec.messages import Submit
from skyserve_exec.record import RequestRow
from skyserve_exec.store import RequestReader, RequestStore

BOOT = "boot-1"


class Backend(Protocol):
    """One empty table of requests, for one test."""

    def store(self) -> RequestStore:
        """A new connection that writes."""

    def reader(self) -> RequestReader:
        """A new connection that reads."""

    def close(self) -> None:
        """Ends all connections and removes the table."""


class SqliteBackend:
    """A file in the test's own directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "requests.db"
        self._open = ExitStack()

    def store(self) -> RequestStore:
        store = RequestStore.open(self.path)
        self._open.callback(store.close)
        return store

    def reader(self) -> RequestReader:
        reader = RequestReader(self.path)
        self._open.callback(reader.close)
        return reader

    def close(self) -> None:
        self._open.close()


BACKENDS: dict[str, Callable[[Path], Backend]] = {"sqlite": SqliteBackend}


def submission(**changes: Any) -> Submit:
    """A request as http submits it."""
    fields: dict[str, Any] = {
        "ticket": 1,
        "request_id": str(uuid.uuid4()),
        "name": "noop",
        "payload": '{"x": 1}',
        "schedule_type": "short",
        "user": "ann",
        "created_at": 1000.0,
    }
    return Submit(**(fields | changes))


def submit(store: RequestStore, **changes: Any) -> str:
    """One committed request; its id."""
    with store.transaction():
        request_id, duplicate = store.insert(submission(**changes))
    assert not duplicate
    return request_id


def claim(
    store: RequestStore, slots: int = 1, *, schedule_type: str = "short", now: float = 2000.0
) -> list[RequestRow]:
    """The rows that one committed claim takes."""
    names = [f"{schedule_type}-{number}" for number in range(slots)]
    with store.transaction():
        return store.claim(schedule_type, names, BOOT, now)


def run(store: RequestStore, **changes: Any) -> str:
    """A request that is RUNNING; its id. Nothing else may wait in its queue."""
    request_id = submit(store, **changes)
    (row,) = claim(store, schedule_type=changes.get("schedule_type", "short"))
    assert row.request_id == request_id
    return request_id


def finish(store: RequestStore, request_id: str, status: str = "SUCCEEDED", **facts: Any) -> RequestRow | None:
    """Settles a running request, committed."""
    with store.transaction():
        return store.settle(request_id, status, **({"now": 3000.0} | facts))
