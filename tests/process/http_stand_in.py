"""The http process alone: the real module as a subprocess, and the other end of its channel played by the test.

The stand-in keeps a real requests table and real log files; a test moves requests on by hand, or lets every request
succeed at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson

from skyserve_exec import settings
from skyserve_exec.errors import SkyserveError
from skyserve_exec.messages import (
    Accepted,
    Cancel,
    CancelDone,
    Draining,
    Goodbye,
    Message,
    Refused,
    Settled,
    Snapshot,
    Started,
    Submit,
    Welcome,
)
from skyserve_exec.paths import StateDir
from skyserve_exec.record import RequestRow, record_of
from skyserve_exec.settings import Settings
from skyserve_exec.states import Status
from skyserve_exec.store.requests import RequestStore
from skyserve_exec.system.channel import Channel, ChannelClosed
from tests.server_under_test import environment
from tests.waiting import wait_until

BOOT_ID = "stand-in"
TOKEN = "secret-of-the-test"
IDLE_POOL = {"size": 2, "busy": 0, "idle": 2, "starting": 0, "lost": 0, "replaced": 0, "running": []}


@dataclass(slots=True)
class StandIn:
    """serve's end. `succeed_at_once`: every submitted request has ended before the next message is read."""

    state: StateDir
    settings: Settings
    store: RequestStore
    channel: Channel
    process: subprocess.Popen[bytes]
    address: tuple[str, int]
    token: str | None = TOKEN
    succeed_at_once: bool = False
    refuse: Refused | None = None
    problem: str = ""
    pools: dict[str, dict[str, Any]] = field(default_factory=lambda: {"long": IDLE_POOL, "short": IDLE_POOL})
    cancels: list[Cancel] = field(default_factory=list)
    submits: list[Submit] = field(default_factory=list)
    silent: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    over: threading.Event = field(default_factory=threading.Event)
    clients: list[httpx2.Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def http(self) -> httpx2.Client:
        return self.clients[0] if self.clients else self.client()

    def client(self, **options: Any) -> httpx2.Client:
        """A client with the token; closed at the end."""
        headers = {"Authorization": f"Bearer {self.token}"} | options.pop("headers", {})
        made = httpx2.Client(base_url=self.url, headers=headers, trust_env=False, timeout=30.0, **options)
        self.clients.append(made)
        return made

    # --- what serve does --------------------------------------------------------------------------------------------

    def submit(self, name: str = "queue", **payload: Any) -> str:
        """Posts a request; its id. It stays PENDING unless the stand-in lets it succeed."""
        answer = self.http.post(f"/{name}", json=payload)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["request_id"])

    def start(self, *request_ids: str) -> None:
        """PENDING -> RUNNING for all that are pending; tells http about these."""
        with self.lock:
            with self.store.transaction():
                for kind in ("long", "short"):
                    self.store.claim(kind, [f"{kind}-{number}" for number in range(10_000)], BOOT_ID, time.time())
            self.tell(Started(list(request_ids)))

    def settle(
        self,
        request_id: str,
        status: Status = Status.SUCCEEDED,
        *,
        push: bool = True,
        result: Any = None,
        error: dict[str, Any] | None = None,
        exit_code: int | None = None,
    ) -> RequestRow:
        """RUNNING -> terminal; `push` False: http has to find out by itself."""
        with self.lock:
            row = self._settle(request_id, status, result, error, exit_code)
            if push:
                self.tell(Settled({request_id: record_of(row)}))
        return row

    def tell_settled_without_record(self, request_id: str) -> None:
        """As for a record that is too large for a message."""
        self.tell(Settled({request_id: None}))

    def log(self, request_id: str) -> Path:
        return self.state.log_of(request_id)

    def write(self, request_id: str, data: bytes) -> None:
        """Appends to the request's log, as an executor does."""
        descriptor = os.open(self.log(request_id), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def drain(self) -> None:
        self.tell(Draining(5.0))

    def goodbye(self) -> int:
        """Ends the http process; its exit code."""
        self.tell(Goodbye())
        return self.process.wait(10)

    def tell(self, message: Message) -> None:
        with self.lock:
            self.channel.send(message)
            while self.channel.wants_write:
                select.select([], [self.channel], [], 1.0)
                self.channel.flush()

    def report(self) -> None:
        """Sends a snapshot."""
        self.tell(Snapshot(time.time(), False, self.pools, {}, 0, {"accepted": len(self.submits)}, self.problem))

    def server_log(self) -> str:
        return self.state.server_log.read_text() if self.state.server_log.exists() else ""

    # --- its loop ---------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answers until the end of the test."""
        reported = 0.0
        while not self.over.is_set():
            if not self.silent and time.monotonic() - reported > 0.5:
                reported = time.monotonic()
                with contextlib.suppress(ChannelClosed):
                    self.report()
            readable, _, _ = select.select([self.channel], [], [], 0.05)
            if readable and not self.silent:
                try:
                    with self.lock:
                        self._take(self.channel.receive())
                except ChannelClosed:
                    return

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Submit):
                self.tell(self._insert(message))
                if self.succeed_at_once and not self.refuse:
                    self.start()
                    self.settle(message.request_id, result={"ok": True})
            elif isinstance(message, Cancel):
                self.cancels.append(message)
                self.tell(CancelDone(message.ticket, dict.fromkeys(message.request_ids, "cancelling")))

    def _insert(self, message: Submit) -> Message:
        if self.refuse is not None:
            return Refused(message.ticket, self.refuse.error, self.refuse.message, self.refuse.hint)
        try:
            with self.store.transaction():
                request_id, duplicate = self.store.insert(message)
        except SkyserveError as error:
            return Refused(message.ticket, type(error).__name__, error.message, error.hint)
        if not duplicate:
            self.submits.append(message)
        return Accepted(message.ticket, request_id, duplicate)

    def _settle(
        self, request_id: str, status: Status, result: Any, error: dict[str, Any] | None, exit_code: int | None
    ) -> RequestRow:
        with self.store.transaction():
            row = self.store.settle(
                request_id,
                status,
                now=time.time(),
                result=orjson.dumps(result).decode(),
                error=None if error is None else orjson.dumps(error).decode(),
                exit_code=exit_code,
            )
        assert row is not None, f"{request_id} is not RUNNING"
        return row


