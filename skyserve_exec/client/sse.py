"""Reads server-sent events from the bytes of a stream, however they are cut.

Room: the user's process. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_PENDING = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `id` is None where the event has none. A comment comes as an event with kind ''."""

    kind: str
    data: bytes
    id: str | None = None


class EventParser:
    """Feed it bytes, get events. Line ends may be LF or CRLF."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._lines: list[bytes] = []

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete with these bytes.

        Raises:
            ValueError: one line is too long to be an event of ours.
        """
        searched = max(0, len(self._rest) - 1)
        self._rest += data
        if self._rest.find(b"\n", searched) < 0:
            if len(self._rest) > MAX_PENDING:
                raise ValueError(f"a line of over {MAX_PENDING} bytes")
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        events: list[Event] = []
        for line in lines:
            self._take(line.removesuffix(b"\r"), events)
        return events

    def _take(self, line: bytes, events: list[Event]) -> None:
        if line.startswith(b":"):
            events.append(Event("", line[1:].strip()))
        elif line:
            self._lines.append(line)
        elif self._lines:
            events.append(_event(self._lines))
            self._lines = []


def _event(lines: list[bytes]) -> Event:
    kind, event_id, data = "message", None, []
    for line in lines:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id":
            event_id = value.decode("utf-8", "replace")
    return Event(kind, b"\n".join(data), event_id)
