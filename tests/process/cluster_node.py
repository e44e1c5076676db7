"""A cluster directory with the agent installed, driven by its verbs as real processes, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skyserve_exec.operations.cluster_agent import ClusterAgent
from skyserve_exec.runners.local import LocalRunner
from tests.processes import Seen, alive, everything
from tests.waiting import wait_until

ENDED = {"SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED"}


class ClusterNode:
    """One cluster directory."""

    def __init__(self, root: Path, *, python: str = sys.executable, **has: Any) -> None:
        self.root = root
        self.python = python
        ClusterAgent(LocalRunner(), root.name, str(root)).install()
        self.verb("init", given={"name": root.name, **({"cpus": 4} | has)})

    def command(self, module: str, *words: str) -> list[str]:
        return [self.python, "-S", "-E", str(self.root / "agent" / f"{module}.py"), *words]

    def start(self, verb: str, *words: str) -> subprocess.Popen[bytes]:
        argv = self.command("agent", "--dir", str(self.root), verb, *words)
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def verb(self, verb: str, *words: str, given: Any = None) -> Any:
        """The verb's answer; an error object when it refuses."""
        with self.start(verb, *words) as process:
            out, err = process.communicate(json.dumps(given).encode(), timeout=60)
        assert process.returncode in {0, 3}, err.decode()
        assert err == b""
        return json.loads(out or b"null")

    def submit(self, run: str, **job: Any) -> int:
        answer = self.verb("submit", given={"run": run, **job})
        assert "job_id" in answer, answer
        return int(answer["job_id"])

    def job(self, number: int) -> dict[str, Any]:
        return dict(self.verb("status", str(number))[0])

    def wait_for(self, number: int, *statuses: str, seconds: float = 20) -> dict[str, Any]:
        """The job once it has one of these statuses; an ended one when none is given."""
        wanted = set(statuses) or ENDED

        def seen() -> dict[str, Any] | None:
            job = self.job(number)
            return job if job["status"] in wanted else None

        return wait_until(seen, seconds=seconds, what=f"job {number} is {' or '.join(sorted(wanted))}") or {}

    def log(self, number: int) -> bytes:
        return (self.root / "jobs" / str(number) / "run.log").read_bytes()

    def wait_for_log(self, number: int, text: bytes) -> None:
        wait_until(lambda: text in self.log(number), what=f"job {number} has printed {text!r}")

    def follow(self, number: int, offset: int = 0) -> subprocess.Popen[bytes]:
        words = ("follow", "--dir", str(self.root), "--job", str(number), "--offset", str(offset))
        return subprocess.Popen(
            self.command("joblog", *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def scheduler(self) -> int | None:
        """The pid of its scheduler."""
        mine = str(self.root / "agent" / "scheduler.py")
        return next((seen.pid for seen in everything() if mine in seen.title and not seen.is_zombie), None)

    def kill_scheduler(self) -> None:
        pid = wait_until(self.scheduler, what="a scheduler runs")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), what="the scheduler is dead")

    def members(self) -> list[Seen]:
        """Living processes that were started for the cluster."""
        mark = f"SKYSERVE_CLUSTER_DIR={self.root}"
        return [seen for seen in everything() if mark in seen.environment and not seen.is_zombie]


@contextlib.contextmanager
def cluster_node(root: Path, *, python: str = sys.executable, **has: Any) -> Iterator[ClusterNode]:
    """A cluster of a test; at the end nothing of it runs."""
    node = ClusterNode(root, python=python, **has)
    try:
        yield node
    finally:
        node.verb("shutdown", "--grace", "0.2")
        wait_until(lambda: node.scheduler() is None, what="the scheduler leaves")
        assert node.members() == []
