"""Runs many callbacks a few at a time, so that other events have their turn in between.

Room: http process, event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

FEW = 25


class Turns:
    """A queue of callbacks; each must be harmless when it comes late."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    def add(self, calls: Iterable[Callable[[], None]]) -> None:
        """Runs them in order, soon."""
        idle = not self._due
        self._due.extend(calls)
        if idle and self._due:
            self._run()

    def _run(self) -> None:
        for _ in range(min(FEW, len(self._due))):
            self._due.popleft()()
        if self._due:
            asyncio.get_running_loop().call_soon(self._run)
