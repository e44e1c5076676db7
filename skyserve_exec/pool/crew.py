"""The spawner and everything it forks, as serve sees them: orders go out, reports and deaths come in.

Room: serve, main thread. The spawner alone signals executors and tails; serve only asks it to.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from skyserve_exec.messages import (
    Exited,
    HandOff,
    Interrupt,
    KillChild,
    Leave,
    Message,
    Run,
    SignalChild,
    SpawnExecutor,
    SpawnTail,
)
from skyserve_exec.pool.children import ChildProcess, Surroundings, start_spawner
from skyserve_exec.pool.executors import Executor, ExecutorPool, ExecutorState
from skyserve_exec.states import Cause, ScheduleType
from skyserve_exec.system.channel import Channel, ChannelClosed

FIRST_BACKOFF, LONGEST_BACKOFF = 0.05, 5.0
UNKNOWN_END = -int(signal.SIGKILL)  # a dead spawner's executors die with it, by their parent-death signal

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Crew:
    """One spawner, its executors by pool, its tails by id."""

    around: Surroundings
    pools: dict[ScheduleType, ExecutorPool]
    spawner: ChildProcess | None = None
    spawner_ready: bool = False
    executors: dict[int, Executor] = field(default_factory=dict)
    tails: set[int] = field(default_factory=set)
    fresh: list[Executor] = field(default_factory=list)  # whose channels nobody watches yet
    not_before: float = 0.0
    spawner_deaths: int = 0
    next_child_id: int = 1

    def start_spawner(self, now: float) -> None:
        if self.spawner is None and now >= self.not_before:
            self.spawner = start_spawner(self.around, now)
            self.spawner_ready = False

    def fill_slots(self, now: float) -> None:
        """Asks for an executor in every empty slot."""
        if not self.spawner_ready:
            return
        for pool in self.pools.values():
            for slot in pool.empty_slots(now):
                self._spawn_executor(pool, slot, now)

    def run(self, executor: Executor, order: Run) -> None:
        """Gives an idle executor a request. If it is dying at this moment its Exited message follows."""
        executor.state = ExecutorState.BUSY
        executor.request_id = order.request_id
        self._say(executor.channel, order)

    def start_tail(self, hand_off: HandOff, log_path: str) -> int:
        tail_id = self._new_id()
        self.tails.add(tail_id)
        self.order(SpawnTail(tail_id, hand_off.argv, hand_off.env, hand_off.cwd, log_path))
        return tail_id

    def interrupt(self, child_id: int, request_id: str, cause: Cause) -> None:
        """Tells the executor which request is meant, then has it signalled: the message is there before the signal."""
        executor = self.executors.get(child_id)
        if executor is not None:
            self._say(executor.channel, Interrupt(request_id, cause.value))
        self.order(SignalChild(child_id, signal.SIGTERM))

    def kill(self, child_id: int) -> None:
        self.order(KillChild(child_id))

    def dismiss(self, executor: Executor) -> None:
        """Asks an idle executor to leave."""
        executor.state = ExecutorState.LEAVING
        self._say(executor.channel, Leave())

    def order(self, message: Message, descriptor: int | None = None) -> None:
        if self.spawner is not None:
            self._say(self.spawner.channel, message, descriptor)

    def is_here(self, child_id: int, pid: int) -> None:
        """The spawner has forked it."""
        executor = self.executors.get(child_id)
        if executor is not None:
            executor.pid = pid
            if executor.state is ExecutorState.STARTING:
                executor.state = ExecutorState.IDLE

    def bury(self, exited: Exited, now: float) -> Executor | None:
        """Takes an ended executor out of its slot; the caller settles what it ran."""
        self.tails.discard(exited.child_id)
        executor = self.executors.pop(exited.child_id, None)
        if executor is None:
            return None
        unexpected = executor.state is not ExecutorState.LEAVING
        self.pools[executor.schedule_type].bury(executor, now, unexpected=unexpected)
        executor.channel.close()
        return executor

    def lose_spawner(self, status: int, now: float) -> list[Exited]:
        """The spawner has ended: so have its executors and tails. Their ends, as far as they are known."""
        assert self.spawner is not None
        self.spawner.has_ended(status)
        self.spawner, self.spawner_ready = None, False
        self.spawner_deaths += 1
        self.not_before = now + min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**self.spawner_deaths)
        ids = [*self.executors, *self.tails]
        return [Exited(child_id, 0, UNKNOWN_END, 0) for child_id in ids]

    def living(self) -> Iterator[Executor]:
        return iter(self.executors.values())

    @property
    def problem(self) -> str:
        if self.spawner is None and self.spawner_deaths > 3:
            return "the spawner ends at its start"
        return next((pool.problem for pool in self.pools.values() if pool.problem), "")

    def _spawn_executor(self, pool: ExecutorPool, slot: str, now: float) -> None:
        ours, theirs = socket.socketpair()
        executor = Executor(self._new_id(), slot, pool.schedule_type, Channel(ours), now)
        with theirs:
            self.order(SpawnExecutor(executor.executor_id, slot), theirs.fileno())
        pool.executors[slot] = executor
        self.executors[executor.executor_id] = executor
        self.fresh.append(executor)

    def _new_id(self) -> int:
        self.next_child_id += 1
        return self.next_child_id

    def _say(self, channel: Channel, message: Message, descriptor: int | None = None) -> None:
        try:
            channel.send(message, descriptor)
        except ChannelClosed:
            return  # it has died: its end is reported by whoever reaps it
