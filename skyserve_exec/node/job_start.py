"""The first steps of a job: a session of its own, its environment, and a shell that records how it ended.

Room: the forked child of a scheduler, between fork and exec; `Start` on the scheduler's side.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time

from .directory import Node, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The shell outlives signals to its group, to record the exit code. It catches them, and does not ignore them, because
# caught ones are defaults again in what it starts. What it says itself ("Terminated") is not the job's output.
# The exit code is written over a placeholder, without truncating it: a full disk has no space for a new file.
WRAPPER = 'exec 2>/dev/null; trap : HUP INT QUIT TERM; (exec "$@" 2>&1); code=$?; echo "$code" 1<>"$0"; exit "$code"'
PLACEHOLDER = "...."
NOT_ACCELERATORS = ("cpus", "memory")


class Start:
    """A forked job that runs only if the `with` block ends well: its pid can be written down before.

    When the scheduler dies or fails inside the block, the child sees the end of the pipe and ends without a trace.
    """

    def __init__(self, node: Node, number: int, state: dict[str, Any], private: dict[str, Any]) -> None:
        self.job = (node, number, state, private)
        self.gate = -1

    def __enter__(self) -> int:
        closed, self.gate = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self.gate)
            become_job(closed, *self.job)
        os.close(closed)
        return pid

    def __exit__(self, failure: object, *rest: object) -> None:
        if failure is None:
            os.write(self.gate, b"!")
        os.close(self.gate)


def become_job(gate: int, node: Node, number: int, state: dict[str, Any], private: dict[str, Any]) -> None:
    """Never returns."""
    try:
        os.setsid()
        if not os.read(gate, 1):
            os._exit(0)
        os.umask(0o022)
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would pass that on
            signal.signal(signum, signal.SIG_DFL)
        log = os.open(node.job(number, "run.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(private["workdir"])
        write(node.job(number, "exit_code"), PLACEHOLDER)
        script = ["sh", "-c", WRAPPER, node.job(number, "exit_code"), shell(), node.job(number, "run.sh")]
        os.execve("/bin/sh", script, environment_of(node, number, state, private["envs"]))
    except BaseException as error:
        write(node.job(number, "exit_code"), f"!{error}")
    finally:
        os._exit(127)


def environment_of(node: Node, number: int, state: dict[str, Any], envs: dict[str, str]) -> dict[bytes, bytes]:
    name, when = node.declared()["name"], time.localtime(state["submitted_at"])
    accelerators = sum(amount for key, amount in state["resources"].items() if key not in NOT_ACCELERATORS)
    told = {
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NODE_IPS": "127.0.0.1",
        "SKYPILOT_NUM_NODES": "1",
        "SKYPILOT_NUM_GPUS_PER_NODE": str(math.ceil(accelerators)),
        "SKYPILOT_TASK_ID": f"sky-{time.strftime('%Y-%m-%d-%H-%M-%S', when)}_{name}_{number}",
        "SKYPILOT_JOB_ID": str(number),
        "SKYPILOT_CLUSTER_INFO": json.dumps({"cluster_name": name, "cloud": "local"}),
        "SKYSERVE_DETACHED": "1",
        "SKYSERVE_CLUSTER_DIR": node.root,
        "SKYSERVE_JOB_DIR": node.job(number),
    }
    # Python programs print at once, as people expect who follow a job.
    inherited = {b"PYTHONUNBUFFERED": b"1", **os.environb}
    return {**inherited, **encoded(envs), **encoded(told)}


def encoded(table: dict[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): value.encode("utf-8", "surrogateescape") for name, value in table.items()}


def shell() -> str:
    """bash if there is one, else sh."""
    folders = os.environ.get("PATH", os.defpath).split(":")
    found = (os.path.join(folder, "bash") for folder in folders if os.path.isabs(folder))
    return next((path for path in found if os.access(path, os.X_OK) and os.path.isfile(path)), "/bin/sh")
