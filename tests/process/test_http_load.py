"""Many at once: followers, waiters, streams, and disks or clients that are slow. Health answers all the while."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from skyserve_exec.operation_table import Operation
from skyserve_exec.states import ScheduleType
from tests.process.http_following import follow, open_stream
from tests.process.http_stand_in import StandIn, stand_in
from tests.processes import cpu_seconds, rss_of
from tests.waiting import pause, wait_until

MIB = 1024 * 1024
NUMBERS = {"type": "array", "items": {"type": "integer"}}


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path) as running:
        yield running


class Pulse:
    """Asks for health ten times a second in a thread."""

    def __init__(self, peer: StandIn) -> None:
        self._client = peer.client()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seconds: list[float] = []

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def p99(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]

    def _run(self) -> None:
        while not self._over.wait(0.1):
            began = time.monotonic()
            assert self._client.get("/api/health").status_code == 200
            self.seconds.append(time.monotonic() - began)


def reaches(measure: Callable[[], dict[str, float]], **limits: float) -> None:
    """Takes figures up to three times, since others use this machine too; each limit must be kept in the same try."""
    for _ in range(3):
        figures = measure()
        print(", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
        if all(figures[name] <= limit for name, limit in limits.items()):
            return
    assert figures == limits


def running_request(peer: StandIn) -> str:
    request_id = peer.submit("queue")
    peer.start(request_id)
    return request_id


class Count(asyncio.Protocol):
    """One follower of many: remembers when it first saw each numbered line."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.seen: list[float] = []
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received = self.received[-20:] + data
        self.seen += [time.monotonic()] * (data.count(b"line-"))


async def _followers(peer: StandIn, request_id: str, count: int, meanwhile: Callable[[list[Count]], None]) -> None:
    request = (
        f"GET /api/stream?request_id={request_id} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {peer.token}\r\n\r\n"
    ).encode()
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(lambda: Count(request), *peer.address) for _ in range(count)]
    await asyncio.to_thread(wait_until, lambda: streams(peer) == count, seconds=30, what=f"{count} streams")
    await asyncio.to_thread(meanwhile, [protocol for _, protocol in pairs])
    for transport, _ in pairs:
        transport.close()


def test_200_followers_of_ten_lines_a_second(peer: StandIn) -> None:
    def measure() -> dict[str, float]:
        request_id = running_request(peer)
        lags: list[float] = []

        def watch(followers: list[Count]) -> None:
            written = []
            for number in range(40):
                written.append(time.monotonic())
                peer.write(request_id, b"line-%d\n" % number)
                pause(0.1)
            wait_until(lambda: all(len(each.seen) == 40 for each in followers), what="all lines at all followers")
            for each in followers:
                lags.extend(seen - at for seen, at in zip(each.seen, written, strict=True))

        with Pulse(peer) as pulse:
            asyncio.run(_followers(peer, request_id, 200, watch))
        lags.sort()
        return {"lag": lags[int(len(lags) * 0.99)], "longest": lags[-1], "health": pulse.p99}

    reaches(measure, lag=0.2, health=0.1)


def test_idle_followers_cost_next_to_nothing(peer: StandIn) -> None:
    request_id = running_request(peer)
    used: list[float] = []

    def idle(_: list[Count]) -> None:
        before, began = cpu_seconds([peer.pid]), time.monotonic()
        pause(4.0)
        used.append((cpu_seconds([peer.pid]) - before) / (time.monotonic() - began))

    asyncio.run(_followers(peer, request_id, 200, idle))
    print(f"200 idle followers: {used[0]:.3f} of a core")
    assert used[0] <= 0.05


def test_ST12_waiters_do_not_multiply_queries(peer: StandIn) -> None:
    """1000 wait for 1000 requests; a short request costs what it did before, and the process is idle."""
    _cost(peer)
    alone = _cost(peer)
    ids = [peer.submit("queue") for _ in range(1000)]
    idle, among = asyncio.run(_wait_for(peer, ids))
    print(f"{alone * 1e6:.0f} µs of CPU alone, {among * 1e6:.0f} among 1000 waiters; idle: {idle:.3f} of a core")
    assert idle < 0.1
    assert among < alone * 1.3 + 0.0001


async def _wait_for(peer: StandIn, ids: list[str]) -> tuple[float, float]:
    writers = []
    for each in ids:
        _, writer = await asyncio.open_connection(*peer.address)
        writer.write(
            f"GET /api/get?request_id={each}&timeout=60 HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {peer.token}\r\n\r\n".encode()
        )
        writers.append(writer)

    def measure() -> tuple[float, float]:
        wait_until(lambda: waiters(peer) == 1000, seconds=30, what="1000 wait")
        before, began = cpu_seconds([peer.pid]), time.monotonic()
        pause(5.5)  # one safety look is among them
        used = (cpu_seconds([peer.pid]) - before) / (time.monotonic() - began)
        return used, _cost(peer)

    found = await asyncio.to_thread(measure)
    for writer in writers:
        writer.close()
    return found


def _cost(peer: StandIn) -> float:
    """CPU seconds of the http process for one short request with its result."""
    peer.succeed_at_once = True
    before = cpu_seconds([peer.pid])
    for _ in range(200):
        assert peer.http.post("/queue", json={}, headers={"Prefer": "wait=10"}).status_code == 200
    peer.succeed_at_once = False
    return (cpu_seconds([peer.pid]) - before) / 200


