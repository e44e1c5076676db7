"""The job queue's verbs: every one is a short process, any number of them run at once.

What is queued and what is to be cancelled is written into the directory, then the scheduler is woken, or started if
there is none; scheduler.py alone decides and writes states.

Room: the cluster's node, `python3 -S -E agent.py --dir DIR VERB`. JSON on stdin and stdout. Exit code 3: refused.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
import time

from .directory import (
    ENDED,
    FACTS,
    Node,
    Refused,
    amounts,
    free_of,
    open_lock,
    short_of,
    sync,
    take,
    write,
    write_state,
)
from .processes import processes_of, send_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_CPUS = 0.5
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
PATIENCE = 10.0  # seconds a verb waits for the scheduler, beyond a grace
REFUSED = 3


def init(node: Node, options: dict[str, str], words: list[str]) -> Any:
    """Declares what the cluster has (JSON on stdin), once; what is not declared is what the machine has."""
    for folder in ("", "jobs", "cancel", "workdir"):
        os.makedirs(node.path(folder), mode=0o700, exist_ok=True)
    if not os.path.exists(node.path("wake")):
        os.mkfifo(node.path("wake"), 0o600)
    if not os.path.exists(node.path("cluster.json")):
        spec = json.load(sys.stdin)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
        has = amounts(spec, len(os.sched_getaffinity(0)), round(memory, 1))
        write(node.path("cluster.json"), json.dumps({"name": spec["name"], "has": has}), durable=True)
    if os.path.exists(node.path("closed")):
        os.unlink(node.path("closed"))
    return node.declared()


def submit(node: Node, options: dict[str, str], words: list[str]) -> Any:
    """Queues a job (JSON on stdin: name, run, envs, cpus, memory, accelerators, workdir); durable when it answers."""
    spec, has = json.load(sys.stdin), node.declared()["has"]
    takes = amounts(spec, min(DEFAULT_CPUS, has["cpus"]), 0)
    for name in short_of(takes, has):
        raise Refused("BadInput", f"the job needs {takes[name]:g} {name}; the cluster has {has.get(name, 0):g}")
    folder = node.path("jobs", f".new-{os.getpid()}-{time.time_ns()}")
    os.mkdir(folder, 0o700)
    write(os.path.join(folder, "run.sh"), spec["run"], durable=True)
    write(os.path.join(folder, "run.log"), "")
    private = {"envs": spec.get("envs") or {}, "workdir": spec.get("workdir") or node.path("workdir")}
    write(os.path.join(folder, "job.json"), json.dumps(private), durable=True)
    state = dict(dict.fromkeys(FACTS), name=spec.get("name"), status="PENDING", submitted_at=time.time())
    write_state(folder, dict(state, resources=takes), durable=True)
    sync(folder)
    number = max(node.numbers(), default=0) + 1
    while not os.path.exists(node.path("closed")):
        try:
            # Fails when the number is taken, since that directory is not empty: so numbers need no lock.
            os.rename(folder, node.job(number))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            number += 1
        else:
            sync(node.path("jobs"))
            ensure_scheduler(node)
            return {"job_id": number}
    raise Refused("Conflict", "the cluster is being taken down")


def queue(node: Node, options: dict[str, str], words: list[str]) -> Any:
    """All jobs, or only the active ones (--active), oldest first."""
    ensure_scheduler(node, wait=True)
    states = node.active() if "--active" in options else {number: node.state(number) for number in node.numbers()}
    return explained(node, states)


def status(node: Node, options: dict[str, str], words: list[str]) -> Any:
    """The jobs with these numbers, or the latest one."""
    ensure_scheduler(node, wait=True)
    wanted = known(node, words) if words else node.numbers()[-1:]
    return explained(node, {number: node.state(number) for number in wanted})


def counts(node: Node, options: dict[str, str], words: list[str]) -> Any:
    """How many jobs run and wait here, and in the other clusters of this machine whose directories are named."""
    found: dict[str, Any] = {}
    for root in [node.root, *words]:
        try:
            ensure_scheduler(Node(root), wait=True)
            stands = [state["status"] for state in Node(root).active().values()]
            found[root] = {"running": stands.count("RUNNING"), "pending": stands.count("PENDING")}
        except OSError:
            found[root] = None
    return found


def cancel(node: Node, options: dict[str, str], words: list[str]) -> Any:
    """Ends jobs by number, or --all: SIGTERM, --grace seconds, SIGKILL. Answers which ones it cancelled."""
    wanted = set(known(node, words))
    targets = [number for number in node.active() if "--all" in options or number in wanted]
    grace = float(options.get("--grace", GRACE))
    for number in targets:
        write(node.path("cancel", str(number)), str(grace))
    deadline, step = time.monotonic() + grace + PATIENCE, 0.005
    while any(node.state(number)["status"] not in ENDED for number in targets):
        if time.monotonic() > deadline:
            raise Refused("Unavailable", "jobs have not ended in time: " + ", ".join(map(str, targets)))
        ensure_scheduler(node)
        time.sleep(step)
        step = min(2 * step, 0.1)
    return {"cancelled": [number for number in targets if node.state(number)["status"] == "CANCELLED"]}


def shutdown(node: Node, options: dict[str, str], words: list[str]) -> Any:
    """Takes no more jobs, ends all, and everything else that was started for this cluster."""
    write(node.path("closed"), "")
    answer = cancel(node, dict(options, **{"--all": ""}), [])
    lock, deadline = open_lock(node), time.monotonic() + PATIENCE
    while not take(lock):
        if time.monotonic() > deadline:
            raise Refused("Unavailable", "the scheduler does not end")
        time.sleep(0.01)
    # Nobody schedules now; what is left was started by a setup.
    kill_at = time.monotonic() + float(options.get("--grace", GRACE))
    found = processes_of(node.mark, 0, 0)
    send_all(found, signal.SIGTERM)
    while found:
        time.sleep(0.05)
        found = processes_of(node.mark, 0, 0)
        if time.monotonic() > kill_at:
            send_all(found, signal.SIGKILL)
    return answer


def resume(node: Node, options: dict[str, str], words: list[str]) -> Any:
    """Starts the scheduler if it should run and does not."""
    ensure_scheduler(node)


def known(node: Node, words: list[str]) -> list[int]:
    numbers = sorted({int(word) for word in words})
    missing = [str(number) for number in numbers if not os.path.isdir(node.job(number))]
    if missing:
        raise Refused("NotFound", "no such job: " + ", ".join(missing))
    return numbers


def explained(node: Node, states: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs as answers, each pending one with what it waits for."""
    has, active = node.declared()["has"], node.active()
    free = free_of(has, active)
    running = [str(number) for number, state in active.items() if state["status"] == "RUNNING"]
    first = next((number for number, state in active.items() if state["status"] == "PENDING"), None)
    for number, state in states.items():
        state["job_id"] = number
        del state["process"]
        state["log_bytes"] = size_of(node.job(number, "run.log"))
        if state["status"] == "PENDING" and number != first:
            state["reason"] = f"waits behind job {first}"
        elif state["status"] == "PENDING":
            takes = state["resources"]
            lacks = [f"{takes[name]:g} {name} ({free.get(name, 0):g} free)" for name in short_of(takes, free)]
            held = ", running: job " + ", ".join(running) if running else ""
            state["reason"] = "needs " + ", ".join(lacks) + held if lacks else "starts now"
    return list(states.values())


