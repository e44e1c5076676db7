"""A piece of a log, and the server-sent events it becomes.

Text travels as JSON strings, so that CR, ANSI codes and lines that look like events stay data. What is not UTF-8
travels as base64. A character whose bytes are not all there yet is held back, so no text event ends inside one.

Room: http process, event loop. Pure.
"""

from __future__ import annotations

import base64
import functools
from dataclasses import dataclass

import orjson

LONGEST_CHARACTER = 4


@dataclass(frozen=True)
class Chunk:
    """Bytes of a log from `offset` on. Encoded once, however many followers are sent it."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    @functools.cached_property
    def events(self) -> tuple[bytes, int]:
        """The events, and the offset after them: before a character that is not complete yet."""
        kept = len(self.data) - incomplete_tail(self.data)
        return encode_events(self.offset, self.data[:kept]), self.offset + kept

    @property
    def last_events(self) -> bytes:
        """The events of everything, when nothing will come after it."""
        return encode_events(self.offset, self.data)


def encode_events(offset: int, data: bytes) -> bytes:
    """`text` events, and `bytes` events for the lines from their first invalid byte on."""
    parts: list[bytes] = []
    start = 0
    while start < len(data):
        try:
            text, end = data[start:].decode() if start else data.decode(), len(data)
        except UnicodeDecodeError as error:
            bad = start + error.start
            if bad > start:
                parts.append(_text_event(data[start:bad].decode(), offset + bad))
            newline = data.find(b"\n", bad)
            end = len(data) if newline < 0 else newline + 1
            parts.append(_bytes_event(data[bad:end], offset + end))
        else:
            parts.append(_text_event(text, offset + end))
        start = end
    return b"".join(parts)


def incomplete_tail(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character without finishing it."""
    for back in range(1, min(LONGEST_CHARACTER, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        size = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if byte < 0xF8 and size > back else 0
    return 0


def _text_event(text: str, after: int) -> bytes:
    return b"id: %d\nevent: text\ndata: %b\n\n" % (after, orjson.dumps(text))


def _bytes_event(data: bytes, after: int) -> bytes:
    return b"id: %d\nevent: bytes\ndata: %b\n\n" % (after, base64.b64encode(data))
