"""How an executor was when it started, and putting it back after a request.

What can be put back is put back; what cannot (children or threads left over, memory grown) makes the executor leave,
so that the next request never sees it.

Room: executor process, main thread.
"""

from __future__ import annotations

import _signal  # what signal.getsignal asks, without the enum put around each answer: 62 of them, for every request
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyserve_exec.settings import MIB, Settings
from skyserve_exec.system import fds, proctree
from skyserve_exec.system.signals import ALL_CATCHABLE

LEFTOVER_SECONDS = 1.0  # what a request leaves running may clean up so long after SIGTERM
POLL_SECONDS = 0.01
LOOK_AT_DESCRIPTORS = 20  # requests between two looks
SPARE_DESCRIPTORS = 64  # a library may keep connections open


@dataclass(slots=True)
class Baseline:
    """The state at the start. `served` counts requests; `started` is monotonic seconds."""

    environ: dict[str, str]
    raw_environment: dict[Any, Any]
    directory: str
    umask: int
    handlers: dict[signal.Signals, Any]
    logging: LoggingState
    descriptors: int
    path: list[str]
    filters: list[Any]
    memory: int
    peak: int
    started: float
    served: int = field(default=0)

    @classmethod
    def take(cls) -> Baseline:
        umask = os.umask(0o077)
        os.umask(umask)
        return cls(
            environ=dict(os.environ),
            raw_environment=dict(_raw_environment()),
            directory=str(Path.cwd()),
            umask=umask,
            handlers={number: _signal.getsignal(number) for number in ALL_CATCHABLE},
            logging=LoggingState.take(),
            descriptors=len(fds.open_descriptors()),
            path=list(sys.path),
            filters=list(warnings.filters),
            memory=proctree.private_pages(),
            peak=_peak_memory(),
            started=time.monotonic(),
        )

    def restore(self, settings: Settings, *, interrupted: bool) -> str:
        """Puts everything back; why this executor must not be used again, empty when it may."""
        self.served += 1
        why = _end_leftover_children()
        self._restore_process()
        self.logging.restore()
        if interrupted:
            return "was interrupted"
        return why or self._outworn(settings)

    def _restore_process(self) -> None:
        if _raw_environment() != self.raw_environment:
            os.environ.clear()
            os.environ.update(self.environ)
        os.chdir(self.directory)
        os.umask(self.umask)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, action in self.handlers.items():
            if action is not None and _signal.getsignal(number) is not action:
                signal.signal(number, action)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        sys.path[:] = self.path
        warnings.filters = list(self.filters)
        socket.setdefaulttimeout(None)
        threading.settrace(None)
        sys.settrace(None)

    def _outworn(self, settings: Settings) -> str:
        if threading.active_count() > 1 or proctree.thread_count() > 1:
            return "a thread was left running"
        grown = self._grown(settings.recycle_mb * MIB)
        if grown:
            return f"its memory grew by {grown // MIB} MB"
        if (
            self.served % LOOK_AT_DESCRIPTORS == 0
            and len(fds.open_descriptors()) > self.descriptors + SPARE_DESCRIPTORS
        ):
            return "descriptors were left open"
        if self.served >= settings.recycle_requests:
            return f"served {self.served} requests"
        if time.monotonic() - self.started >= settings.recycle_seconds:
            return "is old"
        return ""

    def _grown(self, limit: int) -> int:
        """By how many bytes, if more than the limit: looked up only when the peak says that it may be."""
        if _peak_memory() - self.peak <= limit:
            return 0
        grown = proctree.private_pages() - self.memory
        return grown if grown > limit else 0


@dataclass(frozen=True, slots=True)
class LoggingState:
    """Root logger's level and handlers, and the ones of every logger known at the start."""

    loggers: dict[str, tuple[int, tuple[logging.Handler, ...], bool, bool]]
    disabled: int

    @classmethod
    def take(cls) -> LoggingState:
        return cls({name: _state_of(logger) for name, logger in _all_loggers().items()}, logging.root.manager.disable)

    def restore(self) -> None:
        logging.disable(self.disabled)
        fresh = (logging.NOTSET, (), True, False)
        for name, logger in _all_loggers().items():
            wanted = self.loggers.get(name, fresh)
            if _state_of(logger) == wanted:
                continue
            logger.setLevel(wanted[0])
            logger.handlers[:] = wanted[1]
            logger.propagate, logger.disabled = wanted[2], wanted[3]


def _all_loggers() -> dict[str, logging.Logger]:
    named = {name: item for name, item in logging.root.manager.loggerDict.items() if isinstance(item, logging.Logger)}
    return named | {"": logging.root}


def _state_of(logger: logging.Logger) -> tuple[int, tuple[logging.Handler, ...], bool, bool]:
    return logger.level, tuple(logger.handlers), logger.propagate, logger.disabled


def _raw_environment() -> dict[Any, Any]:
    """The dict behind os.environ: compared in a microsecond, where os.environ itself takes fifty."""
    return vars(os.environ).get("_data") or dict(os.environ)


def _peak_memory() -> int:
    """The most bytes that were resident (getrusage(2))."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _end_leftover_children() -> str:
    """Ends processes the request left behind. The executor is a subreaper: double-forked ones are its children too."""
    if not _has_children():
        return ""
    found = list(proctree.descendants_of(os.getpid()))
    if not found:
        return "a detached process was started"
    for pid in found:
        proctree.signal_pid(pid, signal.SIGTERM)
    deadline = time.monotonic() + LEFTOVER_SECONDS
    while _has_children() and time.monotonic() < deadline and any(proctree.descendants_of(os.getpid())):
        time.sleep(POLL_SECONDS)
    for pid in proctree.descendants_of(os.getpid()):
        proctree.signal_pid(pid, signal.SIGKILL)
    return f"{len(found)} processes were left running"


def _has_children() -> bool:
    """Reaps what has ended and says whether any child is left: one system call when there is none."""
    while True:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
