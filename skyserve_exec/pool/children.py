"""Starting serve's own children: http processes and the spawner, each a fresh interpreter with a channel to serve.

exec and not fork: a fork would hand on serve's descriptors and memory, and the locks of any thread it has by then.

Room: serve, main thread: the children's parent-death signal follows the thread that starts them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from skyserve_exec import settings as settings_module
from skyserve_exec.logsetup import TERMINAL_MARKER
from skyserve_exec.settings import Settings
from skyserve_exec.system.channel import Channel
from skyserve_exec.system.proctree import DETACHED_MARKER, RUN_MARKER

# One request shall not take all cores because a numeric library counts them: whoever wants more sets these.
THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every child gets: settings, the run marker, and where its stray output goes."""

    settings: Settings
    boot_id: str
    log_descriptor: int | None  # None: the terminal
    listener: socket.socket


@dataclass(slots=True)
class ChildProcess:
    """A started child. Its end is seen by serve's reaping, not by subprocess."""

    process: subprocess.Popen[bytes]
    channel: Channel
    started_at: float

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_ended(self, status: int) -> None:
        """Tells subprocess that somebody else has reaped it."""
        self.process.returncode = status
        self.channel.close()


def start_http(around: Surroundings, now: float) -> ChildProcess:
    return _start("skyserve_exec.server", around, now, gets_listener=True)


def start_spawner(around: Surroundings, now: float) -> ChildProcess:
    return _start("skyserve_exec.executor", around, now, gets_listener=False)


def _start(module: str, around: Surroundings, now: float, *, gets_listener: bool) -> ChildProcess:
    ours, theirs = socket.socketpair()
    listener = around.listener.fileno() if gets_listener else None
    told = settings_module.for_child(around.settings, channel=theirs.fileno(), listener=listener, parent=os.getpid())
    environment = dict.fromkeys(THREAD_LIMITS, "1") | dict(os.environ) | told | {RUN_MARKER: around.boot_id}
    environment["SPT_NOENV"] = "1"
    environment.pop(DETACHED_MARKER, None)  # a server started from inside a job is no job
    if around.log_descriptor is None:
        environment[TERMINAL_MARKER] = "1"
    with theirs:
        process = subprocess.Popen(
            # -P: the directory the server was started in must not shadow the modules it needs.
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.DEVNULL,
            stdout=around.log_descriptor,
            stderr=around.log_descriptor,
            pass_fds=[theirs.fileno()] + ([listener] if listener is not None else []),
            env=environment,
            start_new_session=True,
        )
    return ChildProcess(process, Channel(ours), now)
