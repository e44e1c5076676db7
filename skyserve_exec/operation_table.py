"""Every built-in operation, once: routes, CLI, SDK and docs are made from this table or checked against it.

Own operations (functions of users) join it at run time by their description, which the spawner makes (it alone
imports them) and serve passes on to http.

Room: every process. No I/O; imports no operation and no pydantic: models and functions are named, not held.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from skyserve_exec.states import ScheduleType


@dataclass(frozen=True, slots=True)
class Operation:
    """One row.

    `payload` is the model's name in protocol.py, empty for own operations, which bring a JSON schema instead.
    `function` is 'module:name', called with the payload's fields as keyword arguments. `deadline` is in seconds.
    `locks_cluster`: requests of one cluster run one at a time, in order. `reads` marks what changes nothing.
    """

    name: str
    schedule_type: ScheduleType
    payload: str
    function: str
    help: str
    restartable: bool = False
    deadline: float | None = None
    locks_cluster: bool = False
    reads: bool = False
    schema: dict[str, Any] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        return not self.payload

    def describe(self) -> dict[str, Any]:
        """As plain JSON, for another process."""
        return asdict(self) | {"schedule_type": self.schedule_type.value}


LONG, SHORT = ScheduleType.LONG, ScheduleType.SHORT
CLUSTERS, JOBS = "skyserve_exec.operations.clusters", "skyserve_exec.operations.jobs"

BUILTIN: tuple[Operation, ...] = (
    Operation(
        "launch",
        LONG,
        "LaunchPayload",
        f"{CLUSTERS}:launch",
        "Create or reuse a cluster, set it up and submit a job to it.",
        locks_cluster=True,
    ),
    Operation(
        "exec",
        LONG,
        "ExecPayload",
        f"{JOBS}:execute",
        "Submit a job to a cluster that is up, without its setup.",
        locks_cluster=True,
    ),
    Operation(
        "queue", SHORT, "QueuePayload", f"{JOBS}:queue", "List the jobs of clusters.", restartable=True, reads=True
    ),
    Operation(
        "logs",
        SHORT,
        "LogsPayload",
        f"{JOBS}:logs",
        "Show or follow the output of a job; ends with the job's exit code.",
        restartable=True,
        reads=True,
    ),
    Operation("cancel", SHORT, "CancelPayload", f"{JOBS}:cancel", "Cancel jobs of a cluster."),
    Operation(
        "status", SHORT, "StatusPayload", f"{CLUSTERS}:status", "List the clusters.", restartable=True, reads=True
    ),
    Operation(
        "down",
        SHORT,
        "DownPayload",
        f"{CLUSTERS}:down",
        "Cancel the jobs of a cluster and remove it.",
        restartable=True,
        locks_cluster=True,
    ),
)


def from_description(body: dict[str, Any]) -> Operation:
    """The operation that `describe` was called on in another process."""
    return Operation(**(body | {"schedule_type": ScheduleType(body["schedule_type"])}))
