"""A real server for one test: the real command in its own session, and a hard look at what it leaves behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.processes import MARK, Seen, kill_all, marked, tree, zombies
from tests.waiting import wait_gone, wait_until

REPOSITORY = Path(__file__).parent.parent
OWN_OPERATIONS = ("--operations", "tests.operations_under_test")
SMALL = ("--long-executors", "1", "--short-executors", "2")
START_SECONDS = 30.0
STOP_SECONDS = 20.0
TERMINAL = {"SUCCEEDED", "FAILED", "CANCELLED"}


@dataclass(slots=True)
class Server:
    """A started server; `process` is serve itself."""

    state_dir: Path
    mark: str
    process: subprocess.Popen[bytes]
    console: Path
    endpoint: str = ""
    token: str = ""
    allow_traceback: bool = False
    allow_detached: bool = False
    expect_exit: int = 0
    clients: list[httpx2.Client] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def http(self) -> httpx2.Client:
        """A client with the token; one per test is enough."""
        if not self.clients:
            self.client()
        return self.clients[0]

    def client(self, **options: Any) -> httpx2.Client:
        """One more client, closed with the server."""
        headers = {"Authorization": f"Bearer {self.token}"} | options.pop("headers", {})
        client = httpx2.Client(base_url=self.endpoint, headers=headers, timeout=60.0, trust_env=False, **options)
        self.clients.append(client)
        return client

    def submit(self, name: str, **payload: Any) -> str:
        """Posts one request; its id."""
        answer = self.http.post(f"/{name}", json=payload)
        assert answer.status_code == 202, f"{answer.status_code}: {answer.text}"
        request_id = answer.json()["request_id"]
        assert answer.headers["X-Skypilot-Request-ID"] == request_id
        return str(request_id)

    def record(self, request_id: str, timeout: float = 0.0) -> dict[str, Any]:
        """The record as it is after at most `timeout` seconds."""
        answer = self.http.get("/api/get", params={"request_id": request_id, "timeout": timeout})
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        return dict(answer.json())

    def get(self, request_id: str, timeout: float = 30.0) -> dict[str, Any]:
        """The record once terminal; fails when it is not within `timeout` seconds."""
        record = self.record(request_id, timeout)
        assert record["status"] in TERMINAL, f"not terminal after {timeout:g} s: {record}"
        return record

    def run(self, name: str, **payload: Any) -> dict[str, Any]:
        """Submits and waits for the end."""
        return self.get(self.submit(name, **payload))

    def result(self, name: str, **payload: Any) -> Any:
        """The result of a request that must succeed."""
        record = self.run(name, **payload)
        assert record["status"] == "SUCCEEDED", record
        return record["result"]

    def wait_status(self, request_id: str, status: str, seconds: float = 10.0) -> dict[str, Any]:
        """Waits until the record has this status."""

        def reached() -> dict[str, Any] | None:
            record = self.record(request_id)
            return record if record["status"] == status else None

        found = wait_until(
            reached, seconds=seconds, what=f"request {request_id} is {status}: {self.record(request_id)}"
        )
        assert found is not None
        return found

    def cancel(self, *request_ids: str, **body: Any) -> dict[str, str]:
        """What the cancel did, per full id."""
        body = ({"request_ids": list(request_ids)} if request_ids else {}) | body
        answer = self.http.post("/api/cancel", json=body)
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        return dict(answer.json()["cancelled"])

    def health(self) -> dict[str, Any]:
        answer = self.http.get("/api/health")
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        return dict(answer.json())

    def log(self, request_id: str) -> bytes:
        """What the request has printed so far, from its file."""
        path = self.state_dir / "logs" / f"{request_id}.log"
        return path.read_bytes() if path.exists() else b""

    def server_log(self) -> str:
        """Everything the server has said, also before its log was open."""
        path = self.state_dir / "server.log"
        return self.console.read_text(errors="replace") + (path.read_text(errors="replace") if path.exists() else "")

    def marked(self) -> list[Seen]:
        """Living processes of this run, without the detached jobs."""
        return [seen for seen in marked(self.mark) if not seen.is_detached]

    def tree(self) -> list[Seen]:
        return tree(self.pid)

    def kill(self, signum: int = signal.SIGKILL) -> int:
        """Sends serve (alone) a signal and waits for its end; the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """Stops it as an orchestrator does; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def wait_ready(self) -> None:
        """Waits for the endpoint and /readyz, while the process lives."""
        wait_until(self._answers, seconds=START_SECONDS, what="the server is ready")
        token = self.state_dir / "token"
        self.token = token.read_text().strip() if token.exists() else ""

    def _answers(self) -> bool:
        code = self.process.poll()
        assert code is None, f"the server ended with code {code} before it was ready"
        information = read_json(self.state_dir / "server.json")
        if information.get("pid") != self.pid:
            return False
        self.endpoint = str(information["endpoint"])
        with contextlib.suppress(httpx2.TransportError):
            return httpx2.get(f"{self.endpoint}/readyz", trust_env=False, timeout=5.0).status_code == 200
        return False

    def tail_of_log(self, lines: int = 60) -> str:
        return "\n".join(self.server_log().splitlines()[-lines:])


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty when there is none yet."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(path.read_text()))
    return {}


def environment(mark: str, home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of other servers, with the run mark and a home of its own."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SKYSERVE_", "SKYPILOT_")) and not name.lower().endswith("_proxy")
    }
    path = f"{REPOSITORY}{os.pathsep}{clean['PYTHONPATH']}" if "PYTHONPATH" in clean else str(REPOSITORY)
    return {**clean, MARK: mark, "HOME": str(home), "PYTHONPATH": path, **(more or {})}


def start(
    state_dir: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    mark: str | None = None,
    prefix: Sequence[str] = (),
) -> Server:
    """Starts serve, without waiting; `prefix` is a command that runs it, such as taskset."""
    state_dir.parent.mkdir(parents=True, exist_ok=True)
    mark = mark or str(uuid.uuid4())
    console = state_dir.parent / f"{state_dir.name}.console"
    argv = [
        *prefix,
        sys.executable,
        "-m",
        "skyserve_exec.serve",
        "--state-dir",
        str(state_dir),
        "--port",
        "0",
        *options,
    ]
    with console.open("ab") as output:
        process = subprocess.Popen(
            argv,
            cwd=state_dir.parent,
            env=environment(mark, state_dir.parent, env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return Server(state_dir, mark, process, console)


@contextlib.contextmanager
def running_server(
    directory: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    own_operations: bool = True,
    prefix: Sequence[str] = (),
) -> Iterator[Server]:
    """A ready server on `directory`/state; afterwards it is stopped and nothing of it may be left.

    The state directory is kept, so a second `running_server` on the same directory is a restart.
    """
    chosen = (*(OWN_OPERATIONS if own_operations else ()), *(() if "--long-executors" in options else SMALL), *options)
    server = start(directory / "state", *chosen, env=env, prefix=prefix)
    try:
        server.wait_ready()
        yield server
        finish(server)
    except BaseException:
        print(f"--- {' '.join(map(str, server.process.args))}\n{server.tail_of_log()}")  # type: ignore[arg-type]
        raise
    finally:
        clear_away(server)


def finish(server: Server) -> None:
    """Stops the server (if it still runs) and checks what every server owes at its end."""
    if server.process.poll() is None:
        wait_gone(lambda: zombies(server.pid), seconds=5, what="zombies in the server's tree")
    code = server.stop()
    assert code == server.expect_exit, f"serve ended with code {code}"
    wait_gone(server.marked, seconds=5, what="processes of a server that has ended")
    if not server.allow_detached:
        assert not marked(server.mark), f"a detached job is left: {marked(server.mark)}"
    if not server.allow_traceback:
        assert "Traceback (most recent call last)" not in server.server_log(), server.tail_of_log()
    assert is_free(server.state_dir / "server.lock"), "the lock is still held"


def clear_away(server: Server) -> None:
    """Ends whatever still carries this server's mark: nothing outlives its test, also when that failed."""
    for client in server.clients:
        client.close()
    if server.process.poll() is None:
        server.process.kill()
    server.process.wait()
    kill_all(marked(server.mark))


def is_free(lock: Path) -> bool:
    """Whether nobody holds the kernel lock; also true when there is no file."""
    if not lock.exists():
        return True
    with lock.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Sampler:
    """Asks for the server's health ten times a second while a test runs; its figures are printed, not judged."""

    def __init__(self, server: Server, interval: float = 0.1) -> None:
        self._client = server.client()
        self._interval = interval
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="health sampler")
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        print(self)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds) or [0.0]
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    @property
    def longest(self) -> float:
        """Seconds of the slowest answer."""
        return max(self.seconds, default=0.0)

    def __str__(self) -> str:
        p50, p99, most = (1000 * value for value in (self.percentile(0.5), self.percentile(0.99), self.longest))
        return f"health: {len(self.seconds)} answers, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {most:.1f} ms"

    def _sample(self) -> None:
        while not self._over.wait(self._interval):
            began = time.monotonic()
            try:
                answer = self._client.get("/api/health")
            except httpx2.TransportError as error:
                self.failures.append(repr(error))
                continue
            self.seconds.append(time.monotonic() - began)
            if answer.status_code != 200:
                self.failures.append(f"{answer.status_code}: {answer.text}")
