"""Puts the app together: the routes, the errors, the gate around them.

Room: http process, once at its start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from skyserve_exec import operation_table
from skyserve_exec.errors import BadInput, NotFound, SkyserveError
from skyserve_exec.messages import Welcome
from skyserve_exec.operation_table import Operation
from skyserve_exec.paths import StateDir
from skyserve_exec.protocol import ApiCancelBody, ErrorAnswer
from skyserve_exec.server import openapi
from skyserve_exec.server.access import Access
from skyserve_exec.server.answers import answer_error, answer_fault, as_response
from skyserve_exec.server.api_routes import ApiRoutes
from skyserve_exec.server.attached import Attached
from skyserve_exec.server.cancel_route import CancelEndpoint
from skyserve_exec.server.gate import Gate, PostEndpoint
from skyserve_exec.server.log_feed import LogFeeds
from skyserve_exec.server.operations_routes import OperationEndpoint
from skyserve_exec.server.payloads import bad_input
from skyserve_exec.server.pending import PendingReasons
from skyserve_exec.server.reading import Reading
from skyserve_exec.server.stall_watch import StallWatch
from skyserve_exec.server.state import HttpState, user_name
from skyserve_exec.server.supervisor_link import SupervisorLink
from skyserve_exec.server.waiting import Waiting
from skyserve_exec.settings import from_json, split_names
from skyserve_exec.system.channel import Channel
from skyserve_exec.version import __version__

DISK_THREADS = 4
LOOK_THREADS = 4
CANCEL_PATH = "/api/cancel"


class MethodNotAllowed(BadInput):
    """The path is there, the method is not."""

    http_status = 405


def build_state(welcome: Welcome, channel: Channel, endpoint: str) -> HttpState:
    """The parts of this process, from what serve said first."""
    settings = from_json(welcome.settings)
    own = [operation_table.from_description(each) for each in welcome.own_operations]
    waiting = Waiting()
    link = SupervisorLink(channel, waiting)
    reading = Reading(StateDir(settings.state_path).database)
    disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")
    return HttpState(
        settings=settings,
        boot_id=welcome.boot_id,
        token=welcome.token,
        endpoint=endpoint,
        started_at=welcome.started_at,
        operations={each.name: each for each in (*operation_table.BUILTIN, *own)},
        link=link,
        waiting=waiting,
        reading=reading,
        pending=PendingReasons(reading),
        attached=Attached(link),
        feeds=LogFeeds(disk),
        stalls=StallWatch(settings.stall_seconds),
        disk=disk,
        looks=ThreadPoolExecutor(LOOK_THREADS, thread_name_prefix="look"),
        user=user_name(),
    )


def build_app(http: HttpState) -> ASGIApp:
    """The whole app, behind its gate."""
    app = FastAPI(
        title="skyserve_exec",
        version=__version__,
        description="A request server: submit, follow, cancel. Errors have one shape: ErrorAnswer.",
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
    )
    posts: dict[str, PostEndpoint] = {CANCEL_PATH: CancelEndpoint(http)}
    for operation in http.operations.values():
        posts[f"/{operation.name}"] = OperationEndpoint(operation, http)
        _add_operation(app, operation, posts[f"/{operation.name}"])
    _add_cancel(app, posts[CANCEL_PATH])
    app.include_router(ApiRoutes(http).router())
    _add_errors(app)
    _complete_openapi(app, http)
    hosts = (http.settings.host, *split_names(http.settings.allowed_hosts))
    return Gate(app, posts, http, Access(http.token, hosts))


def _add_operation(app: FastAPI, operation: Operation, endpoint: PostEndpoint) -> None:
    app.add_api_route(
        f"/{operation.name}",
        _route(endpoint),
        methods=["POST"],
        status_code=202,
        response_class=Response,
        tags=["operations"],
        operation_id=f"operation_{operation.name}",
        summary=operation.help or operation.name,
        responses=openapi.operation_responses(),
        openapi_extra=openapi.body_of(openapi.payload_name(operation)) | {"parameters": [openapi.PREFER, openapi.KEY]},
    )


def _add_cancel(app: FastAPI, endpoint: PostEndpoint) -> None:
    schema = {"type": "object", "properties": {"cancelled": {"type": "object"}}, "required": ["cancelled"]}
    app.add_api_route(
        CANCEL_PATH,
        _route(endpoint),
        methods=["POST"],
        response_class=Response,
        tags=["requests"],
        operation_id="cancel_requests",
        summary="Cancel requests by id or id prefix, all, or all of a cluster.",
        responses={
            200: {
                "description": "What was done, per request.",
                "content": {"application/json": {"schema": schema}},
            },
            "default": {"model": ErrorAnswer, "description": "Nothing was cancelled."},
        },
        openapi_extra=openapi.body_of(ApiCancelBody.__name__),
    )


def _route(endpoint: PostEndpoint) -> Callable[[Request], Awaitable[Response]]:
    # The gate takes POSTs to their endpoint by itself; the route makes FastAPI know the path and document it.
    async def post(request: Request) -> Response:
        return as_response(await endpoint.answer(dict(request.headers.raw), request.receive))

    return post


def _add_errors(app: FastAPI) -> None:
    async def known(_request: Request, error: Exception) -> Response:
        assert isinstance(error, SkyserveError)
        return as_response(answer_error(error))

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        details = [dict(each) | {"loc": each["loc"][1:]} for each in error.errors()]
        return as_response(answer_error(bad_input(details, None, "query")))

    async def by_status(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return as_response(answer_error(_named(request, error)))

    async def fault(_request: Request, _error: Exception) -> Response:
        return as_response(answer_fault())

    app.add_exception_handler(SkyserveError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, by_status)
    app.add_exception_handler(Exception, fault)


def _named(request: Request, error: HTTPException) -> SkyserveError:
    path = ascii(request.url.path[:200])[1:-1]
    hint = "The paths are listed in /openapi.json and /api/operations."
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFound(f"there is no {path}", hint=hint)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return MethodNotAllowed(f"{path} does not take {request.method}", hint=hint)
    return BadInput(str(error.detail))


def _complete_openapi(app: FastAPI, http: HttpState) -> None:
    make = app.openapi
    cancel = {ApiCancelBody.__name__: ApiCancelBody.model_json_schema()}

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.completed(make(), http.operations, cancel)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
