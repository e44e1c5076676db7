"""What both clients have in common below HTTP: options of the library, its faults in our words, when to look again.

Room: the user's process. No I/O but in `Target.look_again`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from skyserve_exec.client import endpoint as endpoints
from skyserve_exec.client.endpoint import Endpoint
from skyserve_exec.client.wire import Answer, Broken, Call
from skyserve_exec.errors import BadInput, ServerNotRunning
from skyserve_exec.version import __version__

CONNECT_SECONDS = 10.0
WRITE_SECONDS = 60.0
log = logging.getLogger("skyserve_exec.client")


def say(message: str) -> None:
    """What a client says unasked, where the program has not chosen otherwise: a warning, on stderr by default."""
    log.warning(message)


@dataclass(slots=True)
class Target:
    """The server a client talks to. It may move: after a restart the state directory can name another port."""

    endpoint: Endpoint
    explicit_token: str | None
    pid: int
    met: bool = False

    @classmethod
    def find(cls, endpoint: str | None, token: str | None, state_dir: str | os.PathLike[str] | None) -> Target:
        return cls(endpoints.find(endpoint, token=token, state_dir=state_dir), token, os.getpid())

    def look_again(self) -> None:
        """Notices that the server of the state directory has moved."""
        if not self.endpoint.is_found:
            return
        try:
            self.endpoint = endpoints.find(token=self.explicit_token, state_dir=self.endpoint.state.root)
        except (ServerNotRunning, BadInput):
            return  # not back yet: the old address is as good as any


def library_options(endpoint: Endpoint) -> dict[str, Any]:
    """How the HTTP library is set up: no proxy before loopback, no certificates to load where there is no TLS."""
    return {
        "trust_env": not endpoint.is_loopback,
        "verify": endpoint.url.startswith("https:"),
        "timeout": httpx2.Timeout(CONNECT_SECONDS, write=WRITE_SECONDS, pool=None),
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        "headers": {"User-Agent": f"skyserve-exec/{__version__}"},
    }


def build(http: httpx2.Client | httpx2.AsyncClient, endpoint: Endpoint, call: Call) -> httpx2.Request:
    """The request for a call.

    Raises:
        BadInput: the endpoint is not a URL, or the arguments are not JSON.
    """
    headers = call.all_headers
    if endpoint.token is not None:
        headers["Authorization"] = f"Bearer {endpoint.token}"
    try:
        return http.build_request(
            call.method,
            endpoint.url + call.path,
            params=dict(call.params) or None,
            content=call.content,
            headers=headers,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=call.read_seconds, write=WRITE_SECONDS, pool=None),
        )
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise BadInput(f"endpoint: {endpoint.url} (from {endpoint.source}): {error}") from None


def answer_of(response: httpx2.Response, body: bytes, endpoint: Endpoint) -> Answer:
    return Answer(response.status_code, {k.lower(): v for k, v in response.headers.items()}, body, endpoint.url)


def broken_by(error: httpx2.TransportError, endpoint: Endpoint) -> Broken:
    """The fault in words a user can act on."""
    reached = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError)
    reason = _root_cause(error)
    return Broken(reason, url=endpoint.url, reached=reached, idle=isinstance(error, httpx2.ReadTimeout))


def _root_cause(error: BaseException) -> str:
    if isinstance(error, httpx2.ConnectTimeout):
        return f"no connection within {CONNECT_SECONDS:g} s"
    if isinstance(error, httpx2.ReadTimeout):
        return "it has been silent for too long"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


Notify = Callable[[str], None]
