"""A client that follows a log over a plain socket and remembers what came when."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import orjson

from tests.process.http_stand_in import StandIn
from tests.waiting import wait_until


@dataclass(slots=True)
class Piece:
    """A text or bytes event: when it came, the offset after it, what it holds."""

    at: float
    kind: str
    after: int
    data: bytes


@dataclass(slots=True)
class Following:
    """What one stream has brought so far."""

    sock: socket.socket
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    heartbeats: int = 0
    end: dict[str, Any] | None = None
    finished: bool = False  # the body came to its proper end
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def data(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def offset(self) -> int:
        """Where to go on from."""
        return self.pieces[-1].after if self.pieces else 0

    def wait_for(self, text: bytes, seconds: float = 5.0) -> float:
        """The moment at which the text was there."""
        wait_until(lambda: text in self.data or self.closed.is_set(), seconds=seconds, what=f"{text[:60]!r} arrives")
        assert text in self.data, self.data[-200:]
        return self.pieces[-1].at

    def wait_end(self, seconds: float = 10.0) -> dict[str, Any]:
        """The end event."""
        assert self.closed.wait(seconds), f"the stream goes on; it has {self.data[-200:]!r}"
        assert self.end is not None, f"no end event after {self.data[-200:]!r}"
        return self.end

    def disconnect(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def take(self, block: bytes) -> None:
        """One server-sent event or comment."""
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
        if not fields:
            self.heartbeats += 1
            return
        kind = fields[b"event"]
        data: Any = None if kind == b"bytes" else orjson.loads(fields[b"data"])
        if kind == b"text":
            self.pieces.append(Piece(time.monotonic(), "text", int(fields[b"id"]), data.encode()))
        elif kind == b"bytes":
            raw = base64.b64decode(fields[b"data"], validate=True)
            self.pieces.append(Piece(time.monotonic(), "bytes", int(fields[b"id"]), raw))
        elif kind == b"waiting":
            self.waiting.append(data)
        else:
            assert kind == b"end", block
            self.end = data


def follow(
    peer: StandIn, request_id: str | None, *, events: bool = True, last_event_id: int | None = None, **query: Any
) -> Following:
    """Opens a stream and reads it in a thread until it ends."""
    given = {name: str(value).lower() for name, value in query.items()}
    sock = open_stream(
        peer,
        {**({} if request_id is None else {"request_id": request_id}), **given},
        {"Accept": "text/event-stream" if events else "*/*"}
        | ({} if last_event_id is None else {"Last-Event-ID": str(last_event_id)}),
    )
    following = Following(sock)
    following.status, following.headers, rest = read_head(sock)
    reader = threading.Thread(target=_read, args=(following, rest, events and following.status == 200), daemon=True)
    reader.start()
    return following


def open_stream(peer: StandIn, query: dict[str, str], headers: dict[str, str]) -> socket.socket:
    """A connection on which the stream was asked for."""
    sock = socket.create_connection(peer.address, timeout=60)
    lines = [
        f"GET /api/stream?{urlencode(query)} HTTP/1.1",
        f"Host: {peer.address[0]}:{peer.address[1]}",
        f"Authorization: Bearer {peer.token}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    return sock


def read_head(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers, and the bytes behind them."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = sock.recv(65536)
        assert more, f"closed after {received!r}"
        received += more
    head, _, rest = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {key.lower(): value for key, value in (line.split(": ", 1) for line in lines)}, rest


def chunks(sock: socket.socket, rest: bytes) -> Iterator[bytes]:
    """The chunks of a chunked body; the last one is empty. Ends early when the connection is cut."""
    received = bytearray(rest)
    while True:
        while (end := received.find(b"\r\n")) < 0 or len(received) < end + 4 + int(received[:end], 16):
            try:
                more = sock.recv(262144)
            except OSError:
                return
            if not more:
                return
            received += more
        size = int(received[:end], 16)
        yield bytes(received[end + 2 : end + 2 + size])
        del received[: end + 4 + size]
        if not size:
            return


def _read(following: Following, rest: bytes, events: bool) -> None:
    pending = b""
    for chunk in chunks(following.sock, rest):
        following.finished = not chunk
        if not events:
            if chunk:
                following.pieces.append(Piece(time.monotonic(), "plain", following.offset + len(chunk), chunk))
            continue
        *blocks, pending = (pending + chunk).split(b"\n\n")
        for block in blocks:
            following.take(block)
    following.closed.set()
    following.sock.close()
