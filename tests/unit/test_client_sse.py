"""Server-sent events, cut anywhere."""

from __future__ import annotations

import random

import pytest

from skyserve_exec.client.sse import Event, EventParser

STREAM = (
    b': heartbeat\n\nevent: waiting\ndata: {"reason":"full"}\n\n'
    b'id: 5\nevent: text\ndata: "ab\\rc\\n"\n\n'
    b"id:9\r\nevent:bytes\r\ndata:/v8=\r\n\r\n"
    b"data: one\ndata: two\n\n\n"
    b'event: end\ndata: {"status":"SUCCEEDED"}\n\n'
)
EVENTS = [
    Event("", b"heartbeat"),
    Event("waiting", b'{"reason":"full"}'),
    Event("text", b'"ab\\rc\\n"', "5"),
    Event("bytes", b"/v8=", "9"),
    Event("message", b"one\ntwo"),
    Event("end", b'{"status":"SUCCEEDED"}'),
]


def test_a_whole_stream() -> None:
    assert EventParser().feed(STREAM) == EVENTS


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_in_pieces(seed: int) -> None:
    chance, parser, events = random.Random(seed), EventParser(), []
    rest = STREAM
    while rest:
        size = chance.randint(1, 7)
        events += parser.feed(rest[:size])
        rest = rest[size:]
    assert events == EVENTS


def test_an_unfinished_event_is_no_event() -> None:
    assert EventParser().feed(b'event: end\ndata: {"status"') == []


def test_bytes_are_looked_at_once_however_long_the_line_is() -> None:
    parser = EventParser()
    chunk = b"x" * 65536
    assert parser.feed(b"data: ") == []
    for _ in range(200):
        assert parser.feed(chunk) == []
    (event,) = parser.feed(b"\n\n")
    assert len(event.data) == 200 * 65536
