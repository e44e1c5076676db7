"""The states of a request and the only arrows between them.

    (submit)  -> PENDING      supervisor, committed before the answer leaves
    PENDING   -> RUNNING      supervisor, claimed for a free executor
    PENDING   -> CANCELLED    supervisor, cancelled before the claim
    RUNNING   -> SUCCEEDED | FAILED | CANCELLED   supervisor: the executor's report, its death, or its tail's end
    RUNNING   -> PENDING      supervisor: executor or server died, operation restartable, attempts left

Every arrow is a compare-and-set on the row that names the old state. Terminal is terminal.

Room: every process. No I/O.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a request stands; the value is what the row and the JSON hold."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


class ScheduleType(StrEnum):
    """Which pool serves a request: long executors serve one request each, short ones are reused."""

    LONG = "long"
    SHORT = "short"


class Outcome(StrEnum):
    """How an executor says its request ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Cause(StrEnum):
    """Why a running request is interrupted; decides the exception it sees and the state it ends in."""

    CANCEL = "cancel"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})
ACTIVE = frozenset({Status.PENDING, Status.RUNNING})
