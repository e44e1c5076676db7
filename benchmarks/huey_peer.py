"""Huey on SQLite with 4 processes, as shipped and with the polling turned up.

Room: the process of one contestant's round. Submits and reads results in this process, as huey's users do.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.contest import EXECUTOR, Contestant
from benchmarks.huey_tasks import DATABASE, make_huey, nothing
from benchmarks.processes import Launched, fresh_place
from benchmarks.scale import CALL_SECONDS, EXECUTORS

READ_PAUSE = 0.0005
SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


class HueySqlite(Contestant):
    """The consumer's defaults: it looks for work every 0.1 s, up to every 10 s when idle."""

    options: tuple[str, ...] = ()

    def durability(self) -> str:
        connection = self.huey.storage.conn
        level = connection.execute("pragma synchronous").fetchone()[0]
        journal = connection.execute("pragma journal_mode").fetchone()[0]
        polling = " ".join(self.options) or "defaults"
        return (
            f"SQLite journal_mode={journal} synchronous={SYNCHRONOUS[level]} (fsync option not given);"
            f" a running task is lost with its process; polling: {polling}"
        )

    def start(self) -> None:
        self.start_without_consumers()
        argv = [sys.executable, "-m", "huey.bin.huey_consumer", "benchmarks.huey_tasks.consumed"]
        argv += ["-w", str(EXECUTORS), "-k", "process", *self.options]
        self.launched.append(Launched(argv, self.place, {DATABASE: self.database}))

    def start_without_consumers(self) -> None:
        self.place = fresh_place()
        self.database = str(self.place / "huey.db")
        self.huey = make_huey(self.database)
        self.noop = self.huey.task(name="noop")(nothing)

    def is_healthy(self) -> bool:
        # There is no health call: healthy is when all its processes are there.
        return len(self.launched[-1].tree()) >= EXECUTORS + 2

    def first_result(self, seconds: float) -> None:
        self._read(self.noop(), seconds)

    def call(self) -> None:
        self._read(self.noop(), CALL_SECONDS)

    def call_many(self, count: int) -> dict[str, float]:
        for result in [self.noop() for _ in range(count)]:
            self._read(result, CALL_SECONDS)
        return {}

    def submit(self) -> None:
        self.noop()

    def roles(self) -> dict[str, list[int]]:
        root, *children = self.launched[-1].tree()
        # The scheduler is the first process the consumer starts, the others run tasks.
        children.sort(key=lambda process: process.pid)
        pids = [process.pid for process in children]
        return {"consumer": [root.pid], "scheduler": pids[:1], EXECUTOR: pids[1:]}

    def _read(self, result: Any, seconds: float) -> None:
        # Result.get(blocking=True) first looks after 50 ms and takes an exclusive lock for each look. Looking every
        # half millisecond without a lock is the best a user can do.
        deadline = time.monotonic() + seconds
        while not self.huey.storage.has_data_for_key(result.id):
            if time.monotonic() > deadline:
                raise TimeoutError(f"huey: no result within {seconds:g} s")
            time.sleep(READ_PAUSE)
        if result.get() != 1:
            raise ValueError("huey: a wrong result")


class HueySqliteTuned(HueySqlite):
    """Looks for work every 2 ms, always."""

    options = ("-d", "0.002", "-m", "0.002")
