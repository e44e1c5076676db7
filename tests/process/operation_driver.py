"""Runs one operation in a process of its own, as an executor does: output into a log, the end as one JSON line.

python -m tests.process.operation_driver   with the order as JSON on stdin, the report's path in it
"""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from skyserve_exec.errors import RequestCancelled, RequestInterrupted, SkyserveError
from skyserve_exec.operation_table import BUILTIN
from skyserve_exec.paths import StateDir
from skyserve_exec.request_context import CURRENT, ExitCode, RequestContext, TailHandOff
from skyserve_exec.system.deathwatch import adopt_orphans
from tests.processes import Seen, everything
from tests.waiting import pause, wait_until


@dataclass(slots=True)
class Place:
    """One server's state directory, and operations run in it."""

    root: Path
    request_ids: list[str] = field(default_factory=list)

    @property
    def state(self) -> StateDir:
        return StateDir(self.root)

    def start(self, operation: str, *, request_id: str | None = None, **options: Any) -> Request:
        self.state.make()
        return Request(self, operation, request_id or str(uuid.uuid4()), **options)

    def call(self, operation: str, **payload: Any) -> Any:
        """The operation's result; its error object when it failed."""
        end = self.start(operation, payload=payload).end()
        return end.get("result", end.get("error"))

    def launch(self, cluster: str, **task: Any) -> Any:
        return self.call("launch", cluster=cluster, task=task)

    def job(self, cluster: str, number: int) -> dict[str, Any]:
        return next(dict(job) for job in self.call("queue", cluster=cluster) if job["job_id"] == number)

    def wait_for_job(self, cluster: str, number: int, *statuses: str) -> dict[str, Any]:
        wanted = statuses or ("SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED")

        def seen() -> dict[str, Any] | None:
            job = self.job(cluster, number)
            return job if job["status"] in wanted else None

        return wait_until(seen, seconds=20, what=f"job {number} is {wanted}") or {}

    def members(self) -> list[Seen]:
        """What runs for any cluster here, schedulers included."""
        return [seen for seen in everything() if str(self.root) in " ".join((seen.title, *seen.environment))]

    def down_all(self) -> None:
        for cluster in self.call("status"):
            self.call("down", cluster=cluster["name"])


class Request:
    """A running operation."""

    def __init__(
        self,
        place: Place,
        operation: str,
        request_id: str,
        *,
        payload: dict[str, Any],
        attempt: int = 1,
        resume: dict[str, Any] | None = None,
    ) -> None:
        self.log_path = place.state.log_of(request_id)
        self.report = place.root / f"report-{request_id}-{time.monotonic_ns()}"
        self.request_id = request_id
        self.armed = self.report.with_suffix(".armed")
        order = {
            "operation": operation,
            "request_id": request_id,
            "payload": payload,
            "state_dir": str(place.root),
            "attempt": attempt,
            "resume": resume,
            "report": str(self.report),
        }
        argv = [sys.executable, "-m", "tests.process.operation_driver"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, text=True
            )
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order))
        self.process.stdin.close()

    def log(self) -> str:
        return self.log_path.read_text()

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log(), what=f"the log says {text!r}")

    def cancel(self, after: float = 0) -> dict[str, Any]:
        """Cancels it so many seconds after it has begun; how it ended."""
        wait_until(self.armed.exists, what="it runs")
        pause(after)
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> dict[str, Any]:
        """How it ended: result, exit_code, hand_off, error or interrupted."""
        code = self.process.wait(timeout=60)
        assert code == 0, self.log()
        return dict(json.loads(self.report.read_text()))


def main() -> None:
    order = json.load(sys.stdin)
    signal.signal(signal.SIGTERM, _cancel)
    adopt_orphans()
    CURRENT.set(
        RequestContext(
            order["request_id"],
            order["operation"],
            order["attempt"],
            "tester",
            StateDir(Path(order["state_dir"])),
            order["resume"],
        )
    )
    row = next(row for row in BUILTIN if row.name == order["operation"])
    module, _, name = row.function.partition(":")
    try:
        Path(order["report"]).with_suffix(".armed").touch()
        value = getattr(importlib.import_module(module), name)(**order["payload"])
    except RequestInterrupted as interrupt:
        end: dict[str, Any] = {"interrupted": type(interrupt).__name__}
    except SkyserveError as error:
        end = error.to_json()
    else:
        end = _described(value)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(order["report"]).write_text(json.dumps(end))


def _described(value: object) -> dict[str, Any]:
    if isinstance(value, TailHandOff):
        return {"hand_off": {"argv": list(value.argv), "resume": dict(value.resume), "reason": value.reason}}
    if isinstance(value, ExitCode):
        return {"exit_code": value.code, "result": value.result}
    return {"result": value}


def _cancel(signum: int, frame: FrameType | None) -> None:
    raise RequestCancelled("cancelled")


if __name__ == "__main__":
    main()
