"""Starts what is measured in private places and ends all of it, however a run goes.

Room: the benchmark's processes. The only module that starts or signals processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36
DROPPED = ("PYTHON", "SKY", "CELERY", "REDIS", "HUEY", "XDG_")


class DidNotHappen(Exception):
    """A wait ran into its deadline."""


class Launched:
    """One process in a session of its own, its output in a file of its private directory."""

    def __init__(self, argv: Sequence[str], place: Path, more: Mapping[str, str] | None = None) -> None:
        self.log = place / f"{Path(argv[2] if argv[1] == '-m' else argv[0]).name}.out"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                argv,
                cwd=place,
                env=environment(place, more),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tree(self) -> list[psutil.Process]:
        """The process and all its descendants, oldest first."""
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def check_alive(self) -> None:
        """
        Raises:
            DidNotHappen: the process ended; the message has the end of its output.
        """
        if self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise DidNotHappen(f"{self.process.args!r} ended with {self.process.returncode}: {tail}")

    def stop(self, seconds: float = 20.0) -> float:
        """SIGTERM, then SIGKILL for whatever of its tree is left after `seconds`; returns the time it took."""
        begin = time.monotonic()
        family = self.tree()
        if self.process.poll() is None:
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        _gone, left = psutil.wait_procs(family, max(0.1, seconds - (time.monotonic() - begin)))
        took = time.monotonic() - begin
        kill_all(left)
        return took


def environment(place: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """A clean environment: no settings of the user's shell, a private home, and the benchmarks importable."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(DROPPED)}
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        kept.pop(name, None)
    return kept | {"HOME": str(place), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"} | dict(more or {})


def wait_until(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.002) -> None:
    """Returns as soon as the condition holds.

    Raises:
        DidNotHappen: it did not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise DidNotHappen(f"not within {seconds:g} s: {what}")
        time.sleep(pause)


def fresh_place() -> Path:
    """A new directory below this process's own temporary directory."""
    return Path(tempfile.mkdtemp(prefix="run-"))


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def adopt_orphans() -> None:
    """Makes this process the parent of every orphan below it, so that `end_descendants` misses none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def end_descendants() -> list[str]:
    """Kills every process below this one, whatever its session; returns their command lines."""
    ended: list[str] = []
    for _ in range(50):  # what dies may leave orphans, which come to this process
        left = psutil.Process().children(recursive=True)
        if not left:
            break
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                ended.append(" ".join(process.cmdline())[:200] or process.name())
        kill_all(left)
    return ended


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL and the wait for it; psutil refuses a pid that was given to another process meanwhile."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, 5)
