"""What /proc says about the processes of a test; finds them by a mark in their environment, wherever they moved."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.waiting import wait_gone

MARK = "SKYSERVE_TEST_MARK"
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Seen:
    """One process at one moment; `title` is its command line, as ps shows it."""

    pid: int
    parent: int
    state: str
    title: str
    environment: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.pid} ({self.state}, child of {self.parent}): {self.title}"

    @property
    def is_zombie(self) -> bool:
        return self.state == "Z"

    @property
    def is_detached(self) -> bool:
        """A job that may outlive its server."""
        return "SKYSERVE_DETACHED=1" in self.environment


def look(pid: int) -> Seen | None:
    """The process as it is now, None when there is none."""
    try:
        # The name in parentheses may hold anything, so the fields start after the last one.
        state, parent = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        title = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    try:
        environment = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        environment = []
    return Seen(pid, int(parent), state, title, tuple(environment))


def everything() -> list[Seen]:
    """All processes of this machine that we may look at."""
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return [seen for pid in pids if (seen := look(pid)) is not None]


def marked(mark: str) -> list[Seen]:
    """The living processes that carry the run mark, also those that moved under another parent."""
    wanted = f"{MARK}={mark}"
    return [seen for seen in everything() if wanted in seen.environment and not seen.is_zombie]


def children(pid: int) -> list[Seen]:
    return [seen for seen in everything() if seen.parent == pid]


def tree(pid: int) -> list[Seen]:
    """The process and all its descendants, parents first."""
    all_of_them = everything()
    found = [seen for seen in all_of_them if seen.pid == pid]
    for ancestor in found:
        found.extend(seen for seen in all_of_them if seen.parent == ancestor.pid)
    return found


def zombies(pid: int) -> list[Seen]:
    """Dead descendants that nobody has waited for."""
    return [seen for seen in tree(pid) if seen.is_zombie]


def alive(pid: int) -> bool:
    """Whether the pid is a process that still runs (a zombie does not)."""
    seen = look(pid)
    return seen is not None and not seen.is_zombie


def titled(pid: int, start: str) -> list[Seen]:
    """The descendants whose title starts so, such as 'sky: executor short'."""
    return [seen for seen in tree(pid) if seen.title.startswith(start)]


def descriptors(pid: int) -> dict[int, str]:
    """Open descriptors and what they are."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for entry in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = str(entry.readlink())
    return found


def status_field(pid: int, name: str) -> str:
    """One line of /proc/PID/status, such as SigIgn, Threads or VmRSS."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise KeyError(name)


def signals_in(pid: int, name: str) -> set[signal.Signals]:
    """The signals in a mask of /proc/PID/status: SigIgn, SigBlk or SigCgt."""
    mask = int(status_field(pid, name), 16)
    return {number for number in signal.Signals if mask >> (number - 1) & 1}


def rss_of(pid: int) -> int:
    """Resident bytes."""
    return int(psutil.Process(pid).memory_info().rss)


def cpu_seconds(pids: list[int]) -> float:
    """User and system time that these processes have used so far."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def kill_all(seen: list[Seen]) -> None:
    """Ends processes that a test has found by its own mark."""
    for process in seen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    wait_gone(lambda: [process for process in seen if alive(process.pid)], what="killed processes")
