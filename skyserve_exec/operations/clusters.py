"""launch, status and down: clusters come, are looked at, and go.

Room: executor, inside a running operation. launch, exec and down of one cluster run one at a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from skyserve_exec.errors import NotFound, SkyserveError
from skyserve_exec.operations.cluster_agent import ClusterAgent
from skyserve_exec.operations.places import agent_of, found_cluster, new_row, open_registry
from skyserve_exec.operations.task_steps import (
    check_fits,
    check_workdir,
    copy_workdir,
    run_setup,
    say,
    submit_job,
    title_of,
)
from skyserve_exec.request_context import current_request
from skyserve_exec.runners.child_process import interrupts_deferred
from skyserve_exec.runners.local import LocalRunner
from skyserve_exec.store.clusters import ClusterRegistry, ClusterRow, ClusterStatus


def launch(task: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Creates the cluster or takes the one there is, copies the workdir, runs the setup, submits the job.

    Raises:
        BadInput: the workdir is not there.
        Conflict: the task asks for more than the cluster has.
        SetupFailed: the cluster stays.
    """
    context = current_request()
    check_workdir(task)
    agent, created = agent_of(context, cluster), False
    with open_registry(context) as registry:
        try:
            with interrupts_deferred():
                row, created = registry.insert_or_get(new_row(context, cluster))
            resources = _made(registry, agent, row, task)
            copy_workdir(agent, task, context)
            registry.set_status(cluster, ClusterStatus.UP, now=time.time())
        except BaseException:
            if created:
                _undo(registry, agent)
            raise
        if created:
            say(f"Cluster {cluster}: up")
        _set_up(agent, task)
        registry.update(cluster, now=time.time(), last_task=title_of(task))
    job_id = submit_job(agent, task) if task.get("run") else None
    return {"cluster": cluster, "job_id": job_id, "created": created, "infra": row.infra, "resources": resources}


def status(clusters: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The named clusters, or all.

    Raises:
        NotFound: one of the names is unknown.
    """
    context = current_request()
    with open_registry(context) as registry:
        rows = registry.list(clusters)
    missing = sorted(set(clusters) - {row.name for row in rows})
    if missing:
        raise NotFound(f"there is no cluster {', '.join(missing)}", hint="'sky status' lists the clusters.")
    counts = _job_counts([agent_of(context, row.name) for row in rows])
    return [
        {
            "name": row.name,
            "infra": row.infra,
            "status": row.status,
            "user": row.user,
            "resources": json.loads(row.resources),
            "created_at": row.created_at,
            "updated_at": row.updated_at,
            "last_task": row.last_task,
            "jobs": counts.get(row.name),
        }
        for row in rows
    ]


def down(cluster: str) -> dict[str, Any]:
    """Cancels the cluster's jobs, ends all its processes, and removes its directory and its row.

    Raises:
        NotFound: there is no such cluster.
    """
    context = current_request()
    with open_registry(context) as registry:
        if context.attempt > 1 and registry.get(cluster) is None:
            # An earlier attempt got to its end and died before it could say so.
            return {"cluster": cluster, "cancelled": []}
        row = found_cluster(registry, cluster)
        agent = agent_of(context, row.name)
        cancelled: list[int] = []
        if agent.runner.exists(f"{agent.directory}/jobs"):
            say(f"Cluster {cluster}: ending its jobs")
            # Whatever is missing of it, so that a damaged cluster can be taken down as well.
            agent.install()
            agent.init(json.loads(row.resources))
            cancelled = agent.shutdown()
        agent.runner.remove_folder(agent.directory)
        registry.delete(cluster)
    say(f"Cluster {cluster}: removed")
    return {"cluster": cluster, "cancelled": cancelled}


def _made(registry: ClusterRegistry, agent: ClusterAgent, row: ClusterRow, task: Mapping[str, Any]) -> dict[str, Any]:
    """What the cluster has, once its directory and its job queue are there."""
    is_up = row.status == ClusterStatus.UP
    say(f"Cluster {row.name}: {'reused' if is_up else f'creating on {row.infra}'}")
    if is_up:
        check_fits(agent, task, json.loads(row.resources))
    agent.install()
    # A launch that was cut short may have declared it already: what the cluster says counts.
    resources = agent.init(_declared(agent, task))
    check_fits(agent, task, resources)
    registry.update(row.name, now=time.time(), resources=json.dumps(resources))
    return resources


def _declared(agent: ClusterAgent, task: Mapping[str, Any]) -> dict[str, Any]:
    """What a new cluster has: as the task says, else what the place has."""
    asked, probe = task.get("resources") or {}, agent.runner.probe()
    return {
        "cpus": asked.get("cpus") or probe.cpus,
        "memory": asked.get("memory") or round(probe.memory, 1),
        "accelerators": dict(asked.get("accelerators") or {}),
    }


def _undo(registry: ClusterRegistry, agent: ClusterAgent) -> None:
    """Takes back a cluster that was made half-way, or says what is left."""
    try:
        with interrupts_deferred():
            agent.runner.remove_folder(agent.directory)
            registry.delete(agent.cluster)
    except (OSError, SkyserveError) as error:
        say(f"Cluster {agent.cluster}: not made, and {agent.directory} could not be removed: {error}")
        say(f"Remove it with: sky down {agent.cluster}")
    else:
        say(f"Cluster {agent.cluster}: not made; nothing of it is left")


def _set_up(agent: ClusterAgent, task: Mapping[str, Any]) -> None:
    try:
        run_setup(agent, task)
    except BaseException:
        say(f"Cluster {agent.cluster}: stays up without this setup; remove it with: sky down {agent.cluster}")
        raise


def _job_counts(agents: Sequence[ClusterAgent]) -> dict[str, dict[str, int] | None]:
    """Asks once for all clusters of this machine, through the agent of any of them."""
    made = [agent for agent in agents if LocalRunner().exists(f"{agent.directory}/agent/agent.py")]
    if not made:
        return {}
    found = made[0].counts([agent.directory for agent in made[1:]])
    return {agent.cluster: found.get(agent.directory) for agent in made}
