"""How this server is doing: the probes and the page for people.

Room: http process, event loop.
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from skyserve_exec import version
from skyserve_exec.server.state import HttpState

API_VERSION = 1
DEAD_SECONDS = 30.0
LATE_SECONDS = 5.0
VERSION_SECONDS = 5.0
VERSION = re.compile(r"^__version__\s*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)


class Health:
    """Answers of the probes, from what serve has pushed last."""

    def __init__(self, http: HttpState) -> None:
        self._http = http
        self._on_disk = version.__version__
        self._read_at = 0.0
        self._look: Future[str] = Future()
        self._look.set_result(self._on_disk)

    @property
    def is_alive(self) -> bool:
        """Whether both loops turn: this one answers, and serve has been heard of lately."""
        return self._http.link.silent_seconds < DEAD_SECONDS

    @property
    def problem(self) -> str:
        """Why nothing can be taken now; empty when all is well."""
        link = self._http.link
        if link.snapshot is None:
            return "the supervisor has not reported yet"
        if link.silent_seconds > LATE_SECONDS:
            return f"the supervisor has been silent for {link.silent_seconds:.0f} s"
        return link.snapshot.problem or self._lost_pool()

    @property
    def is_ready(self) -> bool:
        """Whether new requests are welcome."""
        return not self.is_draining and not self.problem

    @property
    def is_draining(self) -> bool:
        link = self._http.link
        return link.draining or (link.snapshot is not None and link.snapshot.draining)

    def page(self) -> dict[str, Any]:
        """Everything, for `sky api info`."""
        http, snapshot = self._http, self._http.link.snapshot
        problem = self.problem
        return {
            "status": "draining" if self.is_draining else "unhealthy" if problem else "healthy",
            "problem": problem,
            "version": version.__version__,
            "version_on_disk": self._version_on_disk(),
            "api_version": API_VERSION,
            "boot_id": http.boot_id,
            "pid": os.getppid(),
            "started_at": http.started_at,
            "user": http.user,
            "endpoint": http.endpoint,
            "settings": http.settings.to_json(),
            "pools": {} if snapshot is None else snapshot.pools,
            "pending": {} if snapshot is None else snapshot.pending,
            "tails": 0 if snapshot is None else snapshot.tails,
            "counters": {} if snapshot is None else snapshot.counters,
            "http": self._own_figures(),
        }

    def _own_figures(self) -> dict[str, Any]:
        http = self._http
        return {
            "pid": os.getpid(),
            "posts": http.counts.posts,
            "errors": http.counts.errors,
            "streams": http.counts.streams,
            "streams_begun": http.counts.streams_begun,
            "logs_open": len(http.feeds),
            "waiting": len(http.waiting),
            "stalls": http.stalls.count,
            "longest_stall_seconds": round(http.stalls.longest, 3),
        }

    def _lost_pool(self) -> str:
        snapshot = self._http.link.snapshot
        if snapshot is None:
            return ""
        for name, pool in snapshot.pools.items():
            if not any(pool.get(state) for state in ("busy", "idle", "starting")):
                return f"no {name} executor can work"
        return ""

    def _version_on_disk(self) -> str:
        """As of the last look; the next look is under way then, since a disk may not answer."""
        now = time.monotonic()
        if now - self._read_at > VERSION_SECONDS and self._look.done():
            self._read_at = now
            self._look = self._http.looks.submit(_read_version, Path(version.__file__))
            self._look.add_done_callback(self._remember)
        return self._on_disk

    def _remember(self, look: Future[str]) -> None:
        self._on_disk = look.result()


def _read_version(path: Path) -> str:
    try:
        found = VERSION.search(path.read_text())
    except OSError:
        return "unknown"
    return found[1] if found else "unknown"
