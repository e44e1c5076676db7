"""The query strings of GET /api/…, as models: unknown parameters are errors.

Room: http process. Pure.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from skyserve_exec.server.posted import MOST_WAIT
from skyserve_exec.states import ScheduleType
from skyserve_exec.store.request_reader import LAST_SEQ, MAX_LIMIT

Id = Annotated[str, StringConstraints(min_length=1, max_length=64), Field(description="A request id or its beginning.")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class Query(BaseModel):
    """Base: unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid")


class GetQuery(Query):
    """GET /api/get"""

    request_id: Id | None = Field(default=None, description="An id or its beginning; without it the latest request.")
    timeout: float = Field(
        default=60, ge=0, le=MOST_WAIT, description="Seconds to wait for the end; 0 answers at once."
    )


class StreamQuery(Query):
    """GET /api/stream"""

    request_id: Id | None = Field(default=None, description="An id or its beginning; without it the latest request.")
    follow: bool = Field(default=True, description="Go on until the request has ended.")
    tail: int = Field(default=0, ge=0, le=1_000_000_000, description="Begin with the last so many lines; 0: all.")
    offset: int | None = Field(default=None, ge=0, le=LAST_SEQ, description="Begin at this byte.")
    cancel_on_disconnect: bool = Field(
        default=False, description="Cancel the request when the last such stream's client has gone."
    )


class StatusQuery(Query):
    """GET /api/status"""

    status: list[str] = Field(default=[], max_length=20, description="Repeated, or separated by commas.")
    name: Name | None = Field(default=None, description="Of the operation.")
    user: Name | None = None
    cluster: Name | None = None
    schedule_type: ScheduleType | None = None
    since: float | None = Field(default=None, ge=0, le=1e11, description="Created then or later, Unix seconds.")
    request_id: list[Annotated[str, StringConstraints(max_length=8000)]] = Field(
        default=[], max_length=100, description="Ids or beginnings; repeated or with commas."
    )
    limit: int = Field(default=100, ge=1, le=MAX_LIMIT)
    cursor: int | None = Field(default=None, ge=0, le=LAST_SEQ, description="`next_cursor` of the page before.")
