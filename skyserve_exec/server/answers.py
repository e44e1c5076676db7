"""What leaves this process as JSON: answers, and the one error shape.

Room: http process, event loop. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Send

from skyserve_exec.errors import Busy, Draining, SkyserveError, Unauthorized, Unavailable

Headers = tuple[tuple[bytes, bytes], ...]
JSON_TYPE = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")
REQUEST_ID = b"x-skypilot-request-id"


class ClientGone(Exception):
    """The client closed its connection; nobody reads an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete JSON answer."""

    status: int
    body: bytes
    headers: Headers = ()


def answer_json(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    return Answer(status, orjson.dumps(value), headers)


def answer_error(error: SkyserveError) -> Answer:
    """The JSON error with the headers that belong to its kind."""
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, Busy | Unavailable):
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if isinstance(error, Draining):
        headers.append(CLOSE)
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if error.request_id is not None:
        headers.append((REQUEST_ID, error.request_id.encode()))
    return Answer(error.http_status, orjson.dumps(error.to_json()), tuple(headers))


def answer_fault() -> Answer:
    """What a client sees of a fault of this program; the log has the rest."""
    error = SkyserveError("the server has made a mistake; its log says more", hint="Look into server.log.")
    return Answer(500, orjson.dumps({"error": error.to_json()["error"] | {"type": "InternalError"}}))


async def send_answer(send: Send, answer: Answer, *, closing: bool) -> None:
    """Sends it; `closing` asks the client to open a new connection for its next request."""
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(answer.body)), *answer.headers]
    if closing and CLOSE not in answer.headers:
        headers.append(CLOSE)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def as_response(answer: Answer) -> Response:
    """The same for code that returns Starlette's responses."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
    return Response(answer.body, answer.status, headers, media_type="application/json")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, media_type="application/json")
