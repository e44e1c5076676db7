"""The log of a job: follow it to the job's end, print it, find where its last lines begin.

Hundreds may run at once, so it imports next to nothing (no JSON parser) and waits with one fstat a look.

Room: the cluster's node; stdout is where the log shall go, and nothing but the job's own bytes goes there.
"""

from __future__ import annotations

import os
import select
import sys
import time

ENDED = (b"SUCCEEDED", b"FAILED", b"FAILED_SETUP", b"CANCELLED")
QUICK, SLOW = 0.02, 0.2  # seconds between two looks: right after output, and after a while without
GROWTH = 1.3
SCHEDULER_SECONDS = 2.0  # between two looks whether somebody schedules
CHUNK = 256 * 1024


class Follower:
    """One job's log and whether the job goes on."""

    def __init__(self, cluster: str, number: str, offset: int) -> None:
        self.cluster = cluster
        self.folder = os.path.join(cluster, "jobs", number)
        self.log = os.open(os.path.join(self.folder, "run.log"), os.O_RDONLY)
        self.offset = offset
        self.has_ended = False
        self.version: object = None  # of the state that was read last
        self.pin = -1  # readable when the job's shell has ended
        self.may_pin = True
        self.scheduler_seen = time.monotonic()

    def follow(self) -> None:
        """Writes what comes until the job has ended and all is written."""
        delay = QUICK
        while True:
            # Before the copy: all that the job wrote before its end is then copied.
            self.look()
            if self.copy():
                delay = QUICK
            elif self.has_ended:
                return
            else:
                delay = min(delay * GROWTH, SLOW)
            if not self.has_ended:
                delay = self.pause(delay)

    def copy(self) -> int:
        """Writes what is there and not yet written; how many bytes."""
        count = 0
        while os.fstat(self.log).st_size > self.offset:
            chunk = os.pread(self.log, CHUNK, self.offset)
            if not chunk:
                break
            write_out(chunk)
            count += len(chunk)
            self.offset += len(chunk)
        return count

    def look(self) -> None:
        """Reads the state if it is another one than before. While a pinned job runs, nothing is asked of the disk."""
        if self.pin >= 0:
            return
        try:
            found = os.stat(os.path.join(self.folder, "state"))
            version = (found.st_ino, found.st_mtime_ns)
            if version == self.version:
                return
            with open(os.path.join(self.folder, "state"), "rb") as file:
                facts = dict(line.rstrip(b",").partition(b": ")[::2] for line in file.read().split(b"\n"))
        except FileNotFoundError:
            self.has_ended = True  # the cluster was taken down
            return
        self.version = version
        self.has_ended = facts.get(b'"status"', b"").strip(b'"') in ENDED
        process = facts.get(b'"process"', b"").strip(b'"').split()
        if self.may_pin and not self.has_ended and len(process) == 3:
            self.pin = pin_of(int(process[0]), process[1])

    def pause(self, delay: float) -> float:
        """Waits that long or until the shell ends; how long to wait next."""
        if self.pin < 0:
            time.sleep(delay)
            self.wake_scheduler()
        elif select.select([self.pin], [], [], delay)[0]:
            # The state says a moment later that the job has ended: from here on look at it.
            os.close(self.pin)
            self.pin, self.may_pin, self.version = -1, False, None
            return QUICK
        return delay

    def wake_scheduler(self) -> None:
        """Jobs wait for ever when the scheduler was killed: now and then, make sure that there is one."""
        if time.monotonic() - self.scheduler_seen < SCHEDULER_SECONDS:
            return
        self.scheduler_seen = time.monotonic()
        try:
            os.close(os.open(os.path.join(self.cluster, "wake"), os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads it
            agent = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "agent.py")
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-S", "-E", agent, "--dir", self.cluster, "resume"])


def pin_of(pid: int, started: bytes) -> int:
    """A descriptor of that very process; -1 when it is gone, or where there are none (Python 3.8, an old kernel)."""
    try:
        pin = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[19] == started:
                return pin
    except (OSError, IndexError):
        pass
    os.close(pin)
    return -1


def write_out(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def tail_offset(path: str, lines: int) -> int:
    """Where the last `lines` lines begin, read from the end; a last line without a newline counts as one."""
    log = os.open(path, os.O_RDONLY)
    at = size = os.fstat(log).st_size
    missing = lines
    while at > 0 and missing > 0:
        start = max(0, at - CHUNK)
        block = os.pread(log, at - start, start)
        # The newline that ends the log begins no line.
        end = len(block) - 1 if at == size and block.endswith(b"\n") else len(block)
        while missing > 0 and end >= 0:
            end = block.rfind(b"\n", 0, end)
            if end >= 0:
                missing -= 1
                found = start + end + 1
        at = start
    os.close(log)
    return found if lines > 0 and missing == 0 else (size if lines <= 0 else 0)


def main(argv: list[str]) -> int:
    """follow|print|tail-offset --dir DIR --job N [--offset BYTES] [--lines K]"""
    options = dict(zip(argv[1::2], argv[2::2]))
    if argv[0] == "tail-offset":
        path = os.path.join(options["--dir"], "jobs", options["--job"], "run.log")
        print(tail_offset(path, int(options["--lines"])))
        return 0
    follower = Follower(options["--dir"], options["--job"], int(options.get("--offset", 0)))
    if argv[0] == "print":
        follower.copy()
    else:
        follower.follow()
    return 0
