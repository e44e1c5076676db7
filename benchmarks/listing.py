"""List calls on a table of 200,000 rows, of which 10,000 wait: time and bytes of each.

Room: the process of this measurement. Fills the table through SQL before the server starts.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from statistics import median

from benchmarks.load_client import Connection
from benchmarks.ours_server import OurServer
from benchmarks.processes import fresh_place
from benchmarks.scale import Scale
from skyserve_exec.paths import StateDir
from skyserve_exec.record import RequestRow
from skyserve_exec.store.requests import RequestStore

WAITING_SHARE = 20  # one row in so many waits
RARE = 50  # rows at the old end that a filter must search for
FIRST_ID = "00000000-0000-4000-8000-000000000001"


def measure(scale: Scale) -> dict[str, float]:
    """For each call its p50 and longest in ms and its bytes; and the slowest and largest of all."""
    place = fresh_place()
    fill(place / "state", scale.rows)
    server = OurServer(place)
    try:
        begin = time.perf_counter()
        target = server.wait_healthy()
        figures = {"start_to_healthy_ms": (time.perf_counter() - begin) * 1000}
        connection = Connection(target)
        p50s, longest, sizes = [], [], []
        for name, query in calls(scale.rows).items():
            request = target.request("GET", f"/api/status?{query}")
            times, size = _timed(connection, request, name, scale.list_calls)
            p50s.append(median(times) * 1000)
            longest.append(max(times) * 1000)
            sizes.append(size)
            figures |= {f"{name}_p50_ms": p50s[-1], f"{name}_max_ms": longest[-1], f"{name}_bytes": float(size)}
        connection.close()
    finally:
        server.launched.stop()
    return figures | {"slowest_p50_ms": max(p50s), "slowest_max_ms": max(longest), "largest_bytes": float(max(sizes))}


def calls(rows: int) -> dict[str, str]:
    """Queries by name, the ones that must look at every row among them."""
    middle = rows // 2
    return {
        "newest": "",
        "newest_1000": "limit=1000",
        "middle": f"limit=100&cursor={middle}",
        "failed": "status=FAILED",
        "cancelled_rare": "status=CANCELLED&limit=1000",
        "pending_1000": "status=PENDING&limit=1000",
        "running": "status=RUNNING",
        "name_rare": "name=rare&limit=1000",
        "name_unknown": "name=nobody",
        "user_unknown": "user=nobody",
        "cluster": "cluster=c7&limit=100",
        "cluster_unknown": "cluster=nowhere",
        "since_now": f"since={time.time() + 3600:.0f}",
        "long": "schedule_type=long&limit=100",
        "all_filters": "status=SUCCEEDED&name=noop&user=nobody&cluster=c7&schedule_type=short&since=1",
        "id": f"request_id={FIRST_ID}",
        "id_prefix": "request_id=abc",
        "id_prefix_1": "request_id=a&limit=1000",
    }


def fill(state: Path, rows: int) -> None:
    """A state directory whose table has so many rows, the newest of them waiting for executors that will be held."""
    place = StateDir(state)
    place.make()
    RequestStore.open(place.database).close()
    names = [field.name for field in fields(RequestRow)]
    columns, marks = ", ".join(f'"{name}"' for name in names), ", ".join("?" for _ in names)
    database = sqlite3.connect(place.database)
    with database:
        database.executemany(f"INSERT INTO requests ({columns}) VALUES ({marks})", map(attrgetter(*names), _rows(rows)))
    database.close()


def _rows(count: int) -> Iterator[RequestRow]:
    first_waiting = count - count // WAITING_SHARE
    begin = time.time() - count
    for seq in range(1, count + 1):
        waits = seq > first_waiting
        status = "PENDING" if waits else "FAILED" if seq % 10 == 0 else "SUCCEEDED"
        if seq <= RARE:
            status = "CANCELLED"
        yield RequestRow(
            seq=seq,
            request_id=FIRST_ID if seq == 1 else str(uuid.uuid4()),
            name="hold" if waits else "rare" if seq <= RARE else "noop",
            payload='{"seconds":120.0}' if waits else "{}",
            status=status,
            schedule_type="short" if waits or seq % 4 else "long",
            user="benchmark",
            cluster=None if waits else f"c{seq % 100}",
            lock_key=None,
            restartable=0,
            deadline=None,
            idempotency_key=None,
            fingerprint=None,
            created_at=begin + seq,
            started_at=None if waits else begin + seq,
            finished_at=None if waits else begin + seq + 0.5,
            attempts=0 if waits else 1,
            boot_id=None if waits else "0" * 32,
            slot=None if waits else "short-0",
            cancel_requested_at=None,
            reason=None,
            exit_code=None,
            peak_rss=None if waits else 30_000_000,
            result='"' + "x" * 200 + '"' if status == "SUCCEEDED" else None,
            error='{"type":"ValueError","message":"no","hint":""}' if status == "FAILED" else None,
            resume=None,
        )


def _timed(connection: Connection, request: bytes, name: str, calls: int) -> tuple[list[float], int]:
    times, size = [], 0
    for _ in range(calls):
        begin = time.perf_counter()
        answer = connection.exchange(request)
        times.append(time.perf_counter() - begin)
        size = len(answer.body)
        if answer.status != 200:
            raise ValueError(f"{name}: answer {answer.status}: {answer.body[:300]!r}")
    return times, size
