"""What goes over HTTP, as plain values: calls to make, answers to read, and the errors they mean.

Room: the user's process. Pure: both clients, and tests without a server, use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from skyserve_exec import errors
from skyserve_exec.errors import RequestFailed, RequestWasCancelled, ServerUnreachable, SkyserveError, Unauthorized
from skyserve_exec.states import Status

READ_SECONDS = 60.0
EVENTS = "text/event-stream"
BY_STATUS: Mapping[int, type[SkyserveError]] = {
    kind.http_status: kind
    for kind in (
        errors.BadInput,
        errors.Unauthorized,
        errors.Forbidden,
        errors.NotFound,
        errors.Conflict,
        errors.TooLarge,
        errors.WrongContentType,
        errors.Busy,
        errors.Unavailable,
        errors.DiskFull,
    )
}


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP exchange. `read_seconds` is the longest silence of the server that is still normal."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    read_seconds: float = READ_SECONDS

    @property
    def content(self) -> bytes | None:
        """The JSON body.

        Raises:
            BadInput: it holds what JSON cannot.
        """
        if self.body is None:
            return None
        try:
            return orjson.dumps(self.body, option=orjson.OPT_NON_STR_KEYS)
        except TypeError as error:
            raise errors.BadInput(f"the arguments cannot be sent as JSON: {error}") from None

    @property
    def all_headers(self) -> dict[str, str]:
        kind = {} if self.body is None else {"Content-Type": "application/json"}
        return {**kind, **self.headers}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, read to its end (of a stream with status 200: nothing yet). Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str = ""

    def object(self) -> dict[str, Any]:
        """The body.

        Raises:
            ServerUnreachable: it is not a JSON object, so it does not come from a server of ours.
        """
        try:
            body = orjson.loads(self.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise foreign(self)
        return body


class Broken(Exception):
    """The exchange did not come to its end. `reached`: the server had been connected to, so it may have acted."""

    def __init__(self, reason: str, *, url: str, reached: bool, idle: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.url, self.reached, self.idle = reason, url, reached, idle


def submit_call(name: str, payload: Mapping[str, Any], key: str) -> Call:
    """A new request; the key makes a repetition of the call the same request."""
    return Call("POST", f"/{name}", body=dict(payload), headers={"Idempotency-Key": key})


def get_call(request_id: str, timeout: float) -> Call:
    """A record, once terminal or after `timeout` seconds."""
    return Call(
        "GET", "/api/get", {"request_id": request_id, "timeout": f"{timeout:.3f}"}, read_seconds=timeout + READ_SECONDS
    )


def stream_call(
    request_id: str, *, follow: bool, tail: int, offset: int | None, resume: int | None, cancel_on_disconnect: bool
) -> Call:
    """A log as events; `resume` is the byte after the last one that has come."""
    params: dict[str, Any] = {"request_id": request_id, "follow": _word(follow)}
    if cancel_on_disconnect:
        params["cancel_on_disconnect"] = "true"
    headers = {"Accept": EVENTS, "Accept-Encoding": "identity"}
    if resume is not None:
        headers["Last-Event-ID"] = str(resume)
    elif offset is not None:
        params["offset"] = offset
    elif tail:
        params["tail"] = tail
    return Call("GET", "/api/stream", params, headers=headers)


def cancel_call(
    request_ids: list[str], *, everything: bool, cluster: str | None, user: str | None, force: bool
) -> Call:
    """A cancel; repeating it changes nothing."""
    body: dict[str, Any] = {"request_ids": request_ids} if request_ids else {}
    if everything:
        body["all"] = True
    for name, value in (("cluster", cluster), ("user", user)):
        if value is not None:
            body[name] = value
    return Call("POST", "/api/cancel", body=body | ({"force": True} if force else {}))


def status_call(**filters: Any) -> Call:
    """A page of the list; filters that are None, empty or not given do not filter."""
    return Call("GET", "/api/status", {name: value for name, value in filters.items() if value not in (None, [], ())})


def checked(answer: Answer) -> Answer:
    """The answer of a call that worked.

    Raises:
        SkyserveError: it did not.
    """
    if answer.status < 300:
        return answer
    raise error_of(answer)


def error_of(answer: Answer) -> SkyserveError:
    """The error that an answer means."""
    try:
        body = orjson.loads(answer.body)
    except ValueError:
        body = None
    told = body.get("error") if isinstance(body, dict) else None
    if not isinstance(told, dict):
        return foreign(answer)
    kind = error_kind(told.get("type")) or BY_STATUS.get(answer.status, SkyserveError)
    error = kind(str(told.get("message", "")), hint=told.get("hint") or None, request_id=told.get("request_id"))
    after = retry_after(answer)
    if isinstance(error, errors.Busy | errors.Unavailable) and after is not None:
        error.retry_after = after
    return error


def error_kind(name: object) -> type[SkyserveError] | None:
    """The class of errors.py with this name, if it can be made from a message."""
    kind = getattr(errors, name, None) if isinstance(name, str) else None
    if isinstance(kind, type) and issubclass(kind, SkyserveError) and not issubclass(kind, RequestFailed):
        return kind
    return None


def foreign(answer: Answer) -> SkyserveError:
    """The error of an answer that no server of ours gives."""
    if answer.status == 401:
        return Unauthorized(f"{answer.url} refuses the token")
    if 300 <= answer.status < 400:
        target = answer.headers.get("location", "another address")
        return ServerUnreachable(f"{answer.url} sends to {target}", hint="Use that as the endpoint.")
    return ServerUnreachable(
        f"what answers at {answer.url} is not a skyserve server, or a proxy before it failed (HTTP {answer.status})",
        hint="Check the endpoint; 'sky api info' shows which one is used and why.",
    )


def retry_after(answer: Answer) -> int | None:
    """Seconds from the header of that name."""
    text = answer.headers.get("retry-after", "")
    return int(text) if text.isascii() and text.isdigit() else None


def is_terminal(record: Mapping[str, Any]) -> bool:
    return record.get("status") in {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}


def outcome_of(record: dict[str, Any]) -> Any:
    """The result of a request that has ended.

    Raises:
        RequestFailed: it did not succeed.
        RequestWasCancelled: it was cancelled.
    """
    if record["status"] == Status.SUCCEEDED:
        return record.get("result")
    raise failure_of(record)


def failure_of(record: dict[str, Any]) -> RequestFailed:
    """The error of a request that ended FAILED or CANCELLED."""
    told = record.get("error") or {}
    what = f"request {str(record.get('request_id'))[:8]} ({record.get('name')})"
    message = told.get("message") or record.get("reason") or "no reason was given"
    if record["status"] == Status.CANCELLED:
        return RequestWasCancelled(f"{what} was cancelled: {message}", record=record, hint=told.get("hint") or "")
    kind = told.get("type")
    # What our own errors say stands for itself.
    said = message if error_kind(kind) is not None else f"{what} failed: {kind}: {message}" if kind else message
    return RequestFailed(said, record=record, hint=told.get("hint") or "")


def _word(flag: bool) -> str:
    return "true" if flag else "false"
