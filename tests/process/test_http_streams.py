"""Streams of one log: promptness, exactness, resuming, and clients that go away."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyserve_exec.states import Status
from tests.process.http_following import follow
from tests.process.http_stand_in import StandIn, stand_in
from tests.processes import descriptors
from tests.waiting import pause, stays_so, wait_until


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path, heartbeat_seconds=0.5) as running:
        yield running


def running_request(peer: StandIn) -> str:
    request_id = peer.submit("queue")
    peer.start(request_id)
    return request_id


@pytest.mark.parametrize("events", [True, False])
def test_LG05_the_last_lines_before_silence_arrive_at_once(peer: StandIn, events: bool) -> None:
    request_id = running_request(peer)
    following = follow(peer, request_id, events=events)
    for number in range(36):
        peer.write(request_id, b"line %d\n" % number)
        pause(0.003)
    peer.write(request_id, b"no newline here")
    written = time.monotonic()
    assert following.wait_for(b"no newline here", seconds=1) - written < 1
    assert following.data == b"".join(b"line %d\n" % number for number in range(36)) + b"no newline here"
    assert not following.closed.is_set()


@pytest.mark.parametrize("followers", [1, 100])
def test_LG06_lag_of_a_steady_source(peer: StandIn, followers: int) -> None:
    request_id = running_request(peer)
    followings = [follow(peer, request_id) for _ in range(followers)]
    written: list[float] = []
    for number in range(30):
        written.append(time.monotonic())
        peer.write(request_id, b"%04d\n" % number)
        pause(0.05)
    wait_until(lambda: all(each.data.endswith(b"0029\n") for each in followings), what="all lines at all followers")
    lags = []
    for following in followings:
        for piece in following.pieces:
            lags += [piece.at - written[int(line)] for line in piece.data.split()]
    lags.sort()
    p50, p99 = (lags[int(len(lags) * share)] for share in (0.5, 0.99))
    print(f"{followers} followers: p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms")
    assert p99 < 1.0


def test_LG10_invalid_bytes_and_look_alikes_are_data(peer: StandIn) -> None:
    request_id = running_request(peer)
    lines = [b"line %d\n" % number for number in range(1000)]
    lines[499] = b"bad \xff byte\n"
    lines[500] = b'data: {}\n\nevent: end\ndata: {"complete":true}\n\n: heartbeat\n\n'
    lines[501] = b"nul \0\0 \x1b]0;title\x07 \xe2\x80\xa8 separator\n"
    lines[502] = b"x" * 1_000_000 + b"\n"
    lines[999] = b"cut character \xe2\x82"
    peer.write(request_id, b"".join(lines))
    following, plain = follow(peer, request_id), follow(peer, request_id, events=False)
    wait_until(lambda: len(following.data) > 1_000_000 and len(plain.data) > 1_000_000, what="the long line")
    stays_so(lambda: following.end is None, seconds=0.3, what="a line that looks like an end is no end")
    peer.settle(request_id)
    assert following.wait_end()["complete"] is True
    assert plain.closed.wait(5)
    assert plain.finished
    assert following.data == plain.data == b"".join(lines)
    kinds = {piece.kind for piece in following.pieces}
    assert kinds == {"text", "bytes"}
    assert [piece.data for piece in following.pieces if piece.kind == "bytes"] == [b"\xff byte\n", b"\xe2\x82"]
    assert all(
        piece.after == sum(len(p.data) for p in following.pieces[: i + 1]) for i, piece in enumerate(following.pieces)
    )


def test_a_character_is_never_split_over_two_text_events(peer: StandIn) -> None:
    request_id = running_request(peer)
    following = follow(peer, request_id)
    text = ("äöü€😀" * 20_000).encode()  # longer than a chunk, and no chunk ends where a character does
    for byte in "€😀".encode():
        peer.write(request_id, bytes([byte]))
        pause(0.03)
    following.wait_for("€😀".encode())
    peer.write(request_id, text)
    wait_until(lambda: len(following.data) == 7 + len(text), what="the long text")
    assert {piece.kind for piece in following.pieces} == {"text"}
    assert following.data == "€😀".encode() + text


def test_LG11_progress_bars_show_while_they_move(peer: StandIn) -> None:
    request_id = running_request(peer)
    following = follow(peer, request_id)
    written = b""
    for number in range(100):
        update = b"\r%3d%%|####| two\x1b[A bars" % number
        peer.write(request_id, update)
        written += update
        pause(0.01)
    peer.write(request_id, b"\nCRLF\r\nnext\r\n" + b"y" * 300_000)
    written += b"\nCRLF\r\nnext\r\n" + b"y" * 300_000
    wait_until(lambda: len(following.data) == len(written), what="all of it")
    assert following.data == written
    moments = [piece.at for piece in following.pieces]
    assert max(after - before for before, after in itertools.pairwise(moments)) < 1.0
    assert len(following.pieces) > 10


@pytest.mark.parametrize("tail", [0, 100])
def test_LG15_a_cut_stream_goes_on_exactly_where_it_was(peer: StandIn, tail: int) -> None:
    request_id = running_request(peer)
    peer.write(request_id, b"".join(b"old %d\n" % number for number in range(200)))
    expected = [b"old %d" % number for number in range(200 - tail if tail else 0, 200)]
    received, offset = b"", None
    for round_number in range(8):
        following = follow(peer, request_id, last_event_id=offset, tail=tail)
        for number in range(5):
            peer.write(request_id, b"new %d-%d\n" % (round_number, number))
            expected.append(b"new %d-%d" % (round_number, number))
        following.wait_for(b"new %d-2\n" % round_number)
        following.disconnect()
        following.closed.wait(5)
        received, offset = received + following.data, following.offset
    following = follow(peer, request_id, last_event_id=offset, tail=tail)
    peer.settle(request_id)
    following.wait_end()
    assert (received + following.data).split(b"\n")[:-1] == expected
    assert follow(peer, "ffff", last_event_id=offset).status == 404


def test_LG22_clients_that_go_away_are_noticed_in_silence(peer: StandIn) -> None:
    request_id = running_request(peer)
    followings = [follow(peer, request_id, cancel_on_disconnect=True, events=number % 2 == 0) for number in range(50)]
    wait_until(lambda: streams(peer) == 50, what="50 streams")
    for following in followings[:-1]:
        following.disconnect()
    wait_until(lambda: streams(peer) == 1, seconds=5, what="all but one have gone")
    stays_so(lambda: not peer.cancels, seconds=1.5, what="one follower is left")
    followings[-1].disconnect()
    wait_until(lambda: peer.cancels, seconds=5, what="the request is cancelled")
    assert [each.request_ids for each in peer.cancels] == [[request_id]]
    wait_until(lambda: streams(peer) == 0, what="no stream is left")
    assert not [name for name in descriptors(peer.pid).values() if name.endswith(".log") and request_id in name]


def test_a_client_that_comes_back_does_not_cancel(peer: StandIn) -> None:
    request_id = running_request(peer)
    follow(peer, request_id, cancel_on_disconnect=True).disconnect()
    again = follow(peer, request_id, cancel_on_disconnect=True)
    stays_so(lambda: not peer.cancels, seconds=1.5, what="it came back in time")
    peer.settle(request_id)
    again.wait_end()
    stays_so(lambda: not peer.cancels, seconds=1.3, what="a stream that has ended cancels nothing")


def test_heartbeats_and_waiting_events_keep_a_silent_stream_alive(peer: StandIn) -> None:
    blocker = running_request(peer)
    request_id = peer.submit("queue")
    following, plain = follow(peer, request_id), follow(peer, request_id, events=False)
    wait_until(lambda: following.waiting, what="the reason it waits")
    assert following.waiting[0]["position"] == 0
    assert following.waiting[0]["holders"][0]["request_id"] == blocker
    assert blocker[:8] in following.waiting[0]["reason"]
    wait_until(lambda: following.heartbeats >= 3, what="heartbeats")
    peer.start(request_id)
    peer.write(request_id, b"go\n")
    following.wait_for(b"go\n", seconds=1)
    assert plain.wait_for(b"go\n", seconds=1)
    peer.settle(request_id, Status.FAILED, exit_code=3, error={"type": "Boom", "message": "no"})
    assert following.wait_end() == {
        "request_id": request_id,
        "status": "FAILED",
        "exit_code": 3,
        "error": {"type": "Boom", "message": "no"},
        "complete": True,
    }
    assert plain.closed.wait(5)
    assert plain.data == b"go\n"
    for name, value in {"x-accel-buffering": "no", "cache-control": "no-store"}.items():
        assert following.headers[name] == plain.headers[name] == value
    assert following.headers["x-skypilot-stream-request-id"] == request_id


def test_what_is_written_just_before_the_end_is_not_lost(peer: StandIn) -> None:
    for number in range(30):
        request_id = running_request(peer)
        following, plain = follow(peer, request_id), follow(peer, request_id, events=False)
        peer.write(request_id, b"a" * 200_000 + b"%d" % number)
        peer.settle(request_id)
        following.wait_end()
        assert plain.closed.wait(5)
        assert following.data == plain.data == b"a" * 200_000 + b"%d" % number


def test_the_end_is_found_although_no_push_came(peer: StandIn) -> None:
    request_id = running_request(peer)
    following = follow(peer, request_id)
    peer.write(request_id, b"output\n")
    following.wait_for(b"output\n")
    peer.settle(request_id, push=False, exit_code=0)
    assert following.wait_end(15)["status"] == "SUCCEEDED"


def test_offsets_tails_and_the_latest_request(peer: StandIn) -> None:
    request_id = running_request(peer)
    peer.write(request_id, b"one\ntwo\nthree")
    cases: tuple[tuple[dict[str, Any], bytes], ...] = (
        ({"offset": 4}, b"two\nthree"),
        ({"offset": 999}, b""),
        ({"tail": 1}, b"three"),
        ({"tail": 2}, b"two\nthree"),
        ({"tail": 3}, b"one\ntwo\nthree"),
        ({"tail": 400}, b"one\ntwo\nthree"),
    )
    for query, expected in cases:
        following = follow(peer, None, **{"follow": False, **query})
        assert following.wait_end()["status"] == "RUNNING"
        assert following.data == expected, query
    peer.write(request_id, b"\n")
    following = follow(peer, request_id[:6], follow=False, tail=1, events=False)
    assert following.closed.wait(5)
    assert following.data == b"three\n"


def test_a_log_that_is_not_there_yet(peer: StandIn) -> None:
    request_id = peer.submit("queue")
    following = follow(peer, request_id)
    wait_until(lambda: following.waiting, what="it waits")
    assert peer.log(request_id).stat().st_mode & 0o777 == 0o600
    peer.start(request_id)
    peer.write(request_id, b"first\n")
    following.wait_for(b"first\n")
    silent = running_request(peer)
    peer.settle(silent)
    assert follow(peer, silent).wait_end()["complete"] is True
    assert not peer.log(silent).exists()


def test_a_writer_that_outlives_its_request_does_not_hold_the_stream(peer: StandIn) -> None:
    request_id = running_request(peer)
    peer.write(request_id, b"before\n")
    peer.settle(request_id)
    following = follow(peer, request_id)
    peer.write(request_id, b"after\n")
    assert following.wait_end()["complete"] is True


def streams(peer: StandIn) -> int:
    return int(peer.http.get("/api/health").json()["http"]["streams"])
