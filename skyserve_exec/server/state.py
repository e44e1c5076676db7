"""What one http process holds, put together once in app.py and handed to every route.

Room: http process. No I/O at construction.
"""

from __future__ import annotations

import os
import pwd
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from skyserve_exec.operation_table import Operation
from skyserve_exec.paths import StateDir
from skyserve_exec.server.attached import Attached
from skyserve_exec.server.log_feed import LogFeeds
from skyserve_exec.server.pending import PendingReasons
from skyserve_exec.server.reading import Reading
from skyserve_exec.server.stall_watch import StallWatch
from skyserve_exec.server.supervisor_link import SupervisorLink
from skyserve_exec.server.waiting import Waiting
from skyserve_exec.settings import Settings


@dataclass(slots=True)
class HttpCounts:
    """Figures of this process, for health and metrics."""

    posts: int = 0
    errors: int = 0
    streams: int = 0
    streams_begun: int = 0
    stream_limit: int = 10_000


@dataclass(frozen=True, slots=True)
class HttpState:
    """The parts of one http process."""

    settings: Settings
    boot_id: str
    token: str | None
    endpoint: str
    started_at: float
    operations: dict[str, Operation]
    link: SupervisorLink
    waiting: Waiting
    reading: Reading
    pending: PendingReasons
    attached: Attached
    feeds: LogFeeds
    stalls: StallWatch
    disk: ThreadPoolExecutor  # reads logs
    looks: ThreadPoolExecutor  # looks at paths that users name, and may hang with them
    user: str
    counts: HttpCounts = field(default_factory=HttpCounts)

    @property
    def paths(self) -> StateDir:
        return StateDir(self.settings.state_path)


def user_name() -> str:
    """The name of the user who runs this server."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
