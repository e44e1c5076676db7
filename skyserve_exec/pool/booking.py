"""The one transaction of a turn: endings, cancels, submissions and claims, committed together.

Nothing here changes what serve knows: the effects are returned and applied only after the commit. If the transaction
fails, the inbox is kept and booked again.

Room: serve, main thread. Blocks for one commit.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import orjson

from skyserve_exec.errors import SkyserveError
from skyserve_exec.messages import Accepted, Cancel, CancelDone, HandOff, Message, Refused, Submit
from skyserve_exec.pool.executors import Executor
from skyserve_exec.pool.http_children import HttpChild
from skyserve_exec.pool.inbox import Ending, Inbox
from skyserve_exec.pool.running import Running
from skyserve_exec.pool.verdict import Verdict, cancelled_error
from skyserve_exec.record import RequestRow
from skyserve_exec.states import ScheduleType, Status
from skyserve_exec.store.requests import RequestStore


@dataclass(slots=True)
class Effects:
    """What a committed turn leads to."""

    answers: list[tuple[HttpChild, Message]] = field(default_factory=list)
    settled: list[RequestRow] = field(default_factory=list)
    ended: list[Running] = field(default_factory=list)
    requeued: list[Running] = field(default_factory=list)
    handed_off: list[tuple[Running, HandOff]] = field(default_factory=list)
    interrupts: list[tuple[str, bool]] = field(default_factory=list)  # request id, force
    started: list[tuple[Executor, RequestRow]] = field(default_factory=list)
    inserted: dict[ScheduleType, int] = field(default_factory=dict)
    unqueued: dict[ScheduleType, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What serve knows that the table does not: `refuse` is set while it takes no new work, `owned` is what runs."""

    max_pending: int
    pending: int
    refuse: SkyserveError | None
    owned: Container[str]


def book(
    store: RequestStore,
    inbox: Inbox,
    free: Mapping[ScheduleType, list[Executor]],
    limits: Limits,
    boot_id: str,
    wall: float,
) -> Effects:
    """Books everything in one transaction.

    Raises:
        StoreBusy, DiskFull, StoreFailed: nothing was written.
    """
    effects = Effects()
    with store.transaction():
        for ending in inbox.endings:
            _end(store, ending, effects, wall)
        for running, hand_off in inbox.hand_offs:
            _hand_off(store, running, hand_off, effects)
        for http, cancel in inbox.cancels:
            chosen = _chosen(store, cancel)
            outcomes = {request_id: _cancel(store, request_id, cancel, limits, effects, wall) for request_id in chosen}
            effects.answers.append((http, CancelDone(cancel.ticket, outcomes)))
        waiting = limits.pending
        for http, submit in inbox.submits:
            waiting += _submit(store, http, submit, limits, waiting, effects)
        for schedule_type, executors in free.items():
            _claim(store, schedule_type, executors, effects, boot_id, wall)
    return effects


def _end(store: RequestStore, ending: Ending, effects: Effects, wall: float) -> None:
    running, verdict = ending.running, ending.verdict
    if verdict.status is Status.PENDING:
        if store.requeue(running.request_id, reason=verdict.reason or "runs again"):
            effects.requeued.append(running)
            return
        verdict = Verdict(Status.CANCELLED, error=cancelled_error())  # cancelled meanwhile: it never runs again
    row = store.settle(
        running.request_id,
        verdict.status,
        now=wall,
        result=verdict.result,
        error=None if verdict.error is None else orjson.dumps(verdict.error).decode(),
        exit_code=verdict.exit_code,
        peak_rss=ending.peak_rss,
        reason=verdict.reason,
    )
    effects.ended.append(running)
    if row is not None:
        effects.settled.append(row)


def _hand_off(store: RequestStore, running: Running, hand_off: HandOff, effects: Effects) -> None:
    resume = orjson.dumps(hand_off.resume).decode()
    if store.hand_off(running.request_id, resume=resume, reason=hand_off.reason):
        effects.handed_off.append((running, hand_off))


def _chosen(store: RequestStore, cancel: Cancel) -> list[str]:
    if cancel.request_ids:
        return cancel.request_ids
    return [request_id for request_id, _status in store.active(cluster=cancel.cluster, user=cancel.user)]


def _cancel(store: RequestStore, request_id: str, cancel: Cancel, limits: Limits, effects: Effects, wall: float) -> str:
    """PENDING is cancelled here; a RUNNING one gets its mark, and the supervisor sees to the rest."""
    by = f"cancelled by {cancel.by}" if cancel.by else "cancelled"
    error = orjson.dumps(cancelled_error()).decode()
    row = store.cancel_pending(request_id, now=wall, error=error)
    if row is not None:
        effects.settled.append(row)
        kind = ScheduleType(row.schedule_type)
        effects.unqueued[kind] = effects.unqueued.get(kind, 0) + 1
        return "cancelled"
    if store.mark_cancel(request_id, now=wall, reason=by):
        if request_id not in limits.owned:  # a row that says RUNNING and that nothing runs: nobody else would end it
            row = store.settle(request_id, Status.CANCELLED, now=wall, error=error)
            effects.settled += [row] if row is not None else []
            return "cancelled"
        effects.interrupts.append((request_id, cancel.force))
        return "cancelling"
    return f"already {store.status_of(request_id) or 'unknown'}"


def _submit(
    store: RequestStore, http: HttpChild, submit: Submit, limits: Limits, waiting: int, effects: Effects
) -> int:
    """How many rows were added: 1 or 0."""
    if limits.refuse is not None:
        effects.answers.append((http, refusal(submit.ticket, limits.refuse)))
        return 0
    if waiting >= limits.max_pending:
        text = f"{waiting} requests wait already, which is the limit (max_pending)"
        effects.answers.append((http, Refused(submit.ticket, "Busy", text, "Try again when some have run.")))
        return 0
    try:
        request_id, duplicate = store.insert(submit)
    except SkyserveError as error:
        if not store.database.is_open():
            raise  # the transaction itself is lost, not this one submission
        effects.answers.append((http, refusal(submit.ticket, error)))
        return 0
    effects.answers.append((http, Accepted(submit.ticket, request_id, duplicate)))
    if duplicate:
        return 0
    kind = ScheduleType(submit.schedule_type)
    effects.inserted[kind] = effects.inserted.get(kind, 0) + 1
    return 1


def _claim(
    store: RequestStore,
    schedule_type: ScheduleType,
    executors: list[Executor],
    effects: Effects,
    boot_id: str,
    wall: float,
) -> None:
    if not executors:
        return
    by_slot = {executor.slot: executor for executor in executors}
    for row in store.claim(schedule_type, list(by_slot), boot_id, wall):
        effects.started.append((by_slot[row.slot or ""], row))


def refusal(ticket: int, error: SkyserveError) -> Refused:
    return Refused(ticket, type(error).__name__, error.message, error.hint)
