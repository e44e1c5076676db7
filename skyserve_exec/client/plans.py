"""What a client does, step by step, without doing it: the one core of the sync and the asyncio client.

A plan is a generator. It yields an effect, is sent what came of it, and returns the outcome; a broken exchange is
thrown into it as Broken. The clients (sdk.py, aio.py) only carry out effects.

Room: the user's process. Pure: no I/O, no clock of its own.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import orjson

from skyserve_exec.client import wire
from skyserve_exec.client.patience import TRY_AGAIN, Patience, Pause, meaning
from skyserve_exec.client.sse import Event, EventParser
from skyserve_exec.client.wire import Answer, Broken, Call
from skyserve_exec.errors import SkyserveError, StreamIncomplete

LONGEST_WAIT = 30.0  # seconds one call waits for a request's end; then it asks again
SHORTEST_WAIT = 0.5  # an answer that comes sooner although nothing has ended comes from a server that stops
SETTLED_AFTER = 2.0  # seconds after which a stream that was opened counts as progress


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a call whose answer is a stream, and end the one before. Sends back the Answer; with status 200 its body
    follows by Read."""

    call: Call


@dataclass(frozen=True, slots=True)
class Read:
    """The next bytes of the open stream; sends back b"" at its end."""


@dataclass(frozen=True, slots=True)
class Emit:
    """These bytes are for the reader of the stream."""

    data: bytes


Effect: TypeAlias = Call | Pause | Open | Read | Emit
Outcome = TypeVar("Outcome")
Plan: TypeAlias = Generator[Effect, Any, Outcome]


def exchange(call: Call, patience: Patience, *, repeatable: bool = True) -> Plan[Answer]:
    """One call that works, tried again as long as the patience lasts.

    Not `repeatable`: it is tried again only when it may have reached the server and nobody knows (it has a key, so a
    repetition is the same request); otherwise a refusal is final.

    Raises:
        SkyserveError: what the server answers, or that it does not.
    """
    while True:
        try:
            answer: Answer = yield call
        except Broken as broken:
            repeatable = repeatable or broken.reached
            if not repeatable:
                raise meaning(broken) from None
            yield from patience.endure(broken)
            continue
        if repeatable and answer.status in TRY_AGAIN and patience.met:
            yield from patience.endure(answer)
            continue
        patience.progress()
        return wire.checked(answer)


def submit(name: str, payload: Mapping[str, Any], key: str, patience: Patience) -> Plan[str]:
    """A new request; its id, once it is durable at the server."""
    answer = yield from exchange(wire.submit_call(name, payload, key), patience, repeatable=False)
    return str(answer.object()["request_id"])


def read_json(call: Call, patience: Patience) -> Plan[Any]:
    """The body of a call's answer."""
    answer = yield from exchange(call, patience)
    return answer.object()


def wait(request_id: str, timeout: float | None, patience: Patience, clock: Callable[[], float]) -> Plan[Any]:
    """The record, as soon as it is terminal or `timeout` seconds are over."""
    deadline = None if timeout is None else clock() + max(0.0, timeout)
    patience.deadline = deadline
    early = 0
    while True:
        begun = clock()
        left = LONGEST_WAIT if deadline is None else max(0.0, deadline - begun)
        seconds = min(LONGEST_WAIT, left)
        answer = yield from exchange(wire.get_call(request_id, seconds), patience)
        record = answer.object()
        if wire.is_terminal(record) or (deadline is not None and clock() >= deadline):
            return record
        early = early + 1 if clock() - begun < min(seconds, SHORTEST_WAIT) else 0
        if early:
            yield Pause(min(1.0, 0.1 * early, left))


def result(request_id: str, timeout: float | None, patience: Patience, clock: Callable[[], float]) -> Plan[Any]:
    """The result of a request.

    Raises:
        RequestFailed, RequestWasCancelled: it did not succeed.
        TimeoutError: it has not ended within `timeout` seconds.
    """
    record = yield from wait(request_id, timeout, patience, clock)
    if not wire.is_terminal(record):
        raise TimeoutError(f"request {request_id[:8]} has not ended within {timeout:g} s (it is {record['status']})")
    return wire.outcome_of(record)


