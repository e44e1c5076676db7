"""The supervisor loop: books requests, feeds executors, buries the dead.

    turn:  collect ─▶ book ─▶ enforce ─▶ publish        then wait
             │         │         │          └ snapshot to http, at least once a second
             │         │         └ deadlines, grace periods, empty slots, dead children, the way down
             │         └ ONE transaction: endings, cancels, submissions, claims; then their effects
             └ signals, reaped children, messages of http, spawner and executors

Room: serve process, main thread. Waits only in `ears.listen`. Never runs operations.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from skyserve_exec.errors import EXIT_INTERNAL, EXIT_USAGE, DiskFull, Draining, SkyserveError, Unavailable
from skyserve_exec.logsetup import ServerLog
from skyserve_exec.messages import (
    Cancel,
    Exited,
    Finished,
    Goodbye,
    HandOff,
    Message,
    Refused,
    Spawned,
    SpawnerReady,
    Submit,
    Welcome,
)
from skyserve_exec.messages import Draining as DrainingNotice
from skyserve_exec.pool.booking import Limits, book
from skyserve_exec.pool.crew import Crew
from skyserve_exec.pool.desk import Desk
from skyserve_exec.pool.ears import Ears
from skyserve_exec.pool.executors import Executor, ExecutorState
from skyserve_exec.pool.http_children import HttpChild, HttpChildren
from skyserve_exec.pool.inbox import Inbox
from skyserve_exec.pool.snapshots import Snapshots
from skyserve_exec.pool.stopping import FAREWELL_SECONDS, Stopping
from skyserve_exec.settings import Settings
from skyserve_exec.states import Cause
from skyserve_exec.store.requests import RequestStore
from skyserve_exec.system import proctree
from skyserve_exec.system.signals import name_of

SWEEP_SECONDS = 0.02
BUSY_RETRY, FULL_RETRY = 0.02, 0.5
REFUSE_AFTER = 5.0  # seconds without a commit: new work is refused instead of kept waiting
MOST_HTTP_DEATHS = 8  # in a row, each soon after its start
GIVE_UP_AFTER = 3.0  # seconds over the grace period: a stop does not wait for a dead disk

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Trouble:
    """The database cannot be written: since when, why, and when to try again."""

    error: SkyserveError
    since: float
    retry_at: float


@dataclass(slots=True)
class Supervisor:
    """Steppable: `turn(now)` is one step with the clock as its argument."""

    settings: Settings
    boot_id: str
    token: str | None
    store: RequestStore
    https: HttpChildren
    crew: Crew
    ears: Ears
    server_log: ServerLog
    clock: Callable[[], float]
    wall: Callable[[], float]
    desk: Desk = field(init=False)
    snapshots: Snapshots = field(init=False)
    inbox: Inbox = field(default_factory=Inbox)
    ready: list[tuple[selectors.SelectorKey, int]] = field(default_factory=list)
    trouble: Trouble | None = None
    stopping: Stopping | None = None
    sweeping: bool = False
    failure: str = ""
    now: float = 0.0

    def __post_init__(self) -> None:
        self.desk = Desk(self.settings, self.crew, self.https, self.store.pending_counts())
        self.snapshots = Snapshots(self.crew, self.https, self.desk)

    def run(self) -> int:
        """Turns until everything is gone; the exit code."""
        while True:
            self.turn(self.clock())
            if self.stopping is not None and self._is_gone():
                return self.stopping.exit_code
            self.ready = self.ears.listen(self._seconds_to_wait())

    def turn(self, now: float) -> None:
        self.now = self.desk.now = now
        self.collect()
        self.book()
        self.enforce()
        self.publish()
        self.https.flush()

    # --- collect -----------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        for signum in self.ears.signals.take():
            if signum != signal.SIGCHLD:
                self.stop(f"{name_of(signum)} received")
        self._reap()
        self.ears.hear(self.ready)
        self.ready = []

    def stop(self, why: str, exit_code: int = 0) -> None:
        """Begins the way down; a second call hurries it."""
        if self.stopping is not None:
            self.stopping.hurry(self.now)
            self.desk.hurry()
            return
        grace = self.settings.shutdown_grace_seconds
        log.info("stopping: %s; running requests have %g seconds to clean up", why, grace)
        self.stopping = Stopping(why, self.now, self.now + grace, exit_code=exit_code)
        self.https.tell_all(DrainingNotice(grace + FAREWELL_SECONDS))
        self.desk.interrupt_all(Cause.SHUTDOWN, grace, self.inbox)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._child_has_ended(pid, os.waitstatus_to_exitcode(status))
        if self.sweeping:
            known = {seat.child.pid for seat in self.https.living() if seat.child is not None}
            if self.crew.spawner is not None:
                known.add(self.crew.spawner.pid)
            self.sweeping = proctree.kill_orphans(known) > 0

    def _child_has_ended(self, pid: int, status: int) -> None:
        spawner = self.crew.spawner
        if spawner is not None and spawner.pid == pid:
            self.ears.hear_out(spawner.channel)
            self.ears.drop(spawner.channel)
            for exited in self.crew.lose_spawner(status, self.now):
                self._on_exited(exited)
            self.sweeping = True
            self._spawner_has_ended(status)
            return
        for seat in self.https.living():
            if seat.child is not None and seat.child.pid == pid:
                self.ears.hear_out(seat.child.channel)
                self.ears.drop(seat.child.channel)
        ended = self.https.has_ended(pid, status, self.now, expected=self.stopping is not None)
        if ended is not None and ended.deaths > MOST_HTTP_DEATHS and self.stopping is None:
            self._fail("http processes end at their start, see the log above")

    def _spawner_has_ended(self, status: int) -> None:
        if self.stopping is not None:
            return
        if self.https.welcome is None:
            self._fail(f"the spawner ended before it had imported the operations (status {status}), see the log above")
        else:
            log.error("the spawner ended (status %d); starting another one", status)

    def _fail(self, why: str) -> None:
        self.failure = why
        self.stop(why, exit_code=EXIT_INTERNAL)

    def _hear_http(self, seat: HttpChild, message: Message) -> None:
        match message:
            case Submit():
                self.inbox.submits.append((seat, message))
            case Cancel():
                self.inbox.cancels.append((seat, message))

    def _hear_spawner(self, message: Message) -> None:
        match message:
            case SpawnerReady():
                self._on_spawner_ready(message)
            case Spawned(child_id, pid):
                self.crew.is_here(child_id, pid)
                self.desk.claim_soon()
            case Exited():
                self._on_exited(message)

    def _on_spawner_ready(self, message: SpawnerReady) -> None:
        if message.failure:
            self.failure = message.failure
            self.stop(message.failure, exit_code=EXIT_USAGE)
            return
        self.crew.spawner_ready, self.crew.spawner_deaths = True, 0
        if self.https.welcome is None:
            self.https.be_ready(
                Welcome(self.boot_id, self.token, self.settings.to_json(), message.own_operations, self.wall())
            )

    def _on_exited(self, exited: Exited) -> None:
        executor = self.crew.executors.get(exited.child_id)
        if executor is not None:
            # Its report was written before it ended, so it is there to be read before its death is believed.
            self.ears.hear_out(executor.channel)
            self.ears.drop(executor.channel)
        self.crew.bury(exited, self.now)
        self.desk.on_exited(exited, self.inbox)

    def _hear_executor(self, executor: Executor, message: Message) -> None:
        match message:
            case Finished():
                self.desk.on_finished(executor, message, self.inbox, stopping=self.stopping is not None)
            case HandOff():
                self.desk.on_hand_off(executor, message, self.inbox, stopping=self.stopping is not None)

    # --- book --------------------------------------------------------------------------------------------------------

    def book(self) -> None:
        if self.trouble is not None and self.now < self.trouble.retry_at:
            return
        free = {} if self.stopping else self.desk.claims(self.inbox)
        if not self.inbox and not free:
            return
        limits = Limits(self.settings.max_pending, self.desk.pending_total, self._refusal(), self.desk.running)
        inbox, self.inbox = self.inbox, Inbox()
        try:
            effects = book(self.store, inbox, free, limits, self.boot_id, self.wall())
        except SkyserveError as error:
            self.inbox = inbox
            self._cannot_book(error)
            return
        self.trouble = None
        self.desk.apply(effects, self.inbox)

    def _refusal(self) -> SkyserveError | None:
        if self.stopping is not None:
            return Draining("the server is stopping and takes no new requests")
        return None

    def _cannot_book(self, error: SkyserveError) -> None:
        """Keeps what happened for the next try; refuses new work when there is no end in sight."""
        if self.trouble is None:
            log.warning("cannot write the database: %s", error.message)
        since = self.now if self.trouble is None else self.trouble.since
        is_full = isinstance(error, DiskFull)
        self.trouble = Trouble(error, since, self.now + (FULL_RETRY if is_full else BUSY_RETRY))
        if is_full or self.now - since > REFUSE_AFTER:
            kind = type(error).__name__ if isinstance(error, Unavailable | DiskFull) else "Unavailable"
            for seat, submit in self.inbox.submits:
                self.https.tell(seat, Refused(submit.ticket, kind, error.message, error.hint))
            self.inbox.submits.clear()

    # --- enforce -----------------------------------------------------------------------------------------------------

    def enforce(self) -> None:
        self.desk.enforce_deadlines(self.inbox)
        if self.stopping is None:
            self.desk.resume_waiting()
            self.crew.start_spawner(self.now)
            self.crew.fill_slots(self.now)
            self.https.start_missing(self.now)
        else:
            self._go_down(self.stopping)
        self._listen_to_new()

    def _listen_to_new(self) -> None:
        for seat in self.https.living():
            if seat.child is not None and not seat.watched:
                seat.watched = True
                self.ears.add(seat.child.channel, partial(self._hear_http, seat))
        spawner = self.crew.spawner
        if spawner is not None and spawner.channel.fileno() not in self.ears.speakers and not spawner.channel.is_closed:
            self.ears.add(spawner.channel, self._hear_spawner)
        for executor in self.crew.fresh:
            self.ears.add(executor.channel, partial(self._hear_executor, executor))
        self.crew.fresh.clear()

    def _go_down(self, stopping: Stopping) -> None:
        for executor in self.crew.living():
            if executor.state is ExecutorState.IDLE:
                self.crew.dismiss(executor)
        if self.now >= stopping.kill_at:
            self.desk.kill_all()
        crew_is_gone = not self.crew.executors and not self.crew.tails
        gave_up = self.now > stopping.kill_at + GIVE_UP_AFTER
        if stopping.farewell_until is None and (gave_up or (crew_is_gone and not self.inbox)):
            stopping.farewell_until = self.now + FAREWELL_SECONDS
            if self.https.welcome is None:
                self._kill_children()  # nobody was ever answered
            # http still takes what the kernel has queued; what comes later is refused, not queued and then reset.
            self.https.around.listener.close()
            self.https.tell_all(Goodbye())
            if self.crew.spawner is not None:
                self.ears.drop(self.crew.spawner.channel)
                self.crew.spawner.channel.close()  # end of file is its sign to end all below it, and itself
        if stopping.farewell_until is not None and self.now >= stopping.farewell_until:
            self._kill_children()

    def _kill_children(self) -> None:
        if self.crew.spawner is not None:
            proctree.signal_pid(self.crew.spawner.pid, signal.SIGKILL)
        for seat in self.https.living():
            if seat.child is not None:
                proctree.signal_pid(seat.child.pid, signal.SIGKILL)

    def _is_gone(self) -> bool:
        farewell = self.stopping is not None and self.stopping.farewell_until is not None
        return farewell and self.crew.spawner is None and not any(self.https.living()) and not self.sweeping

    # --- publish and wait --------------------------------------------------------------------------------------------

    def publish(self) -> None:
        problem = self.crew.problem or self.https.problem
        if self.trouble is not None and self.now - self.trouble.since > REFUSE_AFTER:
            problem = f"the database cannot be written: {self.trouble.error.message}"
        if self.snapshots.is_due(self.now):
            self.https.tell_all(self.snapshots.take(self.now, self.wall(), problem, draining=self.stopping is not None))
            self.server_log.tick()

    def _seconds_to_wait(self) -> float:
        ends = [self.snapshots.due_at, self.desk.alarm_at]
        if self.trouble is not None and self.inbox:
            ends.append(self.trouble.retry_at)
        if self.sweeping:
            ends.append(self.now + SWEEP_SECONDS)
        if self.stopping is not None:
            ends += [at for at in (self.stopping.kill_at, self.stopping.farewell_until) if at and at > self.now]
        if self.trouble is None and (self.inbox or (self.stopping is None and self.desk.claims(self.inbox))):
            return 0.0
        ends += [pool.not_before for pool in self.crew.pools.values() if pool.not_before > self.now]
        ends += [at for at in (self.crew.not_before, *(s.not_before for s in self.https.seats)) if at > self.now]
        return max(0.0, min(ends) - self.clock())
