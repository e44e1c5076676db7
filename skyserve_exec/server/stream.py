"""Follows a request's log over HTTP: plain bytes, or server-sent events that can be resumed at a byte.

A slow client is waited for (one chunk is all that is in flight for it); a client that goes away is noticed although
nothing is sent. Only the plain form cannot say that it is incomplete: its connection is cut instead of ended.

Room: http process, event loop. A stream occupies no thread.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from skyserve_exec.errors import Busy, SkyserveError
from skyserve_exec.record import RequestRow
from skyserve_exec.server.log_chunk import Chunk
from skyserve_exec.server.log_feed import LogFeed
from skyserve_exec.server.log_tail import tail_offset
from skyserve_exec.server.reading import unknown
from skyserve_exec.server.state import HttpState
from skyserve_exec.server.waiting import Watch
from skyserve_exec.states import Status

log = logging.getLogger(__name__)

WAITING_SECONDS = 5.0  # how often a pending request's place is told
HEARTBEAT = b": heartbeat\n\n"


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the client asked for. `tail` 0: all; `offset` in bytes wins over it."""

    request_id: str | None
    follow: bool = True
    tail: int = 0
    offset: int | None = None
    events: bool = False
    cancel_on_disconnect: bool = False


class LogStream(Response):
    """One client's stream, as the response of a route."""

    def __init__(self, http: HttpState, options: StreamOptions) -> None:
        super().__init__()
        self._http = http
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream. Errors of errors.py are raised before anything is sent."""
        counts = self._http.counts
        if counts.streams >= counts.stream_limit:
            raise Busy(f"{counts.streams} streams are open, which is the limit", hint="Try again when some have ended.")
        counts.streams += 1
        counts.streams_begun += 1
        try:
            await self._run(receive, send)
        finally:
            counts.streams -= 1

    async def _run(self, receive: Receive, send: Send) -> None:
        http, options = self._http, self._options
        request_id = await http.reading.find(options.request_id)
        wake = asyncio.Event()
        # Watch first, then read the row: no push falls between.
        watch = http.waiting.watch(request_id, wake.set, wants_start=True)
        try:
            row = await http.reading.get(request_id)
            if row is None:
                raise unknown(request_id)
            feed = await http.feeds.open(http.paths.log_of(request_id), create=not row.is_terminal)
            try:
                if options.follow and not row.is_terminal:
                    http.feeds.follow(feed, wake.set)
                await _Follower(http, options, row, watch, wake, feed, send).run(receive)
            finally:
                http.feeds.leave(feed, wake.set)
        finally:
            http.waiting.unwatch(watch)


class _Follower:
    """The loop of one stream."""

    def __init__(
        self,
        http: HttpState,
        options: StreamOptions,
        row: RequestRow,
        watch: Watch,
        wake: asyncio.Event,
        feed: LogFeed,
        send: Send,
    ) -> None:
        self._http, self._options, self._row, self._watch = http, options, row, watch
        self._wake, self._feed, self._asgi_send = wake, feed, send
        self._offset = 0
        self._limit: int | None = None  # where the log ends, once that is known
        self._gone = False
        self._sent_at = self._told_at = 0.0
        self._loop = asyncio.get_running_loop()

    async def run(self, receive: Receive) -> None:
        self._offset = await self._first_offset()
        await self._begin()
        listening = self._loop.create_task(self._listen(receive))
        attached = self._http.attached if self._options.cancel_on_disconnect else None
        if attached is not None:
            attached.join(self._row.request_id)
        try:
            await self._follow()
        except SkyserveError as error:
            # Too late for an error answer: the stream is cut, and the client goes on from where it was.
            log.warning("a stream is cut: %s", error.message, extra={"request_id": self._row.request_id})
        finally:
            listening.cancel()
            if attached is not None:
                attached.leave(self._row.request_id, client_gone=self._gone and not self._is_over)

    @property
    def _is_over(self) -> bool:
        return self._row.is_terminal or self._watch.settled

    @property
    def _is_pending(self) -> bool:
        return self._row.status == Status.PENDING and not self._watch.started and not self._watch.settled

    async def _follow(self) -> None:
        while not self._gone:
            self._wake.clear()
            goodbye = self._http.waiting.goodbye
            # Before the read: what the request wrote until its end is then in the file.
            if self._limit is None and (self._is_over or not self._options.follow):
                self._limit = await self._feed.size()
            if await self._send_next(await self._feed.read(self._offset)):
                if not goodbye or self._limit is not None:
                    await asyncio.sleep(0)  # others shall have their turn, however fast this client is
                    continue
            elif self._limit is None and not goodbye:
                await self._rest()
                continue
            await self._end()
            return

    async def _send_next(self, chunk: Chunk) -> bool:
        """Sends what can be sent of it; whether that was anything."""
        if self._limit is not None and chunk.end > self._limit:
            chunk = Chunk(chunk.offset, chunk.data[: max(0, self._limit - chunk.offset)])
        if not self._options.events:
            body, after = chunk.data, chunk.end
        elif chunk.end == self._limit:
            body, after = chunk.last_events, chunk.end
        else:
            body, after = chunk.events
        if after == self._offset:
            return False
        self._offset = after
        await self._send(body)
        return True

    async def _rest(self) -> None:
        """Waits for news; keeps a silent event stream alive and tells what a pending request waits for."""
        if not self._options.events:
            await self._wake.wait()
            return
        now = self._loop.time()
        if self._is_pending and now - self._told_at >= WAITING_SECONDS:
            await self._tell_waiting()
        elif now - self._sent_at >= self._http.settings.heartbeat_seconds:
            await self._send(HEARTBEAT)
        due = self._sent_at + self._http.settings.heartbeat_seconds
        if self._is_pending:
            due = min(due, self._told_at + WAITING_SECONDS)
        timer = self._loop.call_at(due, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    async def _tell_waiting(self) -> None:
        self._told_at = self._loop.time()
        told = await self._http.pending.of(self._row)
        await self._send(b"event: waiting\ndata: %b\n\n" % orjson.dumps(told))

    async def _end(self) -> None:
        complete = self._limit is not None
        if self._options.events:
            end = {"request_id": self._row.request_id, **await self._outcome(), "complete": complete}
            await self._send(b"event: end\ndata: %b\n\n" % orjson.dumps(end), more=False)
        elif complete:
            await self._send(b"", more=False)
        # Otherwise the body is left unfinished, and the connection is cut: the client knows that something is missing.

    async def _outcome(self) -> dict[str, Any]:
        if not self._is_over:
            status = Status.PENDING if self._is_pending else Status.RUNNING
            return {"status": status, "exit_code": None, "error": None}
        record = self._watch.record
        if record is not None:
            return {name: record.get(name) for name in ("status", "exit_code", "error")}
        row = self._row if self._row.is_terminal else await self._http.reading.get(self._row.request_id) or self._row
        error = None if row.error is None else orjson.loads(row.error)
        return {"status": row.status, "exit_code": row.exit_code, "error": error}

    async def _first_offset(self) -> int:
        if self._options.offset is not None:
            return self._options.offset
        return await tail_offset(self._feed, self._options.tail) if self._options.tail else 0

    async def _begin(self) -> None:
        media = b"text/event-stream" if self._options.events else b"text/plain; charset=utf-8"
        headers = [
            (b"content-type", media),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
            (b"x-skypilot-stream-request-id", self._row.request_id.encode()),
        ]
        await self._asgi_send({"type": "http.response.start", "status": 200, "headers": headers})
        self._sent_at = self._loop.time()

    async def _send(self, body: bytes, *, more: bool = True) -> None:
        await self._asgi_send({"type": "http.response.body", "body": body, "more_body": more})
        self._sent_at = self._loop.time()

    async def _listen(self, receive: Receive) -> None:
        """Notices that the client has gone while nothing is sent to it."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._wake.set()
