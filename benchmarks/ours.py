"""This project as a contestant: no-ops over HTTP, results in the same round trip.

Room: the process of one contestant's round.
"""

from __future__ import annotations

import sqlite3
import time

from benchmarks.contest import EXECUTOR, Contestant
from benchmarks.load_client import Answer, Connection, Target, run_many
from benchmarks.ours_server import OurServer
from benchmarks.processes import DidNotHappen, wait_until
from benchmarks.scale import CALL_SECONDS, CONCURRENCY, EXECUTORS
from benchmarks.statistics_of_runs import summary_of

WAIT = {"Prefer": f"wait={CALL_SECONDS:g}"}
MANY_SUBMITS = 2000


class Ours(Contestant):
    """Every call is an HTTP request; the server is started with 4 short executors."""

    connection: Connection | None = None

    def durability(self) -> str:
        with sqlite3.connect(f"file:{self.server.state / 'requests.db'}?mode=ro", uri=True) as database:
            journal = database.execute("pragma journal_mode").fetchone()[0]
        database.close()
        return (
            f"SQLite journal_mode={journal} synchronous=FULL (set by serve): accepted and settled are answered after"
            " the commit; a running task whose process dies is settled or run again"
        )

    def start(self) -> None:
        self.server = OurServer()
        self.launched.append(self.server.launched)

    def is_healthy(self) -> bool:
        if not self.server.is_healthy():
            return False
        if self.connection is None:
            self._connect(self.server.located())
        return True

    def first_result(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.check_alive()
            answer = self.server.try_exchange("POST", "/noop", {}, WAIT)
            if answer is not None and is_result(answer):
                return
            if time.monotonic() > deadline:
                raise DidNotHappen(f"no result within {seconds:g} s; last answer: {answer}")
            time.sleep(0.002)

    def call(self) -> None:
        self._exchange(self.waiting, 200)

    def call_many(self, count: int) -> dict[str, float]:
        load = run_many(self.target, self.waiting, count, CONCURRENCY, is_result)
        return summary_of(f"latency_c{CONCURRENCY}", load.latencies)

    def start_without_consumers(self) -> None:
        """The short executors are there, but each is busy with a request that holds it."""
        self.start()
        self._connect(self.server.wait_healthy())
        held = [self._hold() for _ in range(EXECUTORS)]
        wait_until(lambda: all(map(self._is_running, held)), 10, "every short executor is held", 0.01)

    def submit(self) -> None:
        self._exchange(self.submitting, 202)

    def submit_many(self) -> dict[str, float]:
        load = run_many(self.target, self.submitting, MANY_SUBMITS, CONCURRENCY, lambda answer: answer.status == 202)
        name = f"enqueue_c{CONCURRENCY}"
        return {f"{name}_per_s": MANY_SUBMITS / load.seconds} | summary_of(name, load.latencies)

    def roles(self) -> dict[str, list[int]]:
        return {EXECUTOR: []} | self.server.roles()

    def stop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        super().stop()

    def _connect(self, target: Target) -> None:
        self.target, self.connection = target, Connection(target)
        self.waiting = target.request("POST", "/noop", {}, WAIT)
        self.submitting = target.request("POST", "/noop", {})

    def _exchange(self, request: bytes, status: int) -> Answer:
        if self.connection is None:
            raise RuntimeError("not connected")
        answer = self.connection.exchange(request)
        if answer.status != status:
            raise ValueError(f"answer {answer.status} instead of {status}: {answer.body[:300]!r}")
        return answer

    def _hold(self) -> str:
        answer = self._exchange(self.target.request("POST", "/hold", {"seconds": 120.0}), 202)
        return str(answer.json()["request_id"])

    def _is_running(self, request_id: str) -> bool:
        request = self.target.request("GET", f"/api/get?request_id={request_id}&timeout=0")
        return bool(self._exchange(request, 200).json()["status"] == "RUNNING")


def is_result(answer: Answer) -> bool:
    """A terminal record with the no-op's result."""
    return answer.status == 200 and b'"SUCCEEDED"' in answer.body and b'"result":1' in answer.body.replace(b" ", b"")
