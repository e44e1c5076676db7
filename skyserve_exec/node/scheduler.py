"""The one scheduler of a cluster: starts jobs in order, sees them end, ends them when asked, and leaves when idle.

It is the only writer of states, and nothing is lost when it dies: the jobs go on, their wrappers record the exit
codes, and the next scheduler adopts what still runs.

Room: the cluster's node, a daemon in a session of its own. Started by agent.py with the lock held.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time

from .directory import ENDED, Node, free_of, read, short_of, take, write, write_state
from .job_start import Start
from .processes import is_alive, look, machine, pin_of, processes_of, send_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
START_SECONDS = 0.1  # a signal is lost that comes between the fork and the exec of a shell that catches it
LOCK_SECONDS = 2.0
RETRY_SECONDS = 1.0  # after a failed write or fork
ENDING_SECONDS = 0.1  # between two looks at a job that is ending, and at one that cannot be waited for
PR_SET_CHILD_SUBREAPER = 36


class Job:
    """A pending or running job. `pid` and `started` are its wrapper's, which leads its session; 0 while pending."""

    def __init__(self, node: Node, number: int, state: dict[str, Any]) -> None:
        self.number = number
        self.state = state
        self.mark = "SKYSERVE_JOB_DIR=" + node.job(number)
        self.pid = self.started = 0
        self.is_child = False  # or adopted from an earlier scheduler
        self.pin = -1  # of an adopted wrapper: readable when it ends
        self.code: int | None = None  # of a child, once it has ended
        self.lost = "its processes are gone and left no exit code"
        self.born = 0.0
        self.kill_at: float | None = None
        self.cancelled = False

    @property
    def is_running(self) -> bool:
        return bool(self.state["status"] == "RUNNING")

    def is_over(self) -> bool:
        """Whether its wrapper has ended; what the wrapper's script left behind may still run."""
        return self.code is not None or not is_alive(self.pid, self.started)


