"""POST /api/cancel: by ids and id prefixes, all, or all of a cluster. Acts outside the queue, also while draining.

Room: http process, event loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Receive

from skyserve_exec.messages import Cancel
from skyserve_exec.protocol import ApiCancelBody
from skyserve_exec.server.answers import Answer, answer_json
from skyserve_exec.server.payloads import checked
from skyserve_exec.server.posted import read_body
from skyserve_exec.server.state import HttpState


class CancelEndpoint:
    """The one POST that is no operation."""

    def __init__(self, http: HttpState) -> None:
        self._http = http

    async def answer(self, headers: Mapping[bytes, bytes], receive: Receive) -> Answer:
        """What the cancel did, per request id.

        Raises:
            NotFound, AmbiguousId: of any of the ids; nothing was cancelled then.
            SkyserveError: nothing was cancelled.
        """
        http = self._http
        body = checked(ApiCancelBody, await read_body(headers, receive, http.settings.max_body_bytes))
        ids = await http.reading.find_all(body.request_ids) if body.request_ids else []
        outcomes = await http.link.cancel(
            Cancel(
                ticket=http.link.ticket(),
                request_ids=list(dict.fromkeys(ids)),
                everything=body.all,
                cluster=body.cluster,
                user=body.user,
                force=body.force,
                by=http.user,
            )
        )
        return answer_json({"cancelled": outcomes})
