"""Streams whose client wants its request cancelled when it goes away.

Room: http process, event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from skyserve_exec.messages import Cancel
from skyserve_exec.server.supervisor_link import SupervisorLink

LINGER_SECONDS = 1.0  # a client whose connection was cut comes back within this


class Attached:
    """Counts such streams by request; when the last one was left by its client, the request is cancelled."""

    def __init__(self, link: SupervisorLink) -> None:
        self._link = link
        self._streams: Counter[str] = Counter()

    def join(self, request_id: str) -> None:
        self._streams[request_id] += 1

    def leave(self, request_id: str, *, client_gone: bool) -> None:
        self._streams[request_id] -= 1
        if self._streams[request_id] > 0:
            return
        del self._streams[request_id]
        if client_gone:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._cancel_unless_back, request_id)

    def _cancel_unless_back(self, request_id: str) -> None:
        if request_id not in self._streams:
            self._link.cancel_unheard(Cancel(self._link.ticket(), [request_id], by="its client, which has gone away"))
