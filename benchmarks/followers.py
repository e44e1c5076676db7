"""200 followers of one log: how late a line arrives, whether the server still answers, and what silent ones cost.

Room: the process of this measurement. One event loop for the followers, one thread that asks for health.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from dataclasses import dataclass, field
from typing import cast

import uvloop

from benchmarks.load_client import Connection, Target
from benchmarks.memory import cpu_seconds
from benchmarks.ours_server import OurServer
from benchmarks.scale import Scale
from benchmarks.statistics_of_runs import summary_of

TICK = re.compile(rb"tick (\d+) \.")
LONGEST_TICK = 40  # bytes of a line that may be cut off at the end of a chunk
LINES_PER_SECOND = 10.0
LEAD_SECONDS = 3.0  # for all followers to connect, before what is measured
HEALTH_PAUSE = 0.02
EVENTS = {"Accept": "text/event-stream"}


@dataclass(slots=True)
class Seen:
    """What all followers of one log saw."""

    lags: list[float] = field(default_factory=list)
    counted_from: int = 0
    ended: int = 0


class Follower(asyncio.Protocol):
    """One connection that follows a log to its end."""

    def __init__(self, request: bytes, seen: Seen, done: asyncio.Event, expected: int) -> None:
        self._request, self._seen, self._done, self._expected = request, seen, done, expected
        self._rest = b""
        self.lines = 0
        self.head = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if not self.head:
            self.head = data[:100]
        text = self._rest + data
        end = 0
        for match in TICK.finditer(text):
            self.lines += 1
            end = match.end()
            printed = int(match[1])
            if printed >= self._seen.counted_from:
                self._seen.lags.append((now - printed) / 1e9)
        self._rest = text[max(end, len(text) - LONGEST_TICK) :]

    def connection_lost(self, exc: Exception | None) -> None:
        self._seen.ended += 1
        if self._seen.ended == self._expected:
            self._done.set()


class HealthPoll(threading.Thread):
    """Asks for health every 20 ms until told to stop."""

    def __init__(self, target: Target) -> None:
        super().__init__(daemon=True)
        self._request = target.request("GET", "/api/health")
        self._connection = Connection(target)
        self.stopping = threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self.stopping.wait(HEALTH_PAUSE):
            begin = time.perf_counter()
            self._connection.exchange(self._request)
            self.seconds.append(time.perf_counter() - begin)
        self._connection.close()


def measure(scale: Scale) -> dict[str, float]:
    """SSE followers, plain followers, and followers of a log that nobody writes to."""
    server = OurServer()
    try:
        target = server.wait_healthy()
        quiet = _cores(server, scale.idle_seconds / 2)
        figures = {"no_followers_cores": quiet["tree"]}
        figures |= uvloop.run(_busy(server, target, "sse", EVENTS, scale))
        figures |= uvloop.run(_busy(server, target, "plain", {}, scale))
        figures |= uvloop.run(_idle(server, target, scale, quiet["tree"]))
        return figures
    finally:
        server.launched.stop()


async def _busy(
    server: OurServer, target: Target, name: str, headers: dict[str, str], scale: Scale
) -> dict[str, float]:
    seconds = LEAD_SECONDS + scale.follow_seconds
    request_id = _submit(target, "/ticks", {"seconds": seconds, "per_second": LINES_PER_SECOND})
    seen, done = Seen(counted_from=time.monotonic_ns() + int(LEAD_SECONDS * 1e9)), asyncio.Event()
    followers = await _follow(target, request_id, headers, seen, done, scale.followers)
    await asyncio.sleep(max(0.0, (seen.counted_from - time.monotonic_ns()) / 1e9))
    health = HealthPoll(target)
    health.start()
    before, begin, client = _cpu(server), time.monotonic(), time.process_time()
    await asyncio.wait_for(done.wait(), seconds + 30)
    took = time.monotonic() - begin
    cores = {f"{name}_{role}_cores": (used - before.get(role, 0)) / took for role, used in _cpu(server).items()}
    cores[f"{name}_client_cores"] = (time.process_time() - client) / took
    health.stopping.set()
    health.join(30)
    _check_complete(followers, int(seconds * LINES_PER_SECOND))
    return summary_of(f"{name}_lag", seen.lags) | summary_of(f"{name}_health", health.seconds) | cores


async def _idle(server: OurServer, target: Target, scale: Scale, without: float) -> dict[str, float]:
    request_id = _submit(target, "/hold", {"seconds": scale.idle_seconds + LEAD_SECONDS + 10})
    done = asyncio.Event()
    followers = await _follow(target, request_id, EVENTS, Seen(), done, scale.followers)
    await asyncio.sleep(LEAD_SECONDS)
    used = await asyncio.to_thread(_cores, server, scale.idle_seconds)
    for follower in followers:
        if follower.transport is not None:
            follower.transport.abort()
    return {"idle_tree_cores": used["tree"], "idle_followers_cores": max(0.0, used["tree"] - without)}


async def _follow(
    target: Target, request_id: str, headers: dict[str, str], seen: Seen, done: asyncio.Event, count: int
) -> list[Follower]:
    """Connects all followers, a few at a time."""
    request = target.request("GET", f"/api/stream?request_id={request_id}&follow=true", None, headers, keep=False)
    loop = asyncio.get_running_loop()
    followers: list[Follower] = []

    def one() -> Follower:
        return Follower(request, seen, done, count)

    while len(followers) < count:
        some = min(20, count - len(followers))
        made = (
            loop.create_connection(lambda: Follower(request, seen, done, count), *target.address) for _ in range(some)
        )
        followers += [follower for _transport, follower in await asyncio.gather(*made)]
    return followers


def _check_complete(followers: list[Follower], lines: int) -> None:
    for follower in followers:
        if not follower.head.startswith(b"HTTP/1.1 200"):
            raise ValueError(f"a follower was answered {follower.head!r}")
        if follower.lines != lines:
            raise ValueError(f"a follower saw {follower.lines} of {lines} lines")


def _submit(target: Target, path: str, body: dict[str, float]) -> str:
    connection = Connection(target)
    answer = connection.exchange(target.request("POST", path, body))
    connection.close()
    if answer.status != 202:
        raise ValueError(f"{path}: answer {answer.status}: {answer.body[:300]!r}")
    return str(answer.json()["request_id"])


def _cores(server: OurServer, seconds: float) -> dict[str, float]:
    before = _cpu(server)
    time.sleep(seconds)  # the interval is what is measured
    after = _cpu(server)
    return {role: (used - before.get(role, 0.0)) / seconds for role, used in after.items()}


def _cpu(server: OurServer) -> dict[str, float]:
    used = {role: sum(map(cpu_seconds, pids)) for role, pids in server.roles().items()}
    return used | {"tree": sum(used.values())}
