"""What HTTP takes: one pydantic model per built-in operation and per API call. Unknown fields are errors.

Room: http, and whoever makes docs or an SDK from it. Never imported by an executor.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

NAME_PATTERN = r"^[A-Za-z]([A-Za-z0-9_.-]{0,58}[A-Za-z0-9])?$"
ENV_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"

ClusterName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
JobName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f/]{1,100}$")]
EnvName = Annotated[str, StringConstraints(pattern=ENV_PATTERN)]
EnvValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
Script = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=1_000_000)]
JobId = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Payload(BaseModel):
    """Base: unknown fields are refused, types are not guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Resources(Payload):
    """What a cluster has or a job takes. `accelerators` maps a name to a count, such as {"A100": 0.5}."""

    infra: str | None = None
    cpus: float | None = Field(default=None, gt=0, le=100_000)
    memory: float | None = Field(default=None, gt=0, le=10_000_000, description="GB")
    accelerators: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,60}$")], float] = {}

    @field_validator("infra")
    @classmethod
    def _known_infra(cls, value: str | None) -> str | None:
        if value not in (None, "local"):
            raise ValueError(f"{value!r} is not supported; supported: local")
        return value

    @field_validator("cpus", "memory", mode="before")
    @classmethod
    def _at_least(cls, value: object) -> object:
        # SkyPilot writes '4', 4 and '4+' ("at least"): a local cluster has exactly what it declares.
        if isinstance(value, str):
            try:
                return float(value.removesuffix("+"))
            except ValueError:
                raise ValueError(f"{value!r} is not a number such as 4, 0.5 or '4+'") from None
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("accelerators", mode="before")
    @classmethod
    def _accelerators(cls, value: object) -> object:
        if value is None:
            return {}
        if isinstance(value, str):
            name, _, count = value.partition(":")
            try:
                return {name: float(count or 1)}
            except ValueError:
                raise ValueError(f"{value!r} is not NAME or NAME:COUNT") from None
        if isinstance(value, dict):
            return {k: float(v) if isinstance(v, int) and not isinstance(v, bool) else v for k, v in value.items()}
        return value

    @field_validator("accelerators")
    @classmethod
    def _positive(cls, value: dict[str, float]) -> dict[str, float]:
        if any(not (count > 0 and math.isfinite(count)) for count in value.values()):
            raise ValueError("counts must be above 0")
        return value


class Task(Payload):
    """What a task file describes; names as in SkyPilot. Other fields are refused by name."""

    name: JobName | None = None
    num_nodes: int = Field(default=1, ge=1, le=1, description="A local cluster has one node.")
    resources: Resources = Resources()
    workdir: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")] | None = Field(
        default=None, description="Absolute path on the server's machine; copied to the cluster."
    )
    setup: Script | None = None
    run: Script | None = None
    envs: dict[EnvName, EnvValue] = {}
    secrets: dict[EnvName, EnvValue] = {}


class LaunchPayload(Payload):
    """POST /launch. Without a cluster name the server makes one."""

    task: Task
    cluster: ClusterName | None = None


class ExecPayload(Payload):
    """POST /exec."""

    cluster: ClusterName
    task: Task


class QueuePayload(Payload):
    """POST /queue. Without a cluster: the jobs of all clusters."""

    cluster: ClusterName | None = None
    skip_finished: bool = False


class LogsPayload(Payload):
    """POST /logs. Without a job id: the latest job. `tail` is lines, 0 for all."""

    cluster: ClusterName
    job_id: JobId | None = None
    follow: bool = True
    tail: int = Field(default=0, ge=0, le=1_000_000_000)


class CancelPayload(Payload):
    """POST /cancel: jobs of a cluster, by id or all."""

    cluster: ClusterName
    job_ids: list[JobId] = Field(default=[], max_length=10_000)
    all: bool = False

    @model_validator(mode="after")
    def _something(self) -> CancelPayload:
        if bool(self.job_ids) == self.all:
            raise ValueError("give either job_ids or all")
        return self


class StatusPayload(Payload):
    """POST /status. Without names: all clusters."""

    clusters: list[ClusterName] = Field(default=[], max_length=1000)


class DownPayload(Payload):
    """POST /down: one cluster."""

    cluster: ClusterName


class ApiCancelBody(Payload):
    """POST /api/cancel: requests by id or id prefix, all, or all of a cluster. `force` skips the grace period."""

    request_ids: list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f-]{1,36}$")]] = Field(
        default=[], max_length=10_000
    )
    all: bool = False
    cluster: ClusterName | None = None
    user: str | None = None
    force: bool = False

    @model_validator(mode="after")
    def _something(self) -> ApiCancelBody:
        if sum((bool(self.request_ids), self.all, self.cluster is not None)) != 1:
            raise ValueError("give one of request_ids, all, cluster")
        return self


class ErrorBody(BaseModel):
    """Inside of every error answer."""

    type: str
    message: str
    hint: str = ""
    request_id: str | None = None


class ErrorAnswer(BaseModel):
    """The one JSON error shape."""

    error: ErrorBody


class Submitted(BaseModel):
    """202: the request is committed."""

    request_id: str


class Record(BaseModel):
    """One request; `result` is what the operation returned, `error` what it raised."""

    request_id: str
    name: str
    status: str
    schedule_type: str
    user: str
    cluster: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    attempts: int
    restartable: bool
    deadline: float | None
    cancel_requested: bool
    reason: str | None
    exit_code: int | None
    peak_rss: int | None
    boot_id: str | None
    slot: str | None
    result: Any = None
    error: dict[str, Any] | None = None
    position: int | None = Field(default=None, description="Requests before it in its queue, while PENDING.")
