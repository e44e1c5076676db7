"""The running requests: what their executors report, who is told to stop, and what a commit leads to.

Room: serve, main thread.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable

import orjson

from skyserve_exec.messages import Exited, Finished, HandOff, Run, Settled, Started
from skyserve_exec.paths import StateDir
from skyserve_exec.pool import verdict
from skyserve_exec.pool.booking import Effects
from skyserve_exec.pool.crew import Crew
from skyserve_exec.pool.executors import Executor, ExecutorState
from skyserve_exec.pool.http_children import HttpChildren
from skyserve_exec.pool.inbox import Ending, Inbox
from skyserve_exec.pool.running import Place, Running
from skyserve_exec.record import RequestRow, record_of
from skyserve_exec.settings import Settings
from skyserve_exec.states import Cause, ScheduleType

LARGEST_PUSHED = 64 * 1024  # characters of result and error; beyond it http reads the row
TAIL_GRACE_SECONDS = 2.0
COUNTERS = ("accepted", "started", "run_again", "handed_off", "succeeded", "failed", "cancelled")

log = logging.getLogger(__name__)


class Desk:
    """What serve knows of requests beyond their rows. `now` is set by each turn; times are monotonic seconds."""

    def __init__(self, settings: Settings, crew: Crew, https: HttpChildren, pending: dict[str, int]) -> None:
        self._settings = settings
        self._state_dir = StateDir(settings.state_path)
        self._crew = crew
        self._https = https
        self._by_child: dict[int, Running] = {}
        self._to_resume: deque[Running] = deque()
        self._claim_wanted: set[ScheduleType] = set(ScheduleType)
        self.running: dict[str, Running] = {}
        self.pending = {kind: pending.get(kind, 0) for kind in ScheduleType}
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.alarm_at = math.inf  # the earliest deadline or end of a grace period
        self.now = 0.0

    @property
    def pending_total(self) -> int:
        return sum(self.pending.values())

    def summary(self) -> str:
        """For the last line of the log."""
        return ", ".join(f"{number} {name}" for name, number in self.counters.items() if number) or "no requests"

    def claim_soon(self) -> None:
        """Something changed that may let a waiting request run."""
        self._claim_wanted.update(ScheduleType)

    def claims(self, inbox: Inbox) -> dict[ScheduleType, list[Executor]]:
        """The executors to claim requests for in this turn's transaction; none where nothing can have changed."""
        new = {ScheduleType(submit.schedule_type) for _http, submit in inbox.submits}
        again = bool(inbox.endings)
        found: dict[ScheduleType, list[Executor]] = {}
        for kind in ScheduleType:
            if kind in new or ((again or kind in self._claim_wanted) and self.pending[kind] > 0):
                executors = self._crew.pools[kind].free()
                if kind is ScheduleType.SHORT:
                    executors = executors[len(self._to_resume) :]
                if executors:
                    found[kind] = executors
        return found

    # --- what executors and the spawner say --------------------------------------------------------------------------

    def on_finished(self, executor: Executor, report: Finished, inbox: Inbox, *, stopping: bool) -> None:
        running = self._release(executor, report.request_id, report.why_not_reusable, stopping=stopping)
        if running is not None:
            inbox.endings.append(Ending(running, verdict.of_report(report, running, self._settings.max_attempts)))

    def on_hand_off(self, executor: Executor, report: HandOff, inbox: Inbox, *, stopping: bool) -> None:
        running = self._release(executor, report.request_id, report.why_not_reusable, stopping=stopping)
        if running is None:
            return
        if running.cause is not None:
            inbox.endings.append(Ending(running, verdict.of_interrupt(running, self._settings.max_attempts)))
        else:
            inbox.hand_offs.append((running, report))

    def on_exited(self, exited: Exited, inbox: Inbox) -> None:
        """An executor or a tail has ended; if a request was in it, that ends, runs again or is asked how it stands."""
        self.claim_soon()
        running = self._by_child.pop(exited.child_id, None)
        if running is None:
            return
        attempts = self._settings.max_attempts
        if running.place is Place.EXECUTOR:
            found = verdict.of_death(exited, running, attempts)
            if running.cause is None:
                how = verdict.how_it_ended(exited)
                log.warning("executor ended while it ran a request: %s", how, extra=_about(running))
            inbox.endings.append(Ending(running, found, exited.peak_rss or None))
        elif running.cause is not None:
            inbox.endings.append(Ending(running, verdict.of_interrupt(running, attempts)))
        else:
            running.place, running.child_id = Place.BETWEEN, 0
            self._to_resume.append(running)
            self.resume_waiting()

    def _release(self, executor: Executor, request_id: str, why: str, *, stopping: bool) -> Running | None:
        """Takes the executor from its request; lets it go when it must not serve another one."""
        executor.request_id = None
        self._crew.pools[executor.schedule_type].has_served(executor)
        running = self._by_child.pop(executor.executor_id, None)
        if running is None or running.request_id != request_id:
            log.error("slot %s reported request %s, which it did not run", executor.slot, request_id)
            return None
        self.claim_soon()
        executor.state = ExecutorState.LEAVING if why else ExecutorState.IDLE
        if not why and (running.cause is not None or stopping):
            self._crew.dismiss(executor)
        return running

    # --- stopping what runs ------------------------------------------------------------------------------------------

    def interrupt(self, request_id: str, cause: Cause, inbox: Inbox, *, grace: float, force: bool = False) -> None:
        """Makes a running request stop; a repeat does not shorten its grace period, force ends it at once."""
        running = self.running.get(request_id)
        if running is None:
            return
        first = running.cause is None
        if first or (cause is Cause.CANCEL and running.cause is Cause.SHUTDOWN):
            running.cause = cause
        if running.place is Place.BETWEEN:
            if running in self._to_resume:
                self._to_resume.remove(running)
                inbox.endings.append(Ending(running, verdict.of_interrupt(running, self._settings.max_attempts)))
            return
        if first:
            running.kill_at = self.now + (min(grace, TAIL_GRACE_SECONDS) if running.place is Place.TAIL else grace)
            self._crew.interrupt(running.child_id, request_id, cause)
        if force:
            running.kill_at = self.now
        if running.kill_at is not None:
            self.alarm_at = min(self.alarm_at, running.kill_at)

    def interrupt_all(self, cause: Cause, grace: float, inbox: Inbox) -> None:
        for request_id in list(self.running):
            self.interrupt(request_id, cause, inbox, grace=grace)

    def hurry(self) -> None:
        """The grace periods are over now."""
        for running in self.running.values():
            if running.kill_at is not None:
                running.kill_at = min(running.kill_at, self.now)
        self.alarm_at = self.now

    def kill_all(self) -> None:
        for child_id in [*self._crew.executors, *self._crew.tails]:
            self._crew.kill(child_id)

    def enforce_deadlines(self, inbox: Inbox) -> None:
        """Interrupts what is over its deadline, kills what is over its grace period."""
        if self.now < self.alarm_at:
            return
        self.alarm_at = math.inf
        for running in list(self.running.values()):
            if running.deadline_at is not None and running.cause is None and self.now >= running.deadline_at:
                self.interrupt(running.request_id, Cause.DEADLINE, inbox, grace=self._settings.cancel_grace_seconds)
            if running.kill_at is not None and not running.killed and self.now >= running.kill_at:
                running.killed = True
                log.warning("killing a request that has not ended in its grace period", extra=_about(running))
                self._crew.kill(running.child_id)
            self._set_alarm(running)

    def _set_alarm(self, running: Running) -> None:
        if running.deadline_at is not None and running.cause is None:
            self.alarm_at = min(self.alarm_at, running.deadline_at)
        if running.kill_at is not None and not running.killed:
            self.alarm_at = min(self.alarm_at, running.kill_at)

    # --- what a commit leads to --------------------------------------------------------------------------------------

    def apply(self, effects: Effects, inbox: Inbox) -> None:
        """Everything here is committed; now the others are told. `inbox` takes what follows from it."""
        for kind, number in effects.inserted.items():
            self.pending[kind] += number
        for kind, number in effects.unqueued.items():
            self.pending[kind] -= number
        self._claim_wanted.clear()
        for running in effects.ended:
            self.running.pop(running.request_id, None)
        for running in effects.requeued:
            self.running.pop(running.request_id, None)
            self.pending[ScheduleType(running.row.schedule_type)] += 1
        if effects.ended or effects.requeued or effects.unqueued:
            self.claim_soon()
        for executor, row in effects.started:
            self._start(executor, row)
        for http, message in effects.answers:
            self._https.tell(http, message)
        for running, hand_off in effects.handed_off:
            self._tail(running, hand_off)
        self._announce(effects)
        self._https.flush()
        for request_id, force in effects.interrupts:
            grace = self._settings.cancel_grace_seconds
            self.interrupt(request_id, Cause.CANCEL, inbox, grace=grace, force=force)
        self.resume_waiting()
        self._count(effects)

    def resume_waiting(self) -> None:
        """Gives requests whose tail has ended a short executor, which asks how their job stands."""
        free = self._crew.pools[ScheduleType.SHORT].free()
        while free and self._to_resume:
            running, executor = self._to_resume.popleft(), free.pop()
            running.place, running.child_id = Place.EXECUTOR, executor.executor_id
            self._by_child[executor.executor_id] = running
            self._crew.run(executor, self._order(running.row, running.resume))

    def _start(self, executor: Executor, row: RequestRow) -> None:
        kind = ScheduleType(row.schedule_type)
        self.pending[kind] -= 1
        deadline_at = None if row.deadline is None else self.now + row.deadline
        running = Running(row, Place.EXECUTOR, executor.executor_id, deadline_at)
        self.running[row.request_id] = self._by_child[executor.executor_id] = running
        resume = None if row.resume is None else orjson.loads(row.resume)
        self._set_alarm(running)
        self._crew.run(executor, self._order(row, resume))

    def _order(self, row: RequestRow, resume: dict[str, object] | None) -> Run:
        log_path = str(self._state_dir.log_of(row.request_id))
        return Run(row.request_id, row.name, row.payload, row.attempts, log_path, row.user, resume)

    def _tail(self, running: Running, hand_off: HandOff) -> None:
        running.resume = hand_off.resume
        running.place = Place.TAIL
        running.child_id = self._crew.start_tail(hand_off, str(self._state_dir.log_of(running.request_id)))
        self._by_child[running.child_id] = running

    def _announce(self, effects: Effects) -> None:
        if effects.settled:
            self._https.tell_all(Settled({row.request_id: _pushed(row) for row in effects.settled}))
        started = [row.request_id for _executor, row in effects.started]
        if started:
            self._https.tell_all(Started(started))

    def _count(self, effects: Effects) -> None:
        for name, number in _counts(effects):
            self.counters[name] = self.counters.get(name, 0) + number


def _counts(effects: Effects) -> Iterable[tuple[str, int]]:
    yield "accepted", sum(effects.inserted.values())
    yield "started", len(effects.started)
    yield "run_again", len(effects.requeued)
    yield "handed_off", len(effects.handed_off)
    for row in effects.settled:
        yield row.status.lower(), 1


def _pushed(row: RequestRow) -> dict[str, object] | None:
    if len(row.result or "") + len(row.error or "") > LARGEST_PUSHED:
        return None
    return record_of(row)


def _about(running: Running) -> dict[str, str]:
    return {"request_id": running.request_id, "slot": running.row.slot or ""}