def test_1000_streams_of_1000_logs_leave_room_for_health(peer: StandIn) -> None:
    ids = [peer.submit("queue") for _ in range(1000)]
    peer.start(*ids)
    before = rss_of(peer.pid)
    socks = [open_stream(peer, {"request_id": each}, {"Accept": "text/event-stream"}) for each in ids]
    wait_until(lambda: streams(peer) == 1000, seconds=30, what="1000 streams")

    def measure() -> dict[str, float]:
        with Pulse(peer) as pulse:
            for each in ids * 3:
                peer.write(each, b"line\n")
            wait_until(lambda: len(pulse.seconds) > 20, what="answers")
        return {"health": pulse.p99, "growth": (rss_of(peer.pid) - before) / MIB}

    reaches(measure, health=0.1, growth=100)
    fresh = follow(peer, ids[500])
    fresh.wait_for(b"line\nline\nline\n")
    fresh.disconnect()
    for sock in socks:
        received = b""
        while received.count(b"line") < 3:
            more = sock.recv(65536)
            assert more
            received += more
        sock.close()
    wait_until(lambda: streams(peer) == 0, what="no stream is left")


def test_HT01_a_write_lock_held_for_long_does_not_block_reading(peer: StandIn) -> None:
    request_id = running_request(peer)
    other = sqlite3.connect(peer.state.database, isolation_level=None)

    def measure() -> dict[str, float]:
        other.execute("BEGIN IMMEDIATE")
        with Pulse(peer) as pulse:
            while len(pulse.seconds) < 30:
                assert peer.http.get("/api/get", params={"request_id": request_id, "timeout": 0}).status_code == 200
                assert peer.http.get("/api/status").status_code == 200
                pause(0.02)
        other.execute("ROLLBACK")
        return {"health": pulse.p99}

    reaches(measure, health=0.1)
    other.close()


def test_HT01_large_bodies_do_not_block_the_loop(peer: StandIn) -> None:
    script = b'{"task": {"run": "' + b"x" * 900_000 + b'"}}'
    huge = b'{"cluster": "' + b"x" * 10_000_000 + b'"}'
    nearly = b'{"cluster": "' + b"x" * 8_000_000 + b'"}'
    many = b'{"cluster": [' + b"[]," * 2_500_000 + b"[]]}"
    bodies = [("/launch", script, 202), ("/queue", huge, 413), ("/queue", nearly, 400), ("/queue", many, 413)]

    def measure() -> dict[str, float]:
        with Pulse(peer) as pulse:
            for path, body, status in bodies * 5:
                answer = peer.http.post(path, content=body, headers={"Content-Type": "application/json"})
                assert answer.status_code == status, answer.text
                pause(0.1)
        return {"health": pulse.p99}

    reaches(measure, health=0.1)


def test_HT02_what_blocks_the_loop_is_named(tmp_path: Path) -> None:
    """A list of two million numbers is checked in one call, which no other thread can interrupt."""
    own = Operation("add", ScheduleType.SHORT, "", "m:add", "Adds.", schema={"properties": {"numbers": NUMBERS}})
    body = b'{"numbers": [' + b"1," * 2_000_000 + b"1]}"
    with stand_in(tmp_path, own_operations=[own.describe()], stall_seconds=0.05) as peer:
        assert peer.http.post("/add", content=body, headers={"Content-Type": "application/json"}).status_code == 202
        wait_until(lambda: "blocked" in peer.server_log(), what="the line")
        (line,) = peer.server_log().splitlines()
        assert "the event loop was blocked for 0." in line
        assert "server/" in line
        assert peer.http.get("/api/health").json()["http"]["stalls"] == 1
        assert "skyserve_http_stalls_total 1.0" in peer.http.get("/metrics").text


def test_HT01_a_log_that_cannot_be_read_stops_only_its_readers(peer: StandIn) -> None:
    """A pipe without a writer in place of a log: opening it hangs for ever, as on a disk that is gone."""
    hanging = [running_request(peer) for _ in range(3)]
    for each in hanging:
        os.mkfifo(peer.log(each))
    healthy = running_request(peer)
    peer.write(healthy, b"ok\n")
    socks = [open_stream(peer, {"request_id": each}, {}) for each in hanging]
    following = follow(peer, healthy)
    following.wait_for(b"ok\n")

    def measure() -> dict[str, float]:
        with Pulse(peer) as pulse:
            wait_until(lambda: len(pulse.seconds) > 10, what="answers")
        return {"health": pulse.p99}

    reaches(measure, health=0.1)
    for sock, each in zip(socks, hanging, strict=True):
        with peer.log(each).open("wb"):
            pass
        sock.close()
    following.disconnect()


def test_connections_that_say_nothing_cost_nothing(peer: StandIn) -> None:
    with httpx2.Client(base_url=peer.url, trust_env=False) as client:
        socks = [open_silent(peer) for _ in range(300)]
        assert client.get("/livez").status_code == 200
        for sock in socks:
            sock.close()
    assert peer.http.get("/api/health").status_code == 200


def open_silent(peer: StandIn) -> socket.socket:
    sock = socket.create_connection(peer.address)
    sock.sendall(b"POST /queue HTTP/1.1\r\nHost: localh")
    return sock


def streams(peer: StandIn) -> int:
    return int(peer.http.get("/api/health").json()["http"]["streams"])


def waiters(peer: StandIn) -> int:
    return int(peer.http.get("/api/health").json()["http"]["waiting"])
