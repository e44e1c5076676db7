"""The requests table as its one writer sees it: every move of a request is one method.

Room: serve, main thread. Blocks on the disk; on a foreign lock at most `busy_seconds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from skyserve_exec.errors import Conflict
from skyserve_exec.messages import Submit
from skyserve_exec.record import RequestRow
from skyserve_exec.states import TERMINAL
from skyserve_exec.store import statements as sql
from skyserve_exec.store.database import Database
from skyserve_exec.store.migrations import REQUESTS, open_database


class RequestStore:
    """All moves are compare-and-sets inside `transaction()`; the reads at the end may be called at any time.

    Not thread-safe. `result`, `error`, `resume` and payloads are JSON text; times are wall-clock seconds.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, path: Path, *, busy_seconds: float = 0.1) -> RequestStore:
        """Opens the table, makes it if it is not there, and brings its schema up to date.

        Raises:
            SchemaTooNew: a newer release wrote it; it is not touched.
            StoreBusy: another process migrates for longer than 5 s.
            DiskFull, StoreFailed: the file cannot be made or written.
        """
        return cls(open_database(path, REQUESTS, busy_seconds=busy_seconds))

    def transaction(self) -> AbstractContextManager[None]:
        """BEGIN IMMEDIATE, then COMMIT, or ROLLBACK when the body raises. Durable when it returns.

        Raises:
            StoreBusy: another process held the lock for `busy_seconds`; nothing was written.
            DiskFull, StoreFailed: nothing was written.
        """
        return self.database.transaction()

    def insert(self, request: Submit) -> tuple[str, bool]:
        """(submit) -> PENDING. Returns the id, and whether it is that of an older request with the same key or id.

        Raises:
            Conflict: the idempotency key or the id belongs to a request that asked for something else.
        """
        if request.idempotency_key is not None:
            older = self.database.row(sql.SELECT_BY_KEY, (request.user, request.idempotency_key))
            if older is not None:
                if older[1] != request.fingerprint:
                    raise Conflict(
                        f"Idempotency-Key: {request.idempotency_key!r} was used for another request",
                        hint="Use a new key for a new request.",
                        request_id=older[0],
                    )
                return older[0], True
        inserted = self.database.write(
            sql.INSERT_REQUEST,
            (
                request.request_id,
                request.name,
                request.schedule_type,
                request.user,
                request.cluster,
                request.lock_key or None,
                int(request.restartable),
                request.deadline,
                request.idempotency_key,
                request.fingerprint,
                request.created_at,
                request.payload,
            ),
        )
        return request.request_id, not inserted and self._is_same(request)

    def claim(self, schedule_type: str, slots: Sequence[str], boot_id: str, now: float) -> list[RequestRow]:
        """PENDING -> RUNNING for the oldest that may run, at most one per slot; row i gets slots[i].

        Requests with the same lock key run one at a time, in order, across both schedule types.
        """
        if not slots:
            return []
        claimed = []
        for slot, seq in zip(slots, self._claimable(schedule_type, len(slots)), strict=False):
            if self.database.write(sql.CLAIM, (slot, boot_id, now, seq)):
                claimed.append(RequestRow(*self.database.row(sql.SELECT_REQUEST_BY_SEQ, (seq,))))
        return claimed

    def settle(
        self,
        request_id: str,
        status: str,
        *,
        now: float,
        result: str | None = None,
        error: str | None = None,
        exit_code: int | None = None,
        peak_rss: int | None = None,
        reason: str | None = None,
    ) -> RequestRow | None:
        """RUNNING -> SUCCEEDED | FAILED | CANCELLED. None: it was not RUNNING, and nothing happened.

        Without a reason the one of a cancel stays, any other is cleared.
        """
        if status not in TERMINAL:
            raise ValueError(f"{status} is not terminal")
        values = (str(status), now, result, error, exit_code, peak_rss, reason, request_id)
        return self._row(request_id) if self.database.write(sql.SETTLE, values) else None

    def requeue(self, request_id: str, *, reason: str) -> bool:
        """RUNNING -> PENDING at its old place, with its attempts and `resume`.

        False: it was not RUNNING, or somebody cancelled it, and what is cancelled never runs again: settle it instead.
        """
        return self.database.write(sql.REQUEUE, (reason, request_id)) == 1

    def hand_off(self, request_id: str, *, resume: str, reason: str) -> bool:
        """The request stays RUNNING but occupies no slot any more. False: it was not RUNNING."""
        return self.database.write(sql.HAND_OFF, (resume, reason, request_id)) == 1

    def cancel_pending(self, request_id: str, *, now: float, error: str) -> RequestRow | None:
        """PENDING -> CANCELLED. None: it was not PENDING, and nothing happened."""
        return self._row(request_id) if self.database.write(sql.CANCEL_PENDING, (now, error, request_id)) else None

    def mark_cancel(self, request_id: str, *, now: float, reason: str) -> bool:
        """Notes on a RUNNING request that it shall end; keeps the first time and reason. False: it was not RUNNING."""
        return self.database.write(sql.MARK_CANCEL, (reason, now, request_id)) == 1

    def status_of(self, request_id: str) -> str | None:
        """Where the request stands; None: unknown."""
        row = self.database.row(sql.SELECT_STATUS, (request_id,))
        return None if row is None else row[0]

    def active(self, *, cluster: str | None = None, user: str | None = None) -> list[tuple[str, str]]:
        """(id, status) of all that wait or run, oldest first."""
        return self.database.rows(sql.SELECT_ACTIVE, (cluster, cluster, user, user))

    def running(self) -> list[RequestRow]:
        """All that run, oldest first."""
        return [RequestRow(*row) for row in self.database.rows(sql.SELECT_RUNNING)]

    def pending_counts(self) -> dict[str, int]:
        """How many wait, by schedule type; a type without any is missing."""
        return dict(self.database.rows(sql.COUNT_PENDING))

    def close(self) -> None:
        """Leaves the file complete: the last one to leave copies the log into it."""
        self.database.close()

    def _row(self, request_id: str) -> RequestRow:
        return RequestRow(*self.database.row(sql.SELECT_REQUEST, (request_id,)))

    def _claimable(self, schedule_type: str, limit: int) -> list[int]:
        if self.database.row(sql.SELECT_ANY_LOCK, (schedule_type,)) is None:
            rows = self.database.rows(sql.SELECT_OLDEST, (schedule_type, limit))
        else:
            rows = self.database.rows(sql.SELECT_OLDEST_UNLOCKED, (*[schedule_type] * 4, limit, limit))
        return [row[0] for row in rows]

    def _is_same(self, request: Submit) -> bool:
        row = self._row(request.request_id)
        if (row.name, row.user, row.payload) != (request.name, request.user, request.payload):
            raise Conflict(f"request_id: {request.request_id} belongs to another request")
        return True
