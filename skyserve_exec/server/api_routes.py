"""GET /api/…: one request, its log, the list, health, operations; and the probes and metrics.

Room: http process, event loop.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from skyserve_exec.errors import BadInput
from skyserve_exec.protocol import ErrorAnswer, Record
from skyserve_exec.record import RequestRow, record_of, summary_of
from skyserve_exec.server.answers import json_response
from skyserve_exec.server.health import Health
from skyserve_exec.server.metrics_page import CONTENT_TYPE, MetricsPage
from skyserve_exec.server.operations_routes import settled_before
from skyserve_exec.server.payloads import schema_of
from skyserve_exec.server.pending import explain
from skyserve_exec.server.queries import GetQuery, StatusQuery, StreamQuery
from skyserve_exec.server.reading import checked_id, unknown
from skyserve_exec.server.state import HttpState
from skyserve_exec.server.stream import LogStream, StreamOptions
from skyserve_exec.states import Status
from skyserve_exec.store.request_reader import ListQuery

PLAIN = "text/plain; charset=utf-8"


class ApiRoutes:
    """The functions behind the routes; each is one page."""

    def __init__(self, http: HttpState) -> None:
        self._http = http
        self._health = Health(http)
        self._metrics = MetricsPage(http, self._health)

    def router(self) -> APIRouter:
        """The routes, with what the OpenAPI document says about them."""
        router = APIRouter(default_response_class=Response, responses={"default": {"model": ErrorAnswer}})
        add = router.add_api_route
        add("/livez", self.livez, tags=["probes"], responses=_text("alive"))
        add("/readyz", self.readyz, tags=["probes"], responses=_text("ready for requests"))
        add("/livez", self.livez, methods=["HEAD"], include_in_schema=False)
        add("/readyz", self.readyz, methods=["HEAD"], include_in_schema=False)
        add("/metrics", self.metrics, tags=["probes"], responses=_text("Prometheus metrics"))
        add("/api/health", self.health, tags=["server"], responses=_object("how the server is doing"))
        add("/api/operations", self.operations, tags=["server"], responses=_object("what can be asked for"))
        add("/api/get", self.get, tags=["requests"], responses={200: {"model": Record}})
        add("/api/status", self.status, tags=["requests"], responses=_object("one page of requests"))
        add("/api/stream", self.stream, tags=["requests"], responses=_stream())
        return router

    async def livez(self) -> Response:
        """Whether the server is alive; needs no token."""
        alive = self._health.is_alive
        return Response("alive\n" if alive else "the supervisor is silent\n", 200 if alive else 503, media_type=PLAIN)

    async def readyz(self) -> Response:
        """Whether the server takes new requests; needs no token."""
        if self._health.is_ready:
            return Response("ready\n", media_type=PLAIN)
        reason = "draining" if self._health.is_draining else self._health.problem
        return Response(f"{reason}\n", 503, {"retry-after": "5"}, media_type=PLAIN)

    async def health(self) -> Response:
        """Version, settings, pools, what waits, and this process's own figures."""
        return json_response(self._health.page())

    async def metrics(self) -> Response:
        """Figures for Prometheus."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def operations(self) -> Response:
        """The operations that can be posted, with the JSON schema of their payloads."""
        return json_response({"operations": [_described(each) for each in self._http.operations.values()]})

    async def get(self, request: Request, query: Annotated[GetQuery, Query()]) -> Response:
        """One request's record, when it has ended or the time is over."""
        http = self._http
        deadline = time.monotonic() + query.timeout
        request_id = await http.reading.find(query.request_id)
        # Watch first, then read the row: no push falls between.
        watch = http.waiting.watch(request_id)
        try:
            row = await http.reading.get(request_id)
            if row is None:
                raise unknown(request_id)
            if not row.is_terminal and query.timeout > 0:
                await settled_before(watch, deadline, request.receive)
                if watch.settled and watch.record is not None:
                    return json_response(watch.record)
                row = await http.reading.get(request_id) or row
        finally:
            http.waiting.unwatch(watch)
        return json_response(await self._record(row))

    async def status(self, query: Annotated[StatusQuery, Query()]) -> Response:
        """Requests, newest first; for those that wait, why."""
        page, waiting = await self._http.reading.page(
            ListQuery(
                statuses=tuple(each.upper() for each in _split(query.status)),
                name=query.name,
                user=query.user,
                cluster=query.cluster,
                schedule_type=query.schedule_type,
                since=query.since,
                id_prefixes=tuple(checked_id(each) for each in _split(query.request_id)),
                limit=query.limit,
                cursor=query.cursor,
            )
        )
        now = time.time()
        records = [summary_of(row) | _why(row, waiting, now) for row in page.rows]
        return json_response({"requests": records, "next_cursor": page.next_cursor})

    async def stream(
        self,
        query: Annotated[StreamQuery, Query()],
        accept: Annotated[str, Header(description="text/event-stream for events; else plain bytes.")] = "*/*",
        last_event_id: Annotated[str | None, Header(description="Go on after this event: a byte offset.")] = None,
    ) -> Response:
        """What a request prints: plain bytes, or server-sent events whose id is the byte offset after them."""
        if query.tail and query.offset is not None:
            raise BadInput("tail: cannot be given together with offset")
        return LogStream(
            self._http,
            StreamOptions(
                request_id=query.request_id,
                follow=query.follow,
                tail=query.tail,
                offset=query.offset if not last_event_id else _offset(last_event_id),
                events="text/event-stream" in accept,
                cancel_on_disconnect=query.cancel_on_disconnect,
            ),
        )

    async def _record(self, row: RequestRow) -> dict[str, Any]:
        record = record_of(row)
        if row.status == Status.PENDING:
            told = await self._http.pending.of(row)
            record |= {"reason": told["reason"], "position": told["position"]}
        return record


def _why(row: RequestRow, waiting: dict[str, Any], now: float) -> dict[str, Any]:
    found = waiting.get(row.request_id)
    if found is None:
        return {}
    told = explain(row, found, now)
    return {"reason": told["reason"], "position": told["position"]}


def _split(values: list[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _offset(last_event_id: str) -> int:
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= 18):
        raise BadInput(f"Last-Event-ID: {last_event_id[:40]!a} is not a byte offset")
    return int(last_event_id)


def _described(operation: Any) -> dict[str, Any]:
    return {
        "name": operation.name,
        "schedule_type": operation.schedule_type.value,
        "help": operation.help,
        "restartable": operation.restartable,
        "deadline": operation.deadline,
        "own": operation.is_own,
        "schema": schema_of(operation),
    }


def _text(description: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}}


def _object(description: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": description, "content": {"application/json": {"schema": {"type": "object"}}}}}


def _stream() -> dict[int | str, dict[str, Any]]:
    content = {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "text/event-stream")}
    return {200: {"description": "what the request prints", "content": content}}
