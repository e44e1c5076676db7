"""How a running request ends, decided from what its executor reported or how it died.

Room: serve. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skyserve_exec.messages import Exited, Finished
from skyserve_exec.pool.running import Running
from skyserve_exec.record import error_object
from skyserve_exec.states import Cause, Outcome, Status
from skyserve_exec.system.signals import name_of

SEND_AGAIN = "It was not run again by itself: see what it had done, then send it again."


@dataclass(frozen=True, slots=True)
class Verdict:
    """The row's next state. PENDING means: run it again."""

    status: Status
    result: str | None = None
    error: dict[str, Any] | None = None
    exit_code: int | None = None
    reason: str | None = None


def of_report(report: Finished, running: Running, max_attempts: int) -> Verdict:
    """The end an executor reported."""
    if report.outcome == Outcome.SUCCEEDED:
        return Verdict(Status.SUCCEEDED, result=report.result, exit_code=report.exit_code)
    if report.outcome == Outcome.INTERRUPTED:
        return of_interrupt(running, max_attempts)
    return Verdict(Status.FAILED, error=report.error, exit_code=report.exit_code)


def of_interrupt(running: Running, max_attempts: int) -> Verdict:
    """It was told to stop, and did."""
    match running.cause:
        case Cause.CANCEL:
            return Verdict(Status.CANCELLED, error=cancelled_error())
        case Cause.DEADLINE:
            message = f"it ran longer than its deadline of {running.row.deadline:g} seconds"
            return Verdict(Status.FAILED, error=error_object("DeadlineExceeded", message))
        case Cause.SHUTDOWN:
            return _again_or(running, max_attempts, "Interrupted", "the server was stopped")
        case _:
            return _again_or(running, max_attempts, "Interrupted", "its executor was told to stop from outside")


def of_death(exited: Exited, running: Running, max_attempts: int) -> Verdict:
    """Its executor ended without a report."""
    if running.cause is not None:
        return of_interrupt(running, max_attempts)
    how = how_it_ended(exited)
    return _again_or(
        running,
        max_attempts,
        "ExecutorDied",
        f"its executor ended: {how}",
        signal=name_of(-exited.status) if exited.status < 0 else None,
        executor_exit_code=exited.status if exited.status >= 0 else None,
        peak_rss=exited.peak_rss or None,
    )


def of_former_life(running_restartable: bool, attempts: int, max_attempts: int) -> Verdict:
    """It ran when an earlier life of this server ended without a chance to settle it."""
    if running_restartable and attempts < max_attempts:
        return Verdict(Status.PENDING, reason="runs again: the server ended while it ran")
    error = error_object("Interrupted", "the server ended while it ran", hint=SEND_AGAIN)
    return Verdict(Status.FAILED, error=error)


def cancelled_error() -> dict[str, Any]:
    return error_object("RequestCancelled", "it was cancelled")


def how_it_ended(exited: Exited) -> str:
    """'killed by SIGKILL' or 'exit code 3', with its peak memory where known."""
    how = f"killed by {name_of(-exited.status)}" if exited.status < 0 else f"exit code {exited.status}"
    return how + (f", peak memory {exited.peak_rss >> 20} MB" if exited.peak_rss else "")


def _again_or(running: Running, max_attempts: int, kind: str, message: str, **more: object) -> Verdict:
    if running.row.restartable and (running.row.attempts < max_attempts or running.cause is Cause.SHUTDOWN):
        return Verdict(Status.PENDING, reason=f"runs again: {message}")
    known = {name: value for name, value in more.items() if value is not None}
    return Verdict(Status.FAILED, error=error_object(kind, message, hint=SEND_AGAIN) | known)
