"""Who waits for which request, and the pushes that end the waiting.

A push may be lost with a supervisor that restarts its http process, so every few seconds ONE query asks how all
awaited requests stand, however many wait.

Room: http process, event loop. Never reads the database itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from skyserve_exec.states import Status


class Watch:
    """One party that waits for one request. Register first, then read the row: no push falls between."""

    __slots__ = ("_wake", "over", "record", "request_id", "settled", "since", "started", "wants_start")

    def __init__(self, request_id: str, wake: Callable[[], None] | None, wants_start: bool) -> None:
        self.request_id = request_id
        self.wants_start = wants_start
        self.settled = False
        self.started = False
        self.over = False  # the server ends: answer with what there is
        self.record: dict[str, Any] | None = None  # None although settled: too large for a push, read the row
        self.since = time.monotonic()
        self._wake = wake

    def wake(self) -> None:
        if self._wake is not None:
            self._wake()

    async def settled_within(self, seconds: float) -> bool:
        """Waits for the end of the request, or of the server, or of the time; whether the request has ended."""
        if self.settled or self.over or seconds <= 0:
            return self.settled
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        before, self._wake = self._wake, lambda: _resolve(future)
        timer = loop.call_later(seconds, _resolve, future)
        try:
            await future
        finally:
            timer.cancel()
            self._wake = before
        return self.settled


class Waiting:
    """All watches of this process."""

    def __init__(self) -> None:
        self._watches: dict[str, list[Watch]] = {}
        self.goodbye = False

    def __len__(self) -> int:
        return sum(map(len, self._watches.values()))

    def watch(self, request_id: str, wake: Callable[[], None] | None = None, *, wants_start: bool = False) -> Watch:
        """Registers a watch; `unwatch` must follow."""
        watch = Watch(request_id, wake, wants_start)
        watch.over = self.goodbye
        self._watches.setdefault(request_id, []).append(watch)
        return watch

    def unwatch(self, watch: Watch) -> None:
        watches = self._watches.get(watch.request_id, [])
        if watch in watches:
            watches.remove(watch)
        if not watches:
            self._watches.pop(watch.request_id, None)

    def start(self, request_ids: Iterable[str]) -> None:
        """These requests run now."""
        for request_id in request_ids:
            for watch in self._watches.get(request_id, ()):
                watch.started = True
                if watch.wants_start:
                    watch.wake()

    def settle(self, records: Mapping[str, dict[str, Any] | None]) -> None:
        """These requests are terminal; a record of None is to be read from the table."""
        for request_id, record in records.items():
            for watch in self._watches.get(request_id, ()):
                watch.record = record
                watch.settled = True
                watch.wake()

    def say_goodbye(self) -> None:
        """The server ends: everybody answers with what there is."""
        self.goodbye = True
        for watches in list(self._watches.values()):
            for watch in list(watches):
                watch.over = True
                watch.wake()

    def awaited(self, longer_than: float) -> list[str]:
        """The ids somebody has waited for longer than so many seconds without news."""
        before = time.monotonic() - longer_than
        return [
            request_id
            for request_id, watches in self._watches.items()
            if any(not watch.settled and watch.since < before for watch in watches)
        ]

    def learn(self, asked: Iterable[str], statuses: Mapping[str, str]) -> None:
        """What a query says about awaited ids. A row that is gone ends the waiting as well."""
        ended = {each: None for each in asked if each not in statuses or Status(statuses[each]).is_terminal}
        self.settle({each: None for each in ended if not self._is_settled(each)})
        self.start(each for each, status in statuses.items() if status == Status.RUNNING and not self._is_started(each))

    def _is_settled(self, request_id: str) -> bool:
        return all(watch.settled for watch in self._watches.get(request_id, ()))

    def _is_started(self, request_id: str) -> bool:
        return all(watch.started for watch in self._watches.get(request_id, ()))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
