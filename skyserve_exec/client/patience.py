"""How long a client goes on when its server does not answer, and what it says about it.

Room: the user's process. Pure: the clock is an argument, pauses are effects of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from skyserve_exec.client.wire import Answer, Broken, error_of, retry_after
from skyserve_exec.errors import ServerUnreachable, SkyserveError

PATIENCE_SECONDS = 60.0
TRY_AGAIN = frozenset({429, 502, 503, 504})
PAUSES = (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)  # the first retry is at once: a cut stream is missed after a second


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds, then look where the server is now."""

    seconds: float


class Patience:
    """One party's patience with one server. An outage begins with a failure and ends with progress."""

    def __init__(self, seconds: float, clock: Callable[[], float], notify: Callable[[str], None], met: bool) -> None:
        self._seconds, self._clock, self._notify = seconds, clock, notify
        self._since: float | None = None
        self._tries = 0
        self._told = False
        self.met = met  # the server has answered before: it is worth waiting for
        self.deadline: float | None = None  # the caller's own, if it is sooner
        self.outages = 0

    def progress(self) -> None:
        """The server answers."""
        if self._told:
            self._notify("The server answers again.")
        self.met = True
        self._since, self._tries, self._told = None, 0, False

    def endure(self, fault: Broken | Answer) -> Generator[Pause, None, None]:
        """Waits a little before the next try.

        Raises:
            SkyserveError: the patience is over.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
            self.outages += 1
        until = self._since + self._seconds
        left = (until if self.deadline is None else min(until, self.deadline)) - now
        self.met = self.met or (isinstance(fault, Broken) and fault.reached)
        if left <= 0 or not self.met:
            raise meaning(fault)
        pause = PAUSES[min(self._tries, len(PAUSES) - 1)]
        if isinstance(fault, Answer):
            pause = max(pause, float(retry_after(fault) or 0))
        # A short cut is nobody's business; one that lasts is said once.
        if self._tries and not self._told and not (isinstance(fault, Broken) and fault.idle):
            self._told = True
            self._notify(f"The server does not answer ({_reason(fault)}); trying again for up to {self._seconds:g} s.")
        self._tries += 1
        yield Pause(min(pause, max(left, 0.05)))


def meaning(fault: Broken | Answer) -> SkyserveError:
    """The error to raise when nothing more is tried."""
    if isinstance(fault, Answer):
        return error_of(fault)
    return ServerUnreachable(f"the server at {fault.url} does not answer: {fault.reason}")


def _reason(fault: Broken | Answer) -> str:
    return fault.reason if isinstance(fault, Broken) else error_of(fault).message
