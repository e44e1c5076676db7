"""Bytes to server-sent events and back."""

from __future__ import annotations

import base64
import random

import orjson
import pytest

from skyserve_exec.server.log_chunk import Chunk, encode_events, incomplete_tail

EURO, GRIN = "€".encode(), "😀".encode()


def decoded(events: bytes) -> list[tuple[str, int, bytes]]:
    found = []
    for block in events.split(b"\n\n")[:-1]:
        after, kind, data = (line.partition(b": ")[2] for line in block.split(b"\n"))
        raw = orjson.loads(data).encode() if kind == b"text" else base64.b64decode(data)
        found.append((kind.decode(), int(after), raw))
    return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"abc", 0),
        (EURO, 0),
        (GRIN, 0),
        (b"a" + EURO[:1], 1),
        (b"a" + EURO[:2], 2),
        (GRIN[:3], 3),
        (GRIN[:1], 1),
        (b"\xff", 0),  # begins no character
        (b"\x80\x80", 0),
        (b"\x80\x80\x80\x80\x80", 0),
        (b"\xc3", 1),
        (b"ab\xe2", 1),
    ],
)
def test_incomplete_tail(data: bytes, expected: int) -> None:
    assert incomplete_tail(data) == expected


def test_text_is_one_event_whatever_it_says() -> None:
    text = "a\r\nb\rc\n\nevent: end\ndata: {}\n\n\0\x1b[31m\u2028\u0085"
    assert decoded(encode_events(10, text.encode())) == [("text", 10 + len(text.encode()), text.encode())]


def test_what_is_not_utf8_is_sent_as_bytes_up_to_its_line_end() -> None:
    data = b"ok\nbad \xff here\n" + EURO + b"\n\xfe"
    assert decoded(encode_events(0, data)) == [
        ("text", 7, b"ok\nbad "),
        ("bytes", 14, b"\xff here\n"),
        ("text", 18, EURO + b"\n"),
        ("bytes", 19, b"\xfe"),
    ]


def test_a_character_that_is_not_complete_is_held_back_until_the_end() -> None:
    chunk = Chunk(5, b"x" + EURO[:2])
    events, after = chunk.events
    assert decoded(events) == [("text", 6, b"x")]
    assert after == 6
    assert decoded(chunk.last_events) == [("text", 6, b"x"), ("bytes", 8, EURO[:2])]
    assert Chunk(0, EURO[:1]).events == (b"", 0)


def test_any_bytes_come_back_exactly_however_they_are_cut() -> None:
    made = random.Random(5)
    alphabet = [b"a", b"\n", b"\r", EURO, GRIN, b"\xff", b"\xc3", b"\0", b"\xed\xa0\x80"]
    for _ in range(300):
        data = b"".join(made.choices(alphabet, k=made.randrange(60)))
        received, offset, end = b"", 0, 0
        while offset < len(data):
            end = max(end, min(len(data), offset + made.randrange(1, 9)))
            chunk = Chunk(offset, data[offset:end])
            events, after = (chunk.last_events, chunk.end) if end == len(data) else chunk.events
            for kind, position, raw in decoded(events):
                received += raw
                assert position == len(received)
                assert kind != "text" or raw.decode()
            end += after == offset
            offset = after
        assert received == data


def test_encoded_once() -> None:
    chunk = Chunk(0, b"x" * 100)
    assert chunk.events is chunk.events
