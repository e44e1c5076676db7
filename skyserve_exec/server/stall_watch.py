"""Notices that the event loop is blocked, and says by which line and for how long.

Room: http process. A thread watches; the loop only ticks. A process that was stopped as a whole is no stall: then the
watching thread was late as well.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from pathlib import Path
from types import FrameType

log = logging.getLogger(__name__)
MOST_SECONDS = 30.0  # a longer one is reported again
OWN_FILES = ("asyncio/", "uvloop/", "threading.py", "selectors.py")


class StallWatch:
    """The watch over one loop. `count`, `longest` (seconds): what it has seen."""

    def __init__(self, stall_seconds: float) -> None:
        self._limit = stall_seconds
        self._interval = stall_seconds / 4
        self._ticked = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall watch", daemon=True)
        self._loop_thread = 0
        self.count = 0
        self.longest = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to watch; called on the loop's own thread."""
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._tick()
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        if not self._over.is_set():
            self._loop.call_later(self._interval, self._tick)

    def _watch(self) -> None:
        woken, worked = time.monotonic(), time.process_time()
        while not self._over.wait(self._interval):
            late = time.monotonic() - woken - self._interval
            busy = time.process_time() - worked
            # Late and idle: the whole process was stopped, or the machine. Late and busy: C code held the interpreter.
            stopped = late > self._limit / 2 and busy < late / 4
            if time.monotonic() - self._ticked > self._limit and not stopped:
                self._report(self._ticked)
            woken, worked = time.monotonic(), time.process_time()

    def _report(self, last_tick: float) -> None:
        where = _blocking_frame(sys._current_frames().get(self._loop_thread))
        while self._ticked == last_tick and time.monotonic() - last_tick < MOST_SECONDS and not self._over.wait(0.005):
            pass
        seconds = time.monotonic() - last_tick
        self.count += 1
        self.longest = max(self.longest, seconds)
        log.warning("the event loop was blocked for %.2f s at %s", seconds, where)


def _blocking_frame(frame: FrameType | None) -> str:
    """The innermost line, and the outermost one of the loop's callback, on one line."""
    names: list[str] = []
    while frame is not None:
        path = frame.f_code.co_filename
        if not any(part in path for part in OWN_FILES):
            names.append(f"{'/'.join(Path(path).parts[-2:])}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(names[:4]) or "an unknown frame"