@contextlib.contextmanager
def stand_in(
    directory: Path,
    *,
    token: str | None = TOKEN,
    own_operations: list[dict[str, Any]] | None = None,
    env: dict[str, str] | None = None,
    **options: Any,
) -> Iterator[StandIn]:
    """A ready http process; afterwards it must be gone, with nothing bad in its log."""
    chosen = settings.load({"state_dir": str(directory / "state"), **options}, {})
    state = StateDir(chosen.state_path)
    state.make()
    listener = socket.create_server((chosen.host, 0), backlog=512)
    ours, theirs = socket.socketpair()
    told = settings.for_child(chosen, channel=theirs.fileno(), listener=listener.fileno(), parent=os.getpid())
    store = RequestStore.open(state.database)
    process = subprocess.Popen(
        [sys.executable, "-m", "skyserve_exec.server"],
        env=environment("http", directory, {**told, "SPT_NOENV": "1", **(env or {})}),
        pass_fds=(theirs.fileno(), listener.fileno()),
        start_new_session=True,
    )
    address = ("127.0.0.1", int(listener.getsockname()[1]))
    theirs.close()
    listener.close()
    peer = StandIn(state, chosen, store, Channel(ours), process, address, token)
    peer.tell(Welcome(BOOT_ID, token, chosen.to_json(), own_operations or [], time.time()))
    loop = threading.Thread(target=peer.serve, name="stand-in")
    loop.start()
    try:
        wait_until(lambda: _is_ready(peer), what="the http process is ready")
        yield peer
    finally:
        _end(peer, loop)
    assert "Traceback" not in peer.server_log(), peer.server_log()


def _is_ready(peer: StandIn) -> bool:
    assert peer.process.poll() is None, f"it ended with {peer.process.returncode}: {peer.server_log()}"
    with contextlib.suppress(httpx2.TransportError):
        return httpx2.get(f"{peer.url}/readyz", trust_env=False).status_code == 200
    return False


def _end(peer: StandIn, loop: threading.Thread) -> None:
    for client in peer.clients:
        client.close()
    peer.over.set()
    loop.join()
    with contextlib.suppress(ChannelClosed):
        peer.tell(Goodbye())
    try:
        peer.process.wait(10)
    except subprocess.TimeoutExpired:
        peer.process.kill()
        peer.process.wait()
        raise
    finally:
        peer.channel.close()
        peer.store.close()
