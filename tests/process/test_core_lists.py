"""Lists of a large table, and http processes under CPU pressure."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from skyserve_exec.paths import StateDir
from skyserve_exec.store.requests import RequestStore
from tests.server_under_test import Sampler, running_server
from tests.waiting import stays_so

ROWS = 200_000
USERS, NAMES, TARGETS = ("ann", "bob", "cy"), ("launch", "exec", "logs"), ("blue", "green", None)
LARGEST_ANSWER = 1_000_000


def test_UX02_a_table_of_200_000_requests_is_listed_in_pages(tmp_path: Path) -> None:
    state = tmp_path / "state"
    fill(state)
    with running_server(tmp_path) as server:
        first = page(server.http.get("/api/status", params={"limit": 1000}))
        second = page(server.http.get("/api/status", params={"limit": 1000, "cursor": first["next_cursor"]}))
        ids = [row["request_id"] for row in first["requests"] + second["requests"]]
        assert len(ids) == len(set(ids)) == 2000
        for name, value in {"user": "bob", "name": "exec", "cluster": "green", "status": "FAILED"}.items():
            rows = page(server.http.get("/api/status", params={name: value, "limit": 1000}))["requests"]
            assert len(rows) == 1000
            assert {row[name] for row in rows} == {value}
        none = page(server.http.get("/api/status", params={"user": "nobody"}))
        assert none == {"requests": [], "next_cursor": None}
        since = page(server.http.get("/api/status", params={"since": ROWS - 10, "limit": 1000}))
        assert len(since["requests"]) == 10
        assert server.run("noop")["status"] == "SUCCEEDED"


def test_HT03_busy_cpus_cost_no_http_process(tmp_path: Path) -> None:
    with running_server(tmp_path, "--http-processes", "2") as server, burning(16):
        before = {seen.pid for seen in server.tree() if "http" in seen.title}
        with Sampler(server) as sampler:
            stays_so(lambda: server.run("noop")["status"] == "SUCCEEDED", seconds=8, what="requests run")
        print(sampler)
        assert {seen.pid for seen in server.tree() if "http" in seen.title} == before
        assert server.health()["counters"].get("http_restarts", 0) == 0


def page(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    assert len(answer.content) <= LARGEST_ANSWER
    body: dict[str, Any] = answer.json()
    return body


def fill(state: Path) -> None:
    """Rows 0 … ROWS-1, created at second 0, 1, 2 …, all ended."""
    StateDir(state).make()
    RequestStore.open(StateDir(state).database).close()
    columns = (
        "request_id, name, payload, status, schedule_type, user, cluster, created_at, finished_at, "
        "result, restartable, attempts"
    )
    rows = (
        (
            str(uuid.UUID(int=number + 1)),
            NAMES[number % 3],
            "{}",
            "FAILED" if number % 7 == 0 else "SUCCEEDED",
            "short",
            USERS[number // 3 % 3],
            TARGETS[number // 9 % 3],
            float(number),
            float(number),
            '"' + "x" * 200 + '"',
            0,
            1,
        )
        for number in range(ROWS)
    )
    with closing(sqlite3.connect(StateDir(state).database)) as connection, connection:
        connection.executemany(f"INSERT INTO requests ({columns}) VALUES ({','.join('?' * 12)})", rows)


@contextmanager
def burning(count: int) -> Iterator[None]:
    """So many processes that want a whole CPU each."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=burn, args=(os.getpid(),), daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def burn(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(100_000))
