"""The Python SDK.

    from skyserve_exec.client.sdk import Client

    with Client() as client:
        request = client.launch({"run": "echo hello"}, cluster="dev")
        job = request.result()

Nothing happens at import, and no thread or process is started: it works alike in scripts without a main guard, in REPLs
and in notebooks. A client may be shared by threads; after a fork the child's first call opens connections of its own.

Room: the user's process. aio.py is the same for asyncio.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
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

__all__ = ["Client", "LogStream", "Request"]


class LogStream(Iterator[bytes]):
    """A request's output, as it comes. Once exhausted, `end` has `request_id`, `status`, `exit_code` and `error`."""

    def __init__(self, client: Client, what: Following) -> None:
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

    def __next__(self) -> bytes:
        return next(self._chunks)

    def __enter__(self) -> LogStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the stream; the request goes on, unless it was told to end with its reader."""
        self._chunks.close()


class Request(RequestHandle[dict[str, Any], LogStream, Any, str]):
    """One submitted request."""


class Client(Operations[Request, dict[str, Any], Request, LogStream]):
    """Talks to one server.

    Args:
        endpoint: http(s)://HOST:PORT; without it the environment, the user's config file or the state directory say.
        token: without it SKYSERVE_TOKEN, or for a server on this machine the one in its state directory.
        state_dir: of this machine's server, if it is not the default one.
        patience: seconds to wait for a server that has answered before and does not now.
        notify: called with a line of text when a server does not answer, and when it does again; logs it by default.

    Raises:
        ServerNotRunning: no endpoint was named, and no server runs here. A client never starts one.
        BadInput: the endpoint is not a URL.
    """

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
        self._http: httpx2.Client | None = None
        self._inherited: httpx2.Client | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the server is, and how it was found."""
        return self._target.endpoint

    def request(self, request_id: str) -> Request:
        return Request(self, request_id)

    def close(self) -> None:
        """Closes the connections. The client may be used again."""
        if self._http is not None and self._target.pid == os.getpid():
            self._http.close()
        self._http = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def patience(self) -> Patience:
        return Patience(self._patience_seconds, time.monotonic, self._notify, self._target.met)

    def carry_out(self, plan: Plan[Any]) -> Any:
        session = _Session(self)
        for _ in session.emitted(plan):
            pass
        return session.outcome

    def open_stream(self, what: Following) -> LogStream:
        return LogStream(self, what)

    def http(self) -> httpx2.Client:
        """The library's client; made anew in a forked child, which must not share its parent's connections."""
        if self._target.pid != os.getpid():
            # Kept, not closed: its locks may be held by threads that are not in this process.
            self._inherited, self._http, self._target.pid = self._http, None, os.getpid()
        if self._http is None:
            self._http = httpx2.Client(**connection.library_options(self._target.endpoint))
        return self._http

    @property
    def target(self) -> Target:
        return self._target


class _Session:
    """Carries out one plan; holds its open stream."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._response: httpx2.Response | None = None
        self._chunks: Iterator[bytes] = iter(())
        self.outcome: Any = None

    def emitted(self, plan: Plan[Any]) -> Generator[bytes, None, None]:
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
                    reply = self._perform(effect)
                except httpx2.TransportError as error:
                    fault = connection.broken_by(error, self._client.endpoint)
        except StopIteration as stop:
            self.outcome = stop.value
        finally:
            self.close()

    def close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Call):
            return self._send(effect)
        if isinstance(effect, Open):
            return self._open(effect.call)
        if isinstance(effect, Pause):
            time.sleep(effect.seconds)
            self._client.target.look_again()
            return None
        return next(self._chunks, b"")

    def _send(self, call: Call) -> Answer:
        endpoint, http = self._client.endpoint, self._client.http()
        response = http.send(connection.build(http, endpoint, call))
        self._client.target.met = True
        return connection.answer_of(response, response.content, endpoint)

    def _open(self, call: Call) -> Answer:
        self.close()
        endpoint, http = self._client.endpoint, self._client.http()
        response = http.send(connection.build(http, endpoint, call), stream=True)
        self._client.target.met = True
        self._response = response
        if response.status_code == 200:
            self._chunks = response.iter_raw()
            return connection.answer_of(response, b"", endpoint)
        return connection.answer_of(response, response.read(), endpoint)