class Scheduler:
    """`lock` is held. `run` returns when nothing is pending or running and the lock is given up."""

    def __init__(self, node: Node, lock: int) -> None:
        self.node = node
        self.lock = lock
        self.has: dict[str, float] = node.declared()["has"]
        self.jobs: dict[int, Job] = {}
        self.seen = node.ended_up_to()
        self.failing = False
        # Open for both so that the end of a writer is no end of file.
        self.wake = os.open(node.path("wake"), os.O_RDWR | os.O_NONBLOCK)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)

    def run(self, ready: int) -> None:
        """Closes `ready` after the first turn."""
        while True:
            self.failing = False
            self.admit()
            self.reap()
            self.take_cancels()
            for job in list(self.jobs.values()):
                self.guard(self.advance, job)
            self.start_what_fits()
            if ready >= 0:
                os.close(ready)
                ready = -1
            if self.jobs:
                self.wait()
            elif self.leave():
                return

    def admit(self) -> None:
        for number in self.node.numbers(self.seen):
            self.seen = number
            state = self.node.state(number)
            if state["status"] not in ENDED:
                self.jobs[number] = job = Job(self.node, number, state)
                if job.is_running:
                    adopt(job)

    def reap(self) -> None:
        """Takes the exit codes of wrappers, and buries orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for job in self.jobs.values():
                if job.is_child and job.pid == pid:
                    job.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def take_cancels(self) -> None:
        for name in os.listdir(self.node.path("cancel")):
            job = self.jobs.get(int(name)) if name.isdigit() else None
            if job is not None:
                # One that ended before it was asked has not been cancelled.
                job.cancelled = job.cancelled or not (job.is_running and job.is_over())
                self.guard(self.stop if job.is_running else self.settle, job)
            elif name.isdigit() and int(name) <= self.seen:
                os.unlink(self.node.path("cancel", name))

    def stop(self, job: Job) -> None:
        """SIGTERM to all of it, once; a later call may only shorten the grace."""
        grace = float(read(self.node.path("cancel", str(job.number))) or GRACE) if job.cancelled else GRACE
        if job.kill_at is None:
            if not job.is_over() and time.monotonic() < job.born + START_SECONDS:
                return
            send_all(processes_of(job.mark, job.pid, job.started), signal.SIGTERM, job.pid)
            job.kill_at = time.monotonic() + grace
        job.kill_at = min(job.kill_at, time.monotonic() + grace)

    def advance(self, job: Job) -> None:
        """Ends what a finished script left behind and what outstays its grace; settles a job without processes."""
        if not job.is_running or not (job.is_over() or job.kill_at):
            return
        left = processes_of(job.mark, job.pid, job.started) if job.pid else {}
        if not left and job.is_over():
            self.settle(job)
        elif job.kill_at is None:
            self.stop(job)
        elif time.monotonic() >= job.kill_at:
            send_all(left, signal.SIGKILL)

    def settle(self, job: Job) -> None:
        """Writes how the job ended: the last thing that happens to it."""
        status, code, reason = self.outcome(job)
        state = dict(job.state, status=status, exit_code=code, reason=reason, ended_at=time.time())
        write_state(self.node.job(job.number), state)
        del self.jobs[job.number]
        if job.pin >= 0:
            os.close(job.pin)
        # The environment may hold secrets and is needed no more.
        for path in (self.node.job(job.number, "job.json"), self.node.path("cancel", str(job.number))):
            if os.path.exists(path):
                os.unlink(path)

    def outcome(self, job: Job) -> tuple[str, int | None, str | None]:
        if not job.is_running:
            return ("CANCELLED", None, "cancelled in the queue") if job.cancelled else ("FAILED_SETUP", None, job.lost)
        try:
            recorded = read(self.node.job(job.number, "exit_code"))
        except OSError:
            recorded = ""
        if recorded.startswith("!"):
            return "FAILED_SETUP", None, "cannot be started: " + recorded[1:]
        # Without a newline nothing was recorded; behind it stands what is left of the placeholder.
        code = int(recorded.partition("\n")[0]) if "\n" in recorded else job.code
        if job.cancelled:
            return "CANCELLED", code, "cancelled"
        if code is None:
            return "FAILED", None, job.lost
        if code > 128:
            return "FAILED", code, f"exit code {code}: killed by signal {code - 128}, or a command in it was"
        return ("FAILED", code, f"exit code {code}") if code else ("SUCCEEDED", 0, None)

    def start_what_fits(self) -> None:
        """Strictly in order: a job that must wait lets nobody pass, so that a large one is not starved."""
        for job in list(self.jobs.values()):
            free = free_of(self.has, {job.number: job.state for job in self.jobs.values()})
            if not job.is_running:
                if short_of(job.state["resources"], free) or self.failing:
                    return
                self.guard(self.start, job)

    def start(self, job: Job) -> None:
        try:
            private = json.loads(read(self.node.job(job.number, "job.json")))
        except (FileNotFoundError, ValueError) as error:
            job.lost = f"its files are damaged: {error}"
            return self.settle(job)
        with Start(self.node, job.number, job.state, private) as pid:
            seen = look(pid)
            started = seen.started if seen else 0
            state = dict(job.state, status="RUNNING", started_at=time.time())
            state["process"] = f"{pid} {started} {machine()}"
            # Durable before it starts: no job is ever started twice.
            write_state(self.node.job(job.number), state, durable=True)
            job.pid, job.started, job.state, job.is_child = pid, started, state, True
            job.born = time.monotonic()
        return None

    def guard(self, step: Any, job: Job) -> None:
        """A full disk or a lack of processes must not end the scheduler: the step is done again a little later."""
        try:
            step(job)
        except OSError as error:
            self.failing = True
            with contextlib.suppress(OSError):  # the log is on the same disk
                print(f"job {job.number}: {step.__name__}: {error}", file=sys.stderr, flush=True)

    def wait(self) -> None:
        """Until a verb, a child or an adopted wrapper says something, or the clock does."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        seconds = [RETRY_SECONDS] if self.failing else []
        for job in self.jobs.values():
            if job.cancelled or job.kill_at is not None or (job.is_running and not job.is_child and job.pin < 0):
                seconds.append(ENDING_SECONDS)
            elif job.pin >= 0:
                poll.register(job.pin, select.POLLIN)
        poll.poll(min(seconds) * 1000 if seconds else None)
        try:
            while os.read(self.wake, 4096):
                pass
        except BlockingIOError:
            pass

    def leave(self) -> bool:
        """Gives up the lock; False when a job has come in that very moment and the lock could be had again."""
        write(self.node.path("ended"), str(self.seen))
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        # Whoever queued a job before this look found the lock taken and relied on us; after it, finds it free.
        if not self.node.numbers(self.seen):
            return True
        return not take(self.lock)


def adopt(job: Job) -> None:
    """Takes over a job that an earlier scheduler started."""
    process = (job.state["process"] or "").split()
    if len(process) != 3 or process[2] != machine():
        job.lost = "the machine or container was restarted while it ran"
        return
    job.pid, job.started = int(process[0]), int(process[1])
    if is_alive(job.pid, job.started):
        job.pin = pin_of(job.pid)


def main(argv: list[str]) -> int:
    """DIR LOCK READY: the cluster, the locked descriptor, and a pipe to close after the first turn."""
    node, lock, ready = Node(argv[0]), int(argv[1]), int(argv[2])
    # No job may inherit them: the lock would outlive the scheduler.
    os.set_inheritable(lock, False)
    os.set_inheritable(ready, False)
    # On NFS a lock is not inherited but the process's own: then it is taken here, or somebody else has it.
    deadline = time.monotonic() + LOCK_SECONDS
    while not take(lock):
        if time.monotonic() > deadline:
            return 0
        time.sleep(0.01)
    # Orphans of jobs come to this process and not to pid 1, so that they are found, ended and buried.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    Scheduler(node, lock).run(ready)
    return 0
