"""This project's server as the benchmarks start it: a private state directory, a free port, 4 short executors.

Room: the benchmark's processes. Talks HTTP only; knows of the server's insides no more than names of processes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.load_client import Answer, Connection, Target
from benchmarks.processes import Launched, fresh_place, wait_until
from benchmarks.scale import EXECUTORS, START_SECONDS

TITLE = "sky: "


class OurServer:
    """One server, from its launch on."""

    def __init__(self, place: Path | None = None, *, short: int = EXECUTORS, options: tuple[str, ...] = ()) -> None:
        self.place = place or fresh_place()
        self.state = self.place / "state"
        self.target: Target | None = None
        argv = [sys.executable, "-m", "skyserve_exec.serve", "--state-dir", str(self.state), "--port", "0"]
        argv += ["--operations", "benchmarks.ours_operations", "--short-executors", str(short), *options]
        self.launched = Launched(argv, self.place)

    def is_healthy(self) -> bool:
        """What /api/health says."""
        answer = self.try_get("/api/health")
        return answer is not None and answer.status == 200 and answer.json()["status"] == "healthy"

    def wait_healthy(self) -> Target:
        """The address of the healthy server.

        Raises:
            DidNotHappen: it ended, or is not healthy in time.
        """

        def healthy_or_ended() -> bool:
            self.launched.check_alive()
            return self.is_healthy()

        wait_until(healthy_or_ended, START_SECONDS, "the server is healthy")
        return self.located()

    def try_get(self, path: str) -> Answer | None:
        """One GET on a connection of its own, None when nobody answers yet."""
        return self.try_exchange("GET", path)

    def try_exchange(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer | None:
        target = self.find()
        if target is None:
            return None
        try:
            connection = Connection(target)
        except ConnectionError:
            return None
        try:
            return connection.exchange(target.request(method, path, body, headers, keep=False))
        except ConnectionError:
            return None
        finally:
            connection.close()

    def find(self) -> Target | None:
        """The address from server.json as soon as it is there, and the token."""
        if self.target is None:
            try:
                endpoint = json.loads((self.state / "server.json").read_text())["endpoint"]
                token = (self.state / "token").read_text().strip()
            except (FileNotFoundError, ValueError):
                return None
            parts = urlsplit(endpoint)
            self.target = Target(parts.hostname or "127.0.0.1", parts.port or 0, token)
        return self.target

    def located(self) -> Target:
        target = self.find()
        if target is None:
            raise LookupError("server.json is not there")
        return target

    def roles(self) -> dict[str, list[int]]:
        """Process ids by the role in their title: serve, http, spawner, executor, tail; 'other' without a title."""
        roles: dict[str, list[int]] = {}
        for process in self.launched.tree():
            title = title_of(process.pid)
            role = title.removeprefix(TITLE).split()[0] if title.startswith(TITLE) else "other"
            roles.setdefault(role, []).append(process.pid)
        return roles

    def executors(self, schedule_type: str) -> dict[str, int]:
        """Process ids of executors by slot, such as short-0."""
        found = {}
        for process in self.launched.tree():
            words = title_of(process.pid).removeprefix(TITLE).split()
            if words[:1] == ["executor"] and words[-1].startswith(schedule_type):
                found[words[-1]] = process.pid
        return found


def title_of(pid: int) -> str:
    """The command line as `ps` shows it; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ").replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
