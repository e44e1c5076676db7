"""The processes of a job, found and ended as a whole (Linux /proc, proc(5)).

A process is known by its pid and start time: the pid alone may belong to somebody else by now.

Room: the cluster's node.
"""

from __future__ import annotations

import os
import signal


class Seen:
    """A living process; `started` is in clock ticks since boot."""

    __slots__ = ("group", "parent", "session", "started")

    def __init__(self, parent: int, group: int, session: int, started: int) -> None:
        self.parent = parent
        self.group = group
        self.session = session
        self.started = started


def look(pid: int) -> Seen | None:
    """The process that has this pid now; a zombie has ended, so it is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command stands in brackets and may itself hold brackets and spaces.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return Seen(int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def is_alive(pid: int, started: int) -> bool:
    seen = look(pid)
    return seen is not None and seen.started == started


def machine() -> str:
    """Changes with every boot of the machine or start of the container: pids from another one mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip() + "/" + os.readlink("/proc/self/ns/pid")


def processes_of(mark: str, leader: int, started: int) -> dict[int, Seen]:
    """All that carry the mark, are in the leader's session, or descend from one of these; by pid."""
    table = {}
    for name in os.listdir("/proc"):
        seen = look(int(name)) if name.isdigit() and int(name) != os.getpid() else None
        if seen is not None:
            table[int(name)] = seen
    # The kernel gives a number to nobody else while a session still bears it, so a stranger with the leader's pid
    # means that the session is empty.
    ours = leader if leader and (leader not in table or table[leader].started == started) else -1
    found = {pid for pid, seen in table.items() if seen.session == ours or is_marked(pid, mark)}
    grown = found
    while grown:
        grown = {pid for pid, seen in table.items() if seen.parent in found} - found
        found |= grown
    return {pid: table[pid] for pid in found}


def is_marked(pid: int, mark: str) -> bool:
    """Whether it was started with this variable, NAME=VALUE, in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return os.fsencode(mark) in file.read().split(b"\0")
    except OSError:
        return False


def send_all(found: dict[int, Seen], signum: int, leader: int = 0) -> None:
    """Signals each once; those in the leader's process group all at the same instant.

    One by one, a shell could start another child between the look and its own signal, and that one would get none.
    """
    if leader and any(seen.group == leader for seen in found.values()):
        try:
            os.killpg(leader, signum)
        except OSError:
            pass
    for pid, seen in found.items():
        if not leader or seen.group != leader:
            send(pid, seen.started, signum)


def send(pid: int, started: int, signum: int) -> None:
    """Signals exactly this process: it is pinned before its start time is looked at."""
    pin = pin_of(pid)
    try:
        if is_alive(pid, started):
            if pin >= 0:
                signal.pidfd_send_signal(pin, signum)
            else:
                os.kill(pid, signum)
    except OSError:
        pass  # gone meanwhile, or not ours to signal
    finally:
        if pin >= 0:
            os.close(pin)


def pin_of(pid: int) -> int:
    """A descriptor of the process that becomes readable when it ends; -1 without it (Python 3.8, an old kernel)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1
