"""The cluster's directory: names, facts, and writing them so that no reader ever sees half of one.

    DIR/agent/           this package, copied
    DIR/cluster.json     what the cluster has, as declared
    DIR/workdir/         where jobs start
    DIR/jobs/N/          one job: state (facts), job.json (its environment, until it has ended), run.sh, run.log,
                         exit_code (written by the job's own wrapper)
    DIR/cancel/N         somebody wants job N to end; holds its grace in seconds
    DIR/scheduler.lock   held (flock) by the one scheduler, which alone writes states; free: nobody schedules
    DIR/wake             a fifo: a byte in it wakes the scheduler
    DIR/ended            no job up to this number is pending or running
    DIR/closed           the cluster goes down and takes no more jobs

A directory per job and no database: a rename is atomic on every file system, the kernel's lock names the one writer,
a follower reads a state without a driver, and a damaged job damages no other.

Room: the cluster's node.
"""

from __future__ import annotations

import fcntl
import json
import os

TYPE_CHECKING = False  # to import typing costs every verb 4 ms and half a megabyte
if TYPE_CHECKING:
    from typing import Any

ENDED = ("SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED")
FACTS = ("name", "status", "submitted_at", "started_at", "ended_at", "exit_code", "reason", "resources", "process")
TINY = 1e-6  # so that ten times 0.1 fit into 1


class Refused(Exception):
    """The verb cannot be done; `kind` is the class of the error in the project."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Node:
    """One cluster directory. `mark` is in the environment of everything started for the cluster."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.mark = "SKYSERVE_CLUSTER_DIR=" + self.root

    def path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def job(self, number: int, *names: str) -> str:
        return os.path.join(self.root, "jobs", str(number), *names)

    def declared(self) -> dict[str, Any]:
        """The cluster's `name` and what it `has`."""
        try:
            return dict(json.loads(read(self.path("cluster.json"))))
        except FileNotFoundError:
            raise Refused("NotFound", "there is no cluster in " + self.root) from None

    def numbers(self, above: int = 0) -> list[int]:
        """The numbers of the jobs, oldest first. They have no gaps and are never used twice."""
        return sorted(int(name) for name in os.listdir(self.path("jobs")) if name.isdigit() and int(name) > above)

    def state(self, number: int) -> dict[str, Any]:
        """The facts of a job; one whose facts cannot be read has failed."""
        try:
            return dict(json.loads(read(self.job(number, "state"))))
        except (OSError, ValueError) as error:
            damage = f"its state cannot be read: {error}"
            return dict(dict.fromkeys(FACTS), status="FAILED", resources={}, reason=damage)

    def active(self) -> dict[int, dict[str, Any]]:
        """What is pending or running, oldest first."""
        states = {number: self.state(number) for number in self.numbers(self.ended_up_to())}
        return {number: state for number, state in states.items() if state["status"] not in ENDED}

    def ended_up_to(self) -> int:
        try:
            return int(read(self.path("ended")))
        except (OSError, ValueError):
            return 0


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path: str, text: str, durable: bool = False) -> None:
    """Replaces the file in one step, mode 0600: a reader sees the old text or the new one."""
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(path + ".new", path)


def write_state(folder: str, state: dict[str, Any], durable: bool = False) -> None:
    # One fact a line: a follower finds the two it needs without a JSON parser.
    lines = ",\n".join(json.dumps(key) + ": " + json.dumps(value) for key, value in state.items())
    write(os.path.join(folder, "state"), "{\n" + lines + "\n}\n", durable)


def sync(folder: str) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def open_lock(node: Node) -> int:
    """Of the scheduler; a descriptor, not taken yet."""
    return os.open(node.path("scheduler.lock"), os.O_RDWR | os.O_CREAT, 0o600)


def take(lock: int) -> bool:
    """Takes the lock if nobody has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def amounts(spec: dict[str, Any], cpus: float, memory: float) -> dict[str, float]:
    """What a cluster has or a job takes: cpus, memory in GB, and accelerators by their names."""
    table = {name: float(count) for name, count in (spec.get("accelerators") or {}).items()}
    return dict(table, cpus=float(spec.get("cpus") or cpus), memory=float(spec.get("memory") or memory))


def short_of(takes: dict[str, float], free: dict[str, float]) -> list[str]:
    """Of what a job needs more than there is."""
    return [name for name, amount in takes.items() if amount > free.get(name, 0) + TINY]


def free_of(has: dict[str, float], states: dict[int, dict[str, Any]]) -> dict[str, float]:
    """What the running jobs leave."""
    free = dict(has)
    for state in states.values():
        if state["status"] == "RUNNING":
            for name, amount in state["resources"].items():
                free[name] = free.get(name, 0) - amount
    return free
