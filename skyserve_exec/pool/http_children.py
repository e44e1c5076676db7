"""The http processes: kept alive on the one listening socket, told what happens, and believed nothing.

Room: serve, main thread.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from skyserve_exec.messages import Message
from skyserve_exec.pool.children import ChildProcess, Surroundings, start_http
from skyserve_exec.system.channel import ChannelClosed
from skyserve_exec.system.proctree import signal_pid
from skyserve_exec.system.signals import name_of

FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 5.0
CALM_SECONDS = 10.0  # after so long alive, the next death starts the back-off anew
MOST_UNREAD = 64 << 20  # bytes an http process may leave unread before it counts as stuck

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class HttpChild:
    """One seat for an http process; `child` is None between a death and the next start."""

    index: int
    child: ChildProcess | None = None
    not_before: float = 0.0
    deaths: int = 0
    watched: bool = False


@dataclass(slots=True)
class HttpChildren:
    """All http processes of this server."""

    around: Surroundings
    count: int
    seats: list[HttpChild] = field(default_factory=list)
    welcome: Message | None = None
    restarts: int = 0

    def start(self, now: float) -> None:
        """The first start: as early as possible, since importing the web framework takes longest of all."""
        self.seats = [HttpChild(index) for index in range(self.count)]
        self.start_missing(now)

    def start_missing(self, now: float) -> None:
        for seat in self.seats:
            if seat.child is None and now >= seat.not_before:
                seat.child = start_http(self.around, now)
                seat.watched = False
                if self.welcome is not None:
                    self.tell(seat, self.welcome)

    def living(self) -> Iterator[HttpChild]:
        return (seat for seat in self.seats if seat.child is not None)

    def be_ready(self, welcome: Message) -> None:
        """Lets the http processes, which have imported everything by now, build their app and listen."""
        self.welcome = welcome
        self.tell_all(welcome)

    def tell_all(self, message: Message) -> None:
        for seat in self.living():
            self.tell(seat, message)

    def tell(self, seat: HttpChild, message: Message) -> None:
        """Says something to one http process, by the next `flush`; before its welcome it hears nothing."""
        if seat.child is None or self.welcome is None:
            return
        seat.child.channel.post(message)
        if seat.child.channel.outbox_bytes > MOST_UNREAD:
            log.error("http process %d has not read its messages for long: ending it", seat.child.pid)
            signal_pid(seat.child.pid, signal.SIGKILL)

    def flush(self) -> None:
        """Sends what was said in this turn: one system call for each http process."""
        for seat in self.living():
            if seat.child is not None and seat.child.channel.wants_write:
                try:
                    seat.child.channel.flush()
                except ChannelClosed:
                    continue  # it has died: the reaping sees to it

    def has_ended(self, pid: int, status: int, now: float, *, expected: bool) -> HttpChild | None:
        """Empties the seat of an http process that was reaped."""
        for seat in self.living():
            child = seat.child
            if child is None or child.pid != pid:
                continue
            child.has_ended(status)
            seat.child = None
            if not expected:
                self.restarts += 1
                seat.deaths = 0 if now - child.started_at > CALM_SECONDS else seat.deaths + 1
                seat.not_before = now + min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**seat.deaths)
                how = f"killed by {name_of(-status)}" if status < 0 else f"exit code {status}"
                log.error("http process %d ended (%s); starting another one", pid, how)
            return seat
        return None

    @property
    def problem(self) -> str:
        if self.seats and not any(self.living()) and max(seat.deaths for seat in self.seats) > 3:
            return "http processes end at their start"
        return ""
