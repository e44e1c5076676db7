"""How serve is doing, told to http on change (at most ten times a second) and at least once a second.

Room: serve.
"""

from __future__ import annotations

from typing import Any

from skyserve_exec.messages import Snapshot
from skyserve_exec.pool.crew import Crew
from skyserve_exec.pool.desk import Desk
from skyserve_exec.pool.executors import ExecutorPool, ExecutorState
from skyserve_exec.pool.http_children import HttpChildren

AT_LEAST_EVERY, AT_MOST_EVERY = 1.0, 0.1


class Snapshots:
    """Knows when the next one is due. Times are monotonic seconds."""

    def __init__(self, crew: Crew, https: HttpChildren, desk: Desk) -> None:
        self._crew = crew
        self._https = https
        self._desk = desk
        self._last_key: object = None
        self._last_at = 0.0

    @property
    def due_at(self) -> float:
        changed = self._key() != self._last_key
        return self._last_at + (AT_MOST_EVERY if changed else AT_LEAST_EVERY)

    def is_due(self, now: float) -> bool:
        if now - self._last_at < AT_MOST_EVERY:
            return False
        return now - self._last_at >= AT_LEAST_EVERY or self._key() != self._last_key

    def take(self, now: float, wall: float, problem: str, *, draining: bool) -> Snapshot:
        self._last_at, self._last_key = now, self._key()
        return Snapshot(
            at=wall,
            draining=draining,
            pools={kind.value: _pool(pool) for kind, pool in self._crew.pools.items()},
            pending={kind.value: number for kind, number in self._desk.pending.items()},
            tails=len(self._crew.tails),
            counters=dict(self._desk.counters) | {"http_restarts": self._https.restarts},
            problem=problem,
        )

    def _key(self) -> object:
        states = tuple(executor.state for executor in self._crew.living())
        return states, tuple(self._desk.pending.values()), len(self._crew.tails), len(self._desk.running)


def _pool(pool: ExecutorPool) -> dict[str, Any]:
    return {
        "size": pool.size,
        **{state.value: pool.count(state) for state in ExecutorState},
        "lost": pool.lost,
        "replaced": pool.replaced,
        "running": [item.request_id for item in pool.living() if item.request_id is not None],
    }
