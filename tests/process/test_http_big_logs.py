"""Large logs: fast to fast clients, and no memory for slow ones."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.http_following import chunks, follow, open_stream, read_head
from tests.process.http_stand_in import StandIn, stand_in
from tests.processes import rss_of
from tests.waiting import wait_until

MIB = 1024 * 1024


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path) as running:
        yield running


def finished_request(peer: StandIn) -> str:
    request_id = peer.submit("queue")
    peer.start(request_id)
    peer.settle(request_id, exit_code=0)
    return request_id


def make_huge(path: Path, size: int, last_lines: bytes) -> None:
    """A sparse file of that size that ends with these lines."""
    with path.open("wb") as file:
        file.truncate(size - len(last_lines))
        file.seek(0, os.SEEK_END)
        file.write(last_lines)


@pytest.mark.parametrize("events", [True, False])
def test_LG08_a_log_of_600000_lines_arrives_in_seconds(peer: StandIn, events: bool) -> None:
    request_id = finished_request(peer)
    content = b"".join(b"line %019d\n" % number for number in range(600_000))
    peer.log(request_id).write_bytes(content)
    began = time.monotonic()
    following = follow(peer, request_id, events=events)
    assert following.closed.wait(30)
    seconds = time.monotonic() - began
    print(f"{len(content) / MIB:.1f} MiB in {seconds:.2f} s")
    assert following.finished
    assert seconds < 5
    assert hashlib.sha256(following.data).digest() == hashlib.sha256(content).digest()


@pytest.mark.parametrize("events", [True, False])
def test_LG08_slow_clients_cost_no_memory_and_nobody_else_time(peer: StandIn, events: bool) -> None:
    request_id = finished_request(peer)
    make_huge(peer.log(request_id), 1024 * MIB, b"end\n")
    other = peer.submit("queue")
    peer.start(other)
    before = rss_of(peer.pid)
    accept = {"Accept": "text/event-stream"} if events else {}
    slow = [open_stream(peer, {"request_id": request_id}, accept) for _ in range(10)]
    live = follow(peer, other)
    try:
        for sock in slow:
            sock.settimeout(5)
        most, deadline, lags = 0, time.monotonic() + 4, []
        while time.monotonic() < deadline:
            for sock in slow:
                sock.recv(1000)
            written = time.monotonic()
            peer.write(other, b"%f\n" % written)
            lags.append(live.wait_for(b"%f\n" % written) - written)
            most = max(most, rss_of(peer.pid) - before)
        print(f"growth {most / MIB:.1f} MiB, slowest line {max(lags) * 1000:.0f} ms")
        assert most < 20 * MIB
        assert max(lags) < 0.5
    finally:
        for sock in slow:
            sock.close()
        live.disconnect()


def test_LG29_the_tail_of_a_huge_log_is_read_from_its_end(peer: StandIn) -> None:
    request_id = finished_request(peer)
    lines = b"".join(b"last %d\n" % number for number in range(1000))
    make_huge(peer.log(request_id), 2048 * MIB, b"\n" + lines)
    before = rss_of(peer.pid)
    began = time.monotonic()
    followings = [follow(peer, request_id, tail=100, events=number % 2 == 0) for number in range(10)]
    for following in followings:
        assert following.closed.wait(5)
    seconds = time.monotonic() - began
    print(f"10 tails in {seconds * 1000:.0f} ms, growth {(rss_of(peer.pid) - before) / MIB:.1f} MiB")
    assert seconds < 1
    assert {following.data for following in followings} == {b"".join(lines.splitlines(keepends=True)[-100:])}
    assert rss_of(peer.pid) - before < 30 * MIB


def test_LG29_ten_clients_read_a_huge_log_whole(peer: StandIn) -> None:
    request_id = finished_request(peer)
    size = 2048 * MIB
    make_huge(peer.log(request_id), size, b"end\n")
    before, most = rss_of(peer.pid), 0
    socks = [open_stream(peer, {"request_id": request_id}, {}) for _ in range(10)]
    try:
        # One reads all of it; the others read on and off meanwhile.
        _, _, rest = read_head(socks[0])
        received, looked = 0, 0
        for chunk in chunks(socks[0], rest):
            received += len(chunk)
            if received - looked > 64 * MIB:
                looked = received
                most = max(most, rss_of(peer.pid) - before)
                for sock in socks[1:]:
                    sock.recv(65536)
        print(f"{received / MIB:.0f} MiB, growth {most / MIB:.1f} MiB")
        assert received == size
        assert most < 30 * MIB
    finally:
        for sock in socks:
            sock.close()
    wait_until(lambda: peer.http.get("/api/health").json()["http"]["streams"] == 0, what="no stream is left")


def test_a_tail_of_one_endless_line(peer: StandIn) -> None:
    request_id = finished_request(peer)
    make_huge(peer.log(request_id), 64 * MIB, b"end")
    following = follow(peer, request_id, tail=3, events=False)
    assert following.closed.wait(20)
    assert len(following.data) == 64 * MIB
    assert following.data.endswith(b"\0end")
