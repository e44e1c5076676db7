"""The public record of a request: what /api/get answers and the SDK returns. Stable keys.

Room: every process. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from skyserve_exec.states import Status


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One row of the requests table, columns in table order. Times are wall-clock seconds, sizes bytes.

    `payload`, `result`, `error` and `resume` are JSON text. `lock_key`: requests with the same key run one at a time,
    in order. `attempts` counts starts. `boot_id` is the server life that ran it last. What may be large comes last:
    SQLite walks through a row's overflow pages to reach a column behind them.
    """

    seq: int
    request_id: str
    name: str
    status: str
    schedule_type: str
    user: str
    cluster: str | None
    lock_key: str | None
    restartable: int
    deadline: float | None
    idempotency_key: str | None
    fingerprint: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    attempts: int
    boot_id: str | None
    slot: str | None
    cancel_requested_at: float | None
    reason: str | None
    exit_code: int | None
    peak_rss: int | None
    payload: str
    result: str | None
    error: str | None
    resume: str | None

    @property
    def is_terminal(self) -> bool:
        return Status(self.status).is_terminal


def record_of(row: RequestRow) -> dict[str, Any]:
    """The record with result and error parsed. The payload is not in it: it may hold secrets."""
    record = summary_of(row)
    record["result"] = None if row.result is None else orjson.loads(row.result)
    record["error"] = None if row.error is None else orjson.loads(row.error)
    return record


def summary_of(row: RequestRow) -> dict[str, Any]:
    """The record without result and error: one line of a list."""
    return {
        "request_id": row.request_id,
        "name": row.name,
        "status": row.status,
        "schedule_type": row.schedule_type,
        "user": row.user,
        "cluster": row.cluster,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "attempts": row.attempts,
        "restartable": bool(row.restartable),
        "deadline": row.deadline,
        "cancel_requested": row.cancel_requested_at is not None,
        "reason": row.reason,
        "exit_code": row.exit_code,
        "peak_rss": row.peak_rss,
        "boot_id": row.boot_id,
        "slot": row.slot,
    }


def error_object(
    kind: str, message: str, *, hint: str = "", traceback: str | None = None, **more: object
) -> dict[str, Any]:
    """The error of a record: type, message, hint, and for exceptions the truncated traceback."""
    body: dict[str, Any] = {"type": kind, "message": message, "hint": hint}
    if traceback is not None:
        body["traceback"] = traceback
    return body | more