@dataclass(slots=True)
class Position:
    """How far a stream has come. `offset` is the byte in the log after the last one given out, None before any."""

    offset: int | None = None
    end: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Following:
    """What is to be streamed. `told` is called with what a pending request waits for."""

    request_id: str
    follow: bool = True
    tail: int = 0
    offset: int | None = None
    cancel_on_disconnect: bool = False
    told: Callable[[dict[str, Any]], None] | None = None

    def call(self, resume: int | None) -> Call:
        return wire.stream_call(
            self.request_id,
            follow=self.follow,
            tail=self.tail,
            offset=self.offset,
            resume=resume,
            cancel_on_disconnect=self.cancel_on_disconnect,
        )


def stream(what: Following, position: Position, patience: Patience, clock: Callable[[], float]) -> Plan[None]:
    """Emits a request's log, every byte once, across broken connections and restarts of the server.

    Raises:
        StreamIncomplete: the connection broke and did not come back in time.
        SkyserveError: what the server answers, such as NotFound.
    """
    while position.end is None:
        fault = yield from _connection(what, position, patience, clock)
        if fault is None:
            continue
        try:
            yield from patience.endure(fault)
        except SkyserveError as error:
            raise _incomplete(what, position, error) from None


def _connection(
    what: Following, position: Position, patience: Patience, clock: Callable[[], float]
) -> Plan[Broken | Answer | None]:
    """Streams over one connection until it ends; what was wrong with it, None when the log's end was told."""
    try:
        answer: Answer = yield Open(what.call(position.offset))
    except Broken as broken:
        return broken
    if answer.status != 200:
        if answer.status in TRY_AGAIN and patience.met:
            return answer
        raise wire.error_of(answer)
    if not answer.headers.get("content-type", "").startswith(wire.EVENTS):
        raise wire.foreign(answer)
    patience.met = True
    opened, parser = clock(), EventParser()
    try:
        while True:
            data: bytes = yield Read()
            if not data:
                return Broken("the connection was closed", url=answer.url, reached=True)
            for event in parser.feed(data):
                if event.kind == "end":
                    return _ended(event, position, patience, answer)
                patience.progress()
                text = _take(event, what, position)
                if text:
                    yield Emit(text)
    except Broken as broken:
        if clock() - opened > SETTLED_AFTER:
            patience.progress()
        return broken


def _ended(event: Event, position: Position, patience: Patience, answer: Answer) -> Broken | None:
    """Notes the end; a fault when it is only the server's."""
    end = orjson.loads(event.data)
    if end.get("complete", True):
        patience.progress()
        position.end = end
        return None
    return Broken("the server is stopping", url=answer.url, reached=True)


def _take(event: Event, what: Following, position: Position) -> bytes:
    if event.kind == "waiting" and what.told is not None:
        what.told(orjson.loads(event.data))
    if event.kind == "text":
        data = orjson.loads(event.data).encode()
    elif event.kind == "bytes":
        data = base64.b64decode(event.data)
    else:
        return b""
    return _advance(position, data, event.id)


def _advance(position: Position, data: bytes, event_id: str | None) -> bytes:
    """The part of the data that has not been given out yet."""
    if event_id is None or not event_id.isdigit():
        return data
    after, known = int(event_id), position.offset
    start = after - len(data)
    if known is not None and start > known:
        raise StreamIncomplete(f"{start - known} bytes of the log are missing after byte {known}")
    position.offset = after if known is None else max(known, after)
    return data if known is None else data[max(0, known - start) :]


def _incomplete(what: Following, position: Position, error: SkyserveError) -> SkyserveError:
    if position.offset is None and not isinstance(error, StreamIncomplete):
        return error
    short = what.request_id[:8]
    return StreamIncomplete(
        f"the stream of request {short} was cut at byte {position.offset}: {error.message}",
        hint=f"The request may still be running. Follow it with: sky api logs {short}",
        request_id=what.request_id,
    )
