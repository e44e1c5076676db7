"""A lean HTTP/1.1 client: prepared bytes on kept-alive sockets, because its CPU time comes off the same cores.

Room: the benchmark's processes. One thread; no HTTP library; checks every answer.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.scale import CALL_SECONDS

RECEIVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A server and the token for it."""

    host: str
    port: int
    token: str

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, *, keep: bool = True
    ) -> bytes:
        """The bytes of one request, made once and sent often."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}", f"Authorization: Bearer {self.token}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        if not keep:
            lines.append("Connection: close")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + content

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def connect(self) -> socket.socket:
        sock = socket.create_connection(self.address, CALL_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of one response with a Content-Length."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One blocking kept-alive connection."""

    def __init__(self, target: Target) -> None:
        self._sock = target.connect()

    def exchange(self, request: bytes) -> Answer:
        """Sends one request and reads its answer.

        Raises:
            ConnectionError: the server closed the connection.
        """
        self._sock.sendall(request)
        data = self._sock.recv(RECEIVE_BYTES)
        while (answer := answer_in(data)) is None:
            more = self._sock.recv(RECEIVE_BYTES)
            if not more:
                raise ConnectionError(f"closed by the server after {data[:200]!r}")
            data += more
        return answer

    def close(self) -> None:
        self._sock.close()


def answer_in(data: bytes) -> Answer | None:
    """The response in these bytes, None while it is not complete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].lower()
    at = head.find(b"\r\ncontent-length:")
    size = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
    if len(data) < end + 4 + size:
        return None
    return Answer(int(head[9:12]), data[end + 4 : end + 4 + size])


@dataclass(slots=True)
class Load:
    """What came of many requests."""

    seconds: float = 0.0
    client_cpu_seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Lane:
    """One of the connections that send at the same time."""

    sock: socket.socket
    sent_at: float = 0.0
    data: bytes = b""


def run_many(target: Target, request: bytes, count: int, lanes: int, check: Callable[[Answer], bool]) -> Load:
    """Sends the same request `count` times over `lanes` connections, each waiting for its answer before the next.

    Raises:
        ValueError: an answer did not pass the check.
        ConnectionError: the server closed a connection.
        TimeoutError: no answer came for CALL_SECONDS.
    """
    load = Load()
    left = count
    with selectors.EpollSelector() as selector:
        opened = [Lane(target.connect()) for _ in range(min(lanes, count))]
        for lane in opened:
            selector.register(lane.sock, selectors.EVENT_READ, lane)
        begin, cpu = time.perf_counter(), time.process_time()
        for lane in opened:
            _send(lane, request)
        left -= len(opened)
        while len(load.latencies) < count:
            ready = selector.select(CALL_SECONDS)
            if not ready:
                raise TimeoutError(f"no answer for {CALL_SECONDS:g} s, {count - len(load.latencies)} missing")
            for key, _events in ready:
                if _take(key.data, load, check) and left > 0:
                    left -= 1
                    _send(key.data, request)
        load.seconds, load.client_cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
        for lane in opened:
            lane.sock.close()
    return load


def _send(lane: Lane, request: bytes) -> None:
    lane.sent_at = time.perf_counter()
    lane.sock.sendall(request)


def _take(lane: Lane, load: Load, check: Callable[[Answer], bool]) -> bool:
    received = lane.sock.recv(RECEIVE_BYTES)
    if not received:
        raise ConnectionError("closed by the server")
    lane.data = lane.data + received if lane.data else received
    answer = answer_in(lane.data)
    if answer is None:
        return False
    load.latencies.append(time.perf_counter() - lane.sent_at)
    lane.data = b""
    if not check(answer):
        raise ValueError(f"answer {answer.status}: {answer.body[:300]!r}")
    return True
