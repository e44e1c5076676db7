"""The steps of putting a task on a cluster: its folder, its setup, its job. Each says what it does.

Room: executor, inside a running operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyserve_exec.errors import BadInput, Conflict, RequestInterrupted, SetupFailed
from skyserve_exec.operations.cluster_agent import ClusterAgent
from skyserve_exec.request_context import RequestContext
from skyserve_exec.runners.child_process import interrupts_deferred
from skyserve_exec.runners.command_runner import Copied

TINY = 1e-6
SIZES = ("B", "KB", "MB", "GB", "TB")
UNITS = {"cpus": "CPUs", "memory": "GB of memory"}
Task = Mapping[str, Any]


def say(text: str) -> None:
    """One line of progress, at once."""
    print(text, flush=True)


def check_workdir(task: Task) -> None:
    """Before anything is made.

    Raises:
        BadInput: the workdir is not there.
    """
    workdir = task.get("workdir")
    if workdir and not Path(workdir).is_dir():
        raise BadInput(f"workdir: {workdir} is not a directory", hint="Give the path of a directory on this machine.")


def copy_workdir(agent: ClusterAgent, task: Task, context: RequestContext) -> None:
    """Brings the task's folder to the cluster's workdir, if it has one."""
    if task.get("workdir"):
        say(f"Workdir: copying {task['workdir']}")
        copied = agent.runner.copy_folder(Path(task["workdir"]), agent.workdir, keep_out=context.state_dir.root)
        say(f"Workdir: {_told(copied)}")


def run_setup(agent: ClusterAgent, task: Task) -> None:
    """Runs the task's setup in the workdir, if it has one, with its output into this request's log.

    Raises:
        SetupFailed: it ended with another exit code than 0.
    """
    if not task.get("setup"):
        return
    say("Setup: running")
    agent.runner.write_files(agent.directory, {"setup.sh": task["setup"].encode(errors="surrogateescape")})
    env = environment_of(task) | {
        "SKYPILOT_SETUP_NODE_RANK": "0",
        "SKYPILOT_SETUP_NODE_IPS": "127.0.0.1",
        "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": "0",
        "SKYPILOT_NUM_NODES": "1",
        "SKYSERVE_CLUSTER_DIR": agent.directory,
    }
    argv = [agent.runner.probe().shell, f"{agent.directory}/setup.sh"]
    code = agent.runner.stream(argv, env={"PYTHONUNBUFFERED": "1"} | env, cwd=agent.workdir)
    if code:
        raise SetupFailed(
            f"the setup of cluster {agent.cluster} ended with exit code {code}",
            hint=f"Its output is above. The cluster stays: mend the setup and launch again with -c {agent.cluster}.",
        )
    say("Setup: done")


def submit_job(agent: ClusterAgent, task: Task) -> int:
    """Queues the task's `run`; the job's number. An interrupt in that moment takes the job with it."""
    resources = task.get("resources") or {}
    job = {"name": task.get("name"), "run": task["run"], "envs": environment_of(task)}
    job |= {name: resources.get(name) for name in ("cpus", "memory", "accelerators")}
    number = None
    try:
        with interrupts_deferred():
            number = agent.submit(job)
        say(f"Job {number}: submitted to cluster {agent.cluster}")
    except RequestInterrupted:
        if number is not None:
            agent.cancel([number])
            say(f"Job {number}: cancelled")
        raise
    return number


def title_of(task: Task) -> str | None:
    """What a list calls the task: its name, else the start of what it runs."""
    lines = (task.get("run") or task.get("setup") or "").strip().splitlines()
    return task.get("name") or (lines[0][:60] if lines else None)


def environment_of(task: Task) -> dict[str, str]:
    """What the task gives its setup and its job; never printed."""
    return dict(task.get("envs") or {}) | dict(task.get("secrets") or {})


def amounts_of(resources: Mapping[str, Any]) -> dict[str, float]:
    """What is asked for, by name."""
    asked = {name: float(count) for name, count in (resources.get("accelerators") or {}).items()}
    return asked | {name: float(resources[name]) for name in ("cpus", "memory") if resources.get(name)}


def check_fits(agent: ClusterAgent, task: Task, resources: Mapping[str, Any]) -> None:
    """Before anything is changed.

    Raises:
        Conflict: the task asks for more than the cluster has.
    """
    has = amounts_of(resources)
    for name, amount in amounts_of(task.get("resources") or {}).items():
        if amount > has.get(name, 0) + TINY:
            raise Conflict(
                f"resources.{name}: the task asks for {amount:g} {UNITS.get(name, name)}, "
                f"but cluster {agent.cluster} was launched with {has.get(name, 0):g}",
                hint=f"Launch it under another name, or take it down first: sky down {agent.cluster}",
            )


def _told(copied: Copied) -> str:
    facts = [f"{copied.files} files ({_size(copied.bytes)}) copied"]
    for count, what in (
        (copied.unchanged, "unchanged"),
        (copied.removed, "removed"),
        (copied.ignored, "ignored"),
        (copied.skipped, "skipped, which are no files"),
    ):
        facts += [f"{count} {what}"] * bool(count)
    return ", ".join(facts)


def _size(count: int) -> str:
    power = min(len(SIZES) - 1, max(0, (len(str(count)) - 1) // 3))
    return f"{count / 1000**power:.3g} {SIZES[power]}"
