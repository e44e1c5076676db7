"""Why a request waits, in words and figures; asked once in a while however many follow it.

Room: http process, event loop.
"""

from __future__ import annotations

import time
from typing import Any

from skyserve_exec.record import RequestRow
from skyserve_exec.server.reading import Reading
from skyserve_exec.store.request_reader import MAX_POSITION, Holder, Waiting

FRESH_SECONDS = 4.0
MOST_KEPT = 512
MOST_NAMED = 3


class PendingReasons:
    """What pending requests wait for, as of a few seconds ago."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    async def of(self, row: RequestRow) -> dict[str, Any]:
        """`reason`, `position`, `holders`, `locked_by`."""
        at, known = self._known.get(row.request_id, (0.0, {}))
        if known and time.monotonic() - at < FRESH_SECONDS:
            return known
        known = explain(row, await self._reading.waiting(row), time.time())
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[row.request_id] = (time.monotonic(), known)
        return known


def explain(row: RequestRow, waiting: Waiting, now: float) -> dict[str, Any]:
    """The words and figures for one pending request."""
    return {
        "reason": reason(row, waiting, now),
        "position": waiting.position,
        "holders": [holder._asdict() for holder in waiting.holders],
        "locked_by": waiting.locked_by,
    }


def reason(row: RequestRow, waiting: Waiting, now: float) -> str:
    """One line: what it waits for, and who is before it."""
    before = f"{row.reason}; " if row.reason else ""
    if waiting.locked_by is not None:
        return f"{before}waits for request {waiting.locked_by[:8]}, which has cluster {row.cluster}"
    ahead = f"{waiting.position}+" if waiting.position >= MAX_POSITION else str(waiting.position)
    place = "next in its queue" if not waiting.position else f"{ahead} before it"
    if not waiting.holders:
        return f"{before}waits for a {row.schedule_type} executor; {place}"
    return f"{before}waits for a {row.schedule_type} executor; {place}; running: {_named(waiting.holders, now)}"


def _named(holders: list[Holder], now: float) -> str:
    shown = [
        f"{each.name} {each.request_id[:8]} for {_age(now - (each.started_at or now))}" for each in holders[:MOST_NAMED]
    ]
    more = len(holders) - MOST_NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _age(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"
