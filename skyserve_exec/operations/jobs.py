"""exec, queue, logs and cancel: the jobs of clusters.

Room: executor, inside a running operation.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skyserve_exec.errors import (
    EXIT_CANCELLED,
    EXIT_REQUEST_FAILED,
    BadInput,
    NotFound,
    SkyserveError,
    StreamIncomplete,
)
from skyserve_exec.operations.cluster_agent import ClusterAgent
from skyserve_exec.operations.places import agent_of, open_registry, ready_cluster
from skyserve_exec.operations.task_steps import check_fits, check_workdir, copy_workdir, say, submit_job, title_of
from skyserve_exec.request_context import ExitCode, RequestContext, TailHandOff, current_request
from skyserve_exec.store.clusters import ClusterRow, ClusterStatus

ACTIVE = {"PENDING", "RUNNING"}
MOST_STUCK = 5  # tails in a row that ended without a byte, each within these seconds, though there was more to come
STUCK_SECONDS = 5.0


def execute(cluster: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Copies the task's workdir and submits its job to a cluster that is up; the setup is not run.

    Raises:
        BadInput: the task runs nothing, or its workdir is not there.
        NotFound, Conflict: no such cluster; it is not up, or has less than the task asks for.
    """
    context = current_request()
    if not task.get("run"):
        raise BadInput("run: the task has nothing to run", hint="Give it 'run', or set the cluster up with: sky launch")
    check_workdir(task)
    row, agent = ready_cluster(context, cluster)
    check_fits(agent, task, json.loads(row.resources))
    copy_workdir(agent, task, context)
    with open_registry(context) as registry:
        registry.update(cluster, now=time.time(), last_task=title_of(task))
    return {"cluster": cluster, "job_id": submit_job(agent, task)}


def queue(cluster: str | None = None, skip_finished: bool = False) -> list[dict[str, Any]]:
    """The jobs of a cluster, or of all clusters, oldest first; each with its cluster's name.

    Raises:
        NotFound, Conflict: no such cluster; it is not up.
    """
    context = current_request()
    if cluster is not None:
        return _jobs_of(ready_cluster(context, cluster)[1], skip_finished)
    with open_registry(context) as registry:
        agents = [agent_of(context, row.name) for row in registry.list() if row.status == ClusterStatus.UP]
    jobs: list[dict[str, Any]] = []
    for agent in agents:
        try:
            jobs += _jobs_of(agent, skip_finished)
        except SkyserveError as error:
            # One damaged cluster hides no other.
            say(f"Cluster {agent.cluster}: {error}")
    return jobs


def cancel(cluster: str, job_ids: Sequence[int] = (), all: bool = False) -> list[int]:
    """Cancels jobs and waits until they have ended; the numbers of those it cancelled, without those already over.

    Raises:
        NotFound, Conflict: no such cluster or job (then none is cancelled); the cluster is not up.
    """
    _row, agent = ready_cluster(current_request(), cluster)
    cancelled = agent.cancel(job_ids, everything=all)
    say(f"Cluster {cluster}: cancelled {', '.join(f'job {number}' for number in cancelled) or 'nothing'}")
    return cancelled


def logs(
    cluster: str, job_id: int | None = None, follow: bool = True, tail: int = 0
) -> dict[str, Any] | ExitCode | TailHandOff:
    """Shows the job's output, all or the last `tail` lines; with `follow` until the job's end, with its exit code.

    While a job is followed nothing but its own bytes may enter this request's log: how many came tells where to go on.

    Raises:
        NotFound, Conflict: no such cluster or job; the cluster is not up.
        StreamIncomplete: the log cannot be followed.
    """
    context = current_request()
    row, agent = ready_cluster(context, cluster)
    if context.resume is not None:
        return _resumed(row, agent, context, context.resume)
    job = agent.latest_job() if job_id is None else agent.job(job_id)
    offset = agent.tail_offset(job["job_id"], tail) if tail else 0
    if follow:
        return _followed(row, agent, job, offset, base=_log_size(context), stuck=0)
    agent.print_log(job["job_id"], offset)
    return _facts(job)


def _jobs_of(agent: ClusterAgent, skip_finished: bool) -> list[dict[str, Any]]:
    return [{"cluster": agent.cluster, **job} for job in agent.queue(only_active=skip_finished)]


def _followed(
    row: ClusterRow, agent: ClusterAgent, job: Mapping[str, Any], offset: int, *, base: int, stuck: int
) -> TailHandOff:
    """The job's bytes from `offset` on come into this request's log, which has `base` bytes now."""
    number = job["job_id"]
    reason = f"job {number} {job['reason']}" if job["status"] == "PENDING" else f"following job {number}"
    resume = {"job_id": number, "offset": offset, "base": base, "stuck": stuck, "at": time.time()}
    return TailHandOff(agent.follow_argv(number, offset), resume | {"created_at": row.created_at}, reason=reason)


def _resumed(
    row: ClusterRow, agent: ClusterAgent, context: RequestContext, resume: Mapping[str, Any]
) -> ExitCode | TailHandOff:
    """The tail has ended, or died, or the server was restarted: only the job's own state says whether that is all."""
    if row.created_at != resume["created_at"]:
        raise NotFound(f"cluster {row.name} was taken down while job {resume['job_id']} was followed")
    job, size = agent.job(resume["job_id"]), _log_size(context)
    came = max(0, size - resume["base"])
    offset = resume["offset"] + came
    if job["status"] not in ACTIVE and offset >= job["log_bytes"]:
        return _ended(context, job)
    stuck = resume["stuck"] + 1 if not came and time.time() - resume["at"] < STUCK_SECONDS else 0
    if stuck > MOST_STUCK:
        raise StreamIncomplete(f"the log of job {job['job_id']} of cluster {row.name} cannot be followed")
    return _followed(row, agent, job, offset, base=size, stuck=stuck)


def _ended(context: RequestContext, job: Mapping[str, Any]) -> ExitCode:
    status, code = job["status"], job["exit_code"]
    if status == "CANCELLED":
        code = EXIT_CANCELLED
        _add(context, f"Job {job['job_id']} was cancelled.")
    elif code is None:
        code = EXIT_REQUEST_FAILED
        _add(context, f"Job {job['job_id']} has {status}: {job['reason']}")
    return ExitCode(code, _facts(job))


def _add(context: RequestContext, line: str) -> None:
    """A line of ours behind the job's output, on a line of its own."""
    with Path(context.state_dir.log_of(context.request_id)).open("rb") as log:
        log.seek(max(0, log.seek(0, 2) - 1))
        glued = log.read() not in {b"", b"\n"}
    say("\n" * glued + line)


def _facts(job: Mapping[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in ("job_id", "name", "status", "exit_code", "reason")}


def _log_size(context: RequestContext) -> int:
    sys.stdout.flush()
    try:
        return context.state_dir.log_of(context.request_id).stat().st_size
    except FileNotFoundError:
        return 0
