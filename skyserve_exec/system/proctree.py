"""Who descends from whom, and how to end whole trees (Linux /proc, proc(5)).

A process is identified by pid and start time: a pid alone may belong to somebody else by the time it is signalled.

Room: every process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUN_MARKER = "SKYSERVE_RUN_ID"
DETACHED_MARKER = "SKYSERVE_DETACHED"


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that is not mistaken for a later one with the same pid. `start_time` is in clock ticks since boot."""

    pid: int
    start_time: int

    @property
    def is_alive(self) -> bool:
        """True while it runs; a zombie counts as ended."""
        return start_time_of(self.pid) == self.start_time and state_of(self.pid) not in {"Z", "X", ""}


def identity_of(pid: int) -> Identity | None:
    """The process that has this pid now."""
    started = start_time_of(pid)
    return None if started is None else Identity(pid, started)


def start_time_of(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when there is no such process."""
    stat = _stat_fields(pid)
    return int(stat[19]) if stat else None


def state_of(pid: int) -> str:
    """R, S, D, T, Z ...; empty when there is no such process."""
    stat = _stat_fields(pid)
    return stat[0] if stat else ""


def parent_of(pid: int) -> int | None:
    stat = _stat_fields(pid)
    return int(stat[1]) if stat else None


def children_of(pid: int) -> list[int]:
    """Direct children, of all threads of the process."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return found


def descendants_of(pid: int) -> Iterator[int]:
    """Everything below the process, parents first; detached jobs and what is below them are left out."""
    for child in children_of(pid):
        if not is_detached(child):
            yield child
            yield from descendants_of(child)


def is_detached(pid: int) -> bool:
    """True for a user's job that is meant to outlive the server."""
    return has_environment(pid, DETACHED_MARKER, "1")


def has_environment(pid: int, name: str, value: str) -> bool:
    """Whether the process was started with this environment variable; False when that cannot be read."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{name}={value}".encode() in block.split(b"\0")


def kill_orphans(known: frozenset[int] | set[int]) -> int:
    """Kills (SIGKILL) every child of this process that it does not know and that is not detached; returns how many.

    Orphans come to a child subreaper one generation at a time, so call again after each reap until it returns 0.
    """
    count = 0
    for pid in children_of(os.getpid()):
        if pid not in known and state_of(pid) not in {"Z", "X", ""} and not is_detached(pid):
            signal_pid(pid, signal.SIGKILL)
            count += 1
    return count


def marked_processes(run_id: str) -> list[int]:
    """Every process on the machine that carries this server's run marker."""
    own = os.getpid()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if pid != own and has_environment(pid, RUN_MARKER, run_id)]


def signal_pid(pid: int, signum: int) -> bool:
    """Sends a signal; False when the process is gone or not ours."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def private_pages(pid: int | str = "self") -> int:
    """Bytes of memory that are resident and not file-backed (statm(5) resident minus shared)."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def thread_count(pid: int | str = "self") -> int:
    # The kernel counts the threads into the folder's links, which start at 2 (proc_task_getattr in fs/proc/base.c).
    return os.stat(f"/proc/{pid}/task").st_nlink - 2  # noqa: PTH116 (after every request: pathlib is slow)


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the command, which may itself hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text[text.rfind(")") + 2 :].split()
