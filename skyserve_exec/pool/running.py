"""What serve knows about each RUNNING request: where it runs, and whether somebody wants it to stop.

Room: serve. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from skyserve_exec.record import RequestRow
from skyserve_exec.states import Cause


class Place(Enum):
    """Where a running request is."""

    EXECUTOR = "executor"
    TAIL = "tail"
    BETWEEN = "between"  # its tail has ended; it waits for an executor to ask how the job stands


@dataclass(slots=True)
class Running:
    """One RUNNING request. `child_id` names its executor or tail to the spawner. Times are monotonic seconds."""

    row: RequestRow
    place: Place
    child_id: int
    deadline_at: float | None
    resume: dict[str, object] | None = None
    cause: Cause | None = None
    kill_at: float | None = None
    killed: bool = False
    tail_status: str = ""

    @property
    def request_id(self) -> str:
        return self.row.request_id
