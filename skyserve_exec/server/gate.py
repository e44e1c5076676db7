"""The outermost layer of the app: who may enter, the fast way to the POSTs, and one shape for every error.

Pure ASGI: what it adds to a request is a dictionary look-up or two.

Room: http process, event loop. The room's outer wall: whatever is raised below ends here, in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skyserve_exec.errors import SkyserveError
from skyserve_exec.server.access import Access, check_content_type
from skyserve_exec.server.answers import CLOSE, Answer, ClientGone, answer_error, answer_fault, send_answer
from skyserve_exec.server.state import HttpState

log = logging.getLogger(__name__)
OPEN_PATHS = frozenset({"/livez", "/readyz"})


class PostEndpoint(Protocol):
    """What answers one path's POSTs."""

    async def answer(self, headers: Mapping[bytes, bytes], receive: Receive) -> Answer: ...


class Gate:
    """Lets requests pass to `posts` by path, and everything else to `app`."""

    def __init__(self, app: ASGIApp, posts: Mapping[str, PostEndpoint], http: HttpState, access: Access) -> None:
        self._app = app
        self._posts = posts
        self._http = http
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        path = scope["path"]
        begun = False

        async def tell(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if self._http.link.draining:
                    message["headers"] = [*message["headers"], CLOSE]
            await send(message)

        try:
            if path not in OPEN_PATHS:
                self._access.check(headers, _local_address(scope))
            if scope["method"] != "POST":
                await self._app(scope, receive, tell)
                return
            check_content_type(headers)
            self._http.counts.posts += 1
            endpoint = self._posts.get(path)
            if endpoint is None:
                await self._app(scope, receive, tell)
                return
            answer = await endpoint.answer(headers, receive)
        except ClientGone:
            return
        except SkyserveError as error:
            answer = answer_error(error)
        except Exception:
            self._http.counts.errors += 1
            log.exception("%s %s failed", scope["method"], ascii(path[:200]))
            answer = answer_fault()
        if not begun:
            await send_answer(send, answer, closing=self._http.link.draining)


def _local_address(scope: Scope) -> str:
    server = scope.get("server")
    return server[0] if server else ""
