"""The executors of one schedule type: who is idle, who runs what, which slots need a new one.

Room: serve. Decides; the supervisor does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from skyserve_exec.states import ScheduleType
from skyserve_exec.system.channel import Channel

EARLY_SECONDS = 1.0  # an executor that ends unasked within this time, having served nothing, failed to start
FIRST_BACKOFF, LONGEST_BACKOFF = 0.05, 5.0
SICK_AFTER = 3  # early deaths in a row


class ExecutorState(Enum):
    """STARTING -> IDLE <-> BUSY -> LEAVING -> gone; it may be gone at any time."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    LEAVING = "leaving"


@dataclass(slots=True)
class Executor:
    """One executor process; `request_id` is what it runs now. Times are monotonic seconds."""

    executor_id: int
    slot: str
    schedule_type: ScheduleType
    channel: Channel
    spawned_at: float
    state: ExecutorState = ExecutorState.STARTING
    pid: int | None = None
    request_id: str | None = None
    served: int = 0


@dataclass(slots=True)
class ExecutorPool:
    """`size` requests run at once; `spares` more executors wait warm, so that a replacement costs no latency."""

    schedule_type: ScheduleType
    size: int
    spares: int
    executors: dict[str, Executor | None] = field(default_factory=dict)
    lost: int = 0
    replaced: int = 0
    early_deaths: int = 0
    not_before: float = 0.0

    def __post_init__(self) -> None:
        self.executors = {f"{self.schedule_type}-{number}": None for number in range(self.size + self.spares)}

    def living(self) -> Iterator[Executor]:
        return (item for item in self.executors.values() if item is not None)

    def count(self, state: ExecutorState) -> int:
        return sum(item.state is state for item in self.living())

    def free(self) -> list[Executor]:
        """The executors that may take a request now."""
        idle = [item for item in self.living() if item.state is ExecutorState.IDLE]
        return idle[: max(0, self.size - self.count(ExecutorState.BUSY))]

    def empty_slots(self, now: float) -> list[str]:
        """The slots that shall get an executor now; none while backing off."""
        if now < self.not_before:
            return []
        return [slot for slot, item in self.executors.items() if item is None]

    def bury(self, executor: Executor, now: float, *, unexpected: bool) -> None:
        """Empties the slot of an executor that has ended."""
        if self.executors.get(executor.slot) is not executor:
            return
        self.executors[executor.slot] = None
        if not unexpected:
            self.replaced += 1
            return
        self.lost += 1
        # A request may kill its executor as often as it likes: that is no fault of the pool.
        if executor.request_id is None and executor.served == 0 and now - executor.spawned_at < EARLY_SECONDS:
            self.early_deaths += 1
            self.not_before = now + min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**self.early_deaths)

    def has_served(self, executor: Executor) -> None:
        executor.served += 1
        self.early_deaths = 0

    @property
    def problem(self) -> str:
        """Why nothing can run here, empty when it can."""
        if self.early_deaths >= SICK_AFTER and not any(self.living()):
            return f"{self.schedule_type} executors end at their start ({self.early_deaths} times in a row)"
        return ""
