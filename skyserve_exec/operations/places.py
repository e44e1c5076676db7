"""Where clusters are: the registry, their directories, and the runner that reaches them.

Room: executor, inside a running operation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skyserve_exec.errors import BadInput, Conflict, NotFound
from skyserve_exec.operations.cluster_agent import ClusterAgent
from skyserve_exec.request_context import RequestContext
from skyserve_exec.runners.local import LocalRunner
from skyserve_exec.store.clusters import ClusterRegistry, ClusterRow, ClusterStatus

LOCAL = "local"


@contextmanager
def open_registry(context: RequestContext) -> Iterator[ClusterRegistry]:
    """The clusters of this server."""
    registry = ClusterRegistry.open(context.state_dir.clusters_database)
    try:
        yield registry
    finally:
        registry.close()


def new_row(context: RequestContext, name: str) -> ClusterRow:
    """A cluster that is not there yet."""
    directory, now = str(directory_of(context, name)), time.time()
    return ClusterRow(name, LOCAL, ClusterStatus.INIT, context.user, directory, "{}", "{}", now, now)


def directory_of(context: RequestContext, name: str) -> Path:
    """The cluster's directory.

    Raises:
        BadInput: the name would lead out of the state directory.
    """
    top = context.state_dir.clusters
    directory = top / name
    # Names are checked at the door; this keeps a mistake there from removing somebody's files.
    if name in {"", ".", ".."} or directory.parent != top or Path(name).name != name or name.startswith("."):
        raise BadInput(f"cluster: {name!r} is no name of a cluster")
    return directory


def found_cluster(registry: ClusterRegistry, name: str) -> ClusterRow:
    """The cluster's row.

    Raises:
        NotFound: there is none of that name.
    """
    row = registry.get(name)
    if row is None:
        raise NotFound(f"there is no cluster {name}", hint="'sky status' lists the clusters.")
    return row


def agent_of(context: RequestContext, name: str) -> ClusterAgent:
    """What talks to the cluster's job queue.

    Raises:
        BadInput: the name would lead out of the state directory.
    """
    return ClusterAgent(LocalRunner(), name, str(directory_of(context, name)))


def ready_cluster(context: RequestContext, name: str) -> tuple[ClusterRow, ClusterAgent]:
    """A cluster that has been made, and what talks to it.

    Raises:
        NotFound: there is none of that name.
        Conflict: its launch has not got so far, or was cut short.
    """
    with open_registry(context) as registry:
        row = found_cluster(registry, name)
    if row.status != ClusterStatus.UP:
        raise Conflict(f"cluster {name} is not up: it is {row.status}", hint=f"Launch it again: sky launch -c {name} …")
    return row, agent_of(context, row.name)