def size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


# --- one scheduler, and no moment without one -----------------------------------------------------------------------


def ensure_scheduler(node: Node, wait: bool = False) -> None:
    """Wakes the scheduler, or starts one when a job is active and nobody schedules; can wait for its first turn."""
    while True:
        ready, lock = -1, open_lock(node)
        try:
            if not take(lock):
                return wake(node)
            if node.active():
                ready = start_scheduler(node, lock)
        finally:
            os.close(lock)  # frees it, unless a scheduler has inherited it
        if ready >= 0:
            if wait:
                select.select([ready], [], [], PATIENCE)
            os.close(ready)
            return None
        # A job that came while this process held the lock found it taken and started nobody: look again.
        if not node.active():
            return None


def wake(node: Node) -> None:
    try:
        descriptor = os.open(node.path("wake"), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return  # the scheduler has not opened it yet; it looks at everything after that
    try:
        os.write(descriptor, b"w")
    except OSError:
        pass  # full: it will wake anyway
    os.close(descriptor)


def start_scheduler(node: Node, lock: int) -> int:
    """A descriptor that becomes readable when the scheduler has done its first turn, or has failed."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                become_scheduler(node, lock, told)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(told)
    return ready


def become_scheduler(node: Node, lock: int, told: int) -> None:
    """Becomes a process of its own: no terminal, no pipe of the verb, no mark of the server that called the verb."""
    log = os.open(node.path("scheduler.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.set_inheritable(lock, True)
    os.set_inheritable(told, True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SKYSERVE_")}
    environment["SKYSERVE_DETACHED"] = "1"
    launcher = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scheduler.py")
    program = [sys.executable, "-S", "-E", launcher, node.root, str(lock), str(told)]
    os.chdir("/")
    os.execve(sys.executable, program, environment)


VERBS = {
    "init": init,
    "submit": submit,
    "queue": queue,
    "status": status,
    "counts": counts,
    "cancel": cancel,
    "shutdown": shutdown,
    "resume": resume,
}


def main(argv: list[str]) -> int:
    options: dict[str, str] = {}
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word in ("--dir", "--grace"):
            options[word] = next(rest)
        elif word.startswith("--"):
            options[word] = ""
        else:
            words.append(word)
    try:
        answer = VERBS[words[0]](Node(options["--dir"]), options, words[1:])
    except (Refused, OSError) as error:
        # Anything but a full disk is a fault of this program or of the machine: its traceback says more.
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        kind = error.kind if isinstance(error, Refused) else "DiskFull"
        print(json.dumps({"error": {"type": kind, "message": str(error)}}))
        return REFUSED
    if answer is not None:
        print(json.dumps(answer))
    return 0
