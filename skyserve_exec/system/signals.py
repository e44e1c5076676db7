"""Signals as data: a handler only records, the loop acts.

Room: main thread of a process that runs a select loop.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType

ALL_CATCHABLE = frozenset(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}


class SignalBox:
    """Collects signals; its descriptor becomes readable when one has come."""

    def __init__(self, signums: Iterable[signal.Signals]) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._taken: list[int] = []
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for signum in signums:
            signal.signal(signum, self._record)

    def fileno(self) -> int:
        return self._read

    def take(self) -> list[int]:
        """The signals since the last call, in order."""
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            pass
        taken, self._taken = self._taken, []
        return taken

    def _record(self, signum: int, _frame: FrameType | None) -> None:
        self._taken.append(signum)


def restore_defaults() -> None:
    """Gives a fresh child default dispositions and an empty mask, whatever its parent had."""
    signal.set_wakeup_fd(-1)
    for signum in ALL_CATCHABLE:
        if signal.getsignal(signum) is not None and signal.getsignal(signum) is not signal.SIG_DFL:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # CPython's own convention: a broken pipe is an OSError, not a death.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def name_of(signum: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
