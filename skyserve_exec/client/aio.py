"""The SDK for asyncio: the methods of sdk.py, awaited.

    async with AsyncClient() as client:
        request = await client.launch({"run": "echo hello"}, cluster="dev")
        job = await request.result()
        async for chunk in request.stream(): ...

Room: the user's process, on its event loop; no thread is used.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from types import TracebackType
from typing import Any

import httpx2

from skyserve_exec.client import connection, plans
from skyserve_exec.client.connection import Notify, Target
from skyserve_exec.client.endpoint import Endpoint
from skyserve_exec.client.interface import Operations, RequestHandle
from skyserve_exec.client.patience import PATIENCE_SECONDS, Patience, Pause
from skyserve_exec.client.plans import Effect, Emit, Following, Open, Plan, Position
from skyserve_exec.client.wire import Answer, Broken, Call

__all__ = ["AsyncClient", "AsyncLogStream", "AsyncRequest"]
Body = Coroutine[Any, Any, dict[str, Any]]


class AsyncLogStream(AsyncIterator[bytes]):
    """A request's output, as it comes. Once exhausted, `end` has `request_id`, `status`, `exit_code` and `error`."""

    def __init__(self, client: AsyncClient, what: Following) -> None:
        self._position = Position()
        self._patience = client.patience()
        plan = plans.stream(what, self._position, self._patience, time.monotonic)
        self._chunks = _Session(client).emitted(plan)

    @property
    def end(self) -> dict[str, Any] | None:
        """How the request ended (or, without `follow`, how it stands); None before the stream's end."""
        return self._position.end

    @property
    def offset(self) -> int | None:
        """The byte of the log after the last one given out."""
        return self._position.offset

    @property
    def outages(self) -> int:
        """How often the connection broke."""
        return self._patience.outages

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def __aenter__(self) -> AsyncLogStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leaves the stream; the request goes on, unless it was told to end with its reader."""
        await self._chunks.aclose()


class AsyncRequest(RequestHandle[Body, AsyncLogStream, Coroutine[Any, Any, Any], Coroutine[Any, Any, str]]):
    """One submitted request."""


class AsyncClient(Operations[Coroutine[Any, Any, AsyncRequest], Body, AsyncRequest, AsyncLogStream]):
    """Talks to one server. Arguments and errors as of `skyserve_exec.client.sdk.Client`."""

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | None = None,
        *,
        state_dir: str | os.PathLike[str] | None = None,
        patience: float = PATIENCE_SECONDS,
        notify: Notify | None = None,
    ) -> None:
        self._target = Target.find(endpoint, token, state_dir)
        self._patience_seconds = patience
        self._notify = notify or connection.say
        self._http: httpx2.AsyncClient | None = None
        self._inherited: httpx2.AsyncClient | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the server is, and how it was found."""
        return self._target.endpoint

    def request(self, request_id: str) -> AsyncRequest:
        return AsyncRequest(self, request_id)

    async def close(self) -> None:
        """Closes the connections. The client may be used again, also on another event loop."""
        if self._http is not None and self._target.pid == os.getpid():
            await self._http.aclose()
        self._http = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def patience(self) -> Patience:
        return Patience(self._patience_seconds, time.monotonic, self._notify, self._target.met)

    async def carry_out(self, plan: Plan[Any]) -> Any:
        session = _Session(self)
        async for _ in session.emitted(plan):
            pass
        return session.outcome

    def open_stream(self, what: Following) -> AsyncLogStream:
        return AsyncLogStream(self, what)

    def http(self) -> httpx2.AsyncClient:
        """The library's client; made anew in a forked child, which must not share its parent's connections."""
        if self._target.pid != os.getpid():
            # Kept, not closed: its locks may be held by threads that are not in this process.
            self._inherited, self._http, self._target.pid = self._http, None, os.getpid()
        if self._http is None:
            self._http = httpx2.AsyncClient(**connection.library_options(self._target.endpoint))
        return self._http

    @property
    def target(self) -> Target:
        return self._target


class _Session:
    """Carries out one plan; holds its open stream."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._response: httpx2.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self.outcome: Any = None

    async def emitted(self, plan: Plan[Any]) -> AsyncGenerator[bytes, None]:
        """What the plan emits; afterwards `outcome` is what it returned."""
        reply: Any = None
        fault: Broken | None = None
        try:
            while True:
                effect = plan.send(reply) if fault is None else plan.throw(fault)
                reply, fault = None, None
                if isinstance(effect, Emit):
                    yield effect.data
                    continue
                try:
                    reply = await self._perform(effect)
                except httpx2.TransportError as error:
                    fault = connection.broken_by(error, self._client.endpoint)
        except StopIteration as stop:
            self.outcome = stop.value
        finally:
            await self.close()

    async def close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            await response.aclose()

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Call):
            return await self._send(effect)
        if isinstance(effect, Open):
            return await self._open(effect.call)
        if isinstance(effect, Pause):
            await asyncio.sleep(effect.seconds)
            self._client.target.look_again()
            return None
        return b"" if self._chunks is None else await anext(self._chunks, b"")

    async def _send(self, call: Call) -> Answer:
        endpoint, http = self._client.endpoint, self._client.http()
        response = await http.send(connection.build(http, endpoint, call))
        self._client.target.met = True
        return connection.answer_of(response, response.content, endpoint)

    async def _open(self, call: Call) -> Answer:
        await self.close()
        endpoint, http = self._client.endpoint, self._client.http()
        response = await http.send(connection.build(http, endpoint, call), stream=True)
        self._client.target.met = True
        self._response = response
        if response.status_code == 200:
            self._chunks = response.aiter_raw()
            return connection.answer_of(response, b"", endpoint)
        return connection.answer_of(response, await response.aread(), endpoint)
