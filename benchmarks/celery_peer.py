"""Celery on Redis with 4 prefork processes, Redis as shipped and with every write on disk before the answer.

Room: the process of one contestant's round. Submits and reads results in this process, as Celery's users do.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

from benchmarks.celery_tasks import BROKER, make_app
from benchmarks.contest import EXECUTOR, Contestant
from benchmarks.processes import Launched, free_port, fresh_place, wait_until
from benchmarks.scale import CALL_SECONDS, EXECUTORS


class CeleryRedis(Contestant):
    """Redis with its shipped settings: snapshots now and then, no append-only file."""

    redis_options: tuple[str, ...] = ()

    def durability(self) -> str:
        client = self.app.backend.client
        append = client.config_get("append*")
        snapshots = client.config_get("save")["save"]
        return (
            f"Redis appendonly={append['appendonly']} appendfsync={append['appendfsync']} save='{snapshots}';"
            " task_acks_late off: a running task is lost with its process"
        )

    def start(self) -> None:
        self.start_without_consumers()
        argv = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_tasks", "worker"]
        argv += ["--pool", "prefork", "--concurrency", str(EXECUTORS), "--loglevel", "WARNING"]
        self.launched.append(Launched(argv, self.place, {BROKER: self.broker}))

    def start_without_consumers(self) -> None:
        self.place = fresh_place()
        port = free_port()
        argv = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.place)]
        redis = Launched([*argv, *self.redis_options], self.place)
        self.launched.append(redis)
        wait_until(lambda: _answers(port), 10, "redis-server listens")
        redis.check_alive()
        self.broker = f"redis://127.0.0.1:{port}/0"
        self.app = make_app(self.broker)
        self.noop = self.app.tasks["noop"]

    def is_healthy(self) -> bool:
        return bool(self.app.control.ping(timeout=0.25, limit=1))

    def first_result(self, seconds: float) -> None:
        _read(self.noop.delay(), seconds)

    def call(self) -> None:
        _read(self.noop.delay(), CALL_SECONDS)

    def call_many(self, count: int) -> dict[str, float]:
        for result in [self.noop.delay() for _ in range(count)]:
            _read(result, CALL_SECONDS)
        return {}

    def submit(self) -> None:
        self.noop.delay()

    def roles(self) -> dict[str, list[int]]:
        redis, worker = self.launched
        root, *children = worker.tree()
        pids = [process.pid for process in children]
        return {"main": [root.pid], "redis": [redis.pid], EXECUTOR: pids}

    def stop(self) -> None:
        if self.launched:
            self.app.close()
        super().stop()


class CeleryRedisFsync(CeleryRedis):
    """Redis that answers a write only when it is on disk, as this project does."""

    redis_options = ("--appendonly", "yes", "--appendfsync", "always")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _read(result: Any, seconds: float) -> None:
    if result.get(timeout=seconds) != 1:
        raise ValueError("celery: a wrong result")
