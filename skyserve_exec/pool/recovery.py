"""What a clean stop would have done, done at the next start: ends leftovers of the former life, settles its rows.

Does everything again each time it runs, so being killed in the middle of it costs nothing.

Room: serve, before the first dispatch.
"""

from __future__ import annotations

import json
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

import orjson

from skyserve_exec.pool.verdict import cancelled_error, of_former_life
from skyserve_exec.states import Status
from skyserve_exec.store.requests import RequestStore
from skyserve_exec.system import proctree

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found and done."""

    ended_processes: int
    again: int
    failed: int


def recover(store: RequestStore, server_json: Path, max_attempts: int, wall: float) -> Recovered:
    """Ends what a former life left running, by its run marker, and settles every RUNNING row."""
    ended = _end_leftovers(server_json)
    again = failed = 0
    rows = store.running()
    if rows:
        with store.transaction():
            for row in rows:
                verdict = of_former_life(bool(row.restartable), row.attempts, max_attempts)
                if verdict.status is Status.PENDING and store.requeue(row.request_id, reason=verdict.reason or ""):
                    again += 1
                    continue
                status, error = Status.FAILED, verdict.error
                if row.cancel_requested_at is not None:
                    status, error = Status.CANCELLED, cancelled_error()
                failed += 1
                store.settle(row.request_id, status, now=wall, error=orjson.dumps(error).decode())
    return Recovered(ended, again, failed)


def _end_leftovers(server_json: Path) -> int:
    try:
        boot_id = json.loads(server_json.read_text())["boot_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    count = 0
    for pid in proctree.marked_processes(str(boot_id)):
        if not proctree.is_detached(pid) and proctree.signal_pid(pid, signal.SIGKILL):
            count += 1
    return count
