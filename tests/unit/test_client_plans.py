"""What a client does when answers come, come late, break or do not come: no server, no clock, no waiting."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from skyserve_exec.client import plans, wire
from skyserve_exec.client.patience import Patience, Pause
from skyserve_exec.client.plans import Effect, Emit, Following, Open, Position, Read
from skyserve_exec.client.wire import Answer, Broken, Call
from skyserve_exec.errors import (
    Busy,
    Draining,
    NotFound,
    RequestFailed,
    RequestWasCancelled,
    ServerUnreachable,
    SkyserveError,
    StreamIncomplete,
)

URL = "http://here"
SSE = {"content-type": "text/event-stream"}
Reply = Any


class World:
    """Plays the server: replies in order, and the time that pauses take."""

    def __init__(self, replies: Iterable[Reply], *, met: bool = True, seconds: float = 60.0) -> None:
        self.replies = list(replies)
        self.now = 0.0
        self.effects: list[Effect] = []
        self.emitted = b""
        self.said: list[str] = []
        self.patience = Patience(seconds, self.clock, self.said.append, met)

    def clock(self) -> float:
        return self.now

    def run(self, plan: plans.Plan[Any]) -> Any:
        """Carries out the plan; a reply that is an exception is thrown, a function is called for one."""
        reply: Any = None
        try:
            while True:
                effect = plan.throw(reply) if isinstance(reply, Exception) else plan.send(reply)
                self.effects.append(effect)
                reply = self.answer(effect)
        except StopIteration as stop:
            return stop.value

    def answer(self, effect: Effect) -> Any:
        if isinstance(effect, Emit):
            self.emitted += effect.data
            return None
        if isinstance(effect, Pause):
            self.now += effect.seconds
            return None
        self.now += 0.001
        reply = self.replies.pop(0) if len(self.replies) > 1 or not callable(self.replies[0]) else self.replies[0]
        return reply(effect) if callable(reply) else reply

    @property
    def pauses(self) -> list[float]:
        return [effect.seconds for effect in self.effects if isinstance(effect, Pause)]

    @property
    def calls(self) -> list[Call]:
        opened = [effect.call if isinstance(effect, Open) else effect for effect in self.effects]
        return [effect for effect in opened if isinstance(effect, Call)]


def answer(body: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(status, {"content-type": "application/json", **headers}, json.dumps(body).encode(), URL)


def refusal(error: SkyserveError, **headers: str) -> Answer:
    return answer(error.to_json(), error.http_status, **headers)


def broken(*, reached: bool = True, idle: bool = False) -> Broken:
    return Broken("connection reset", url=URL, reached=reached, idle=idle)


def forever(make: Callable[[], Any]) -> Callable[[Effect], Any]:
    return lambda _effect: make()


def record(status: str, **more: Any) -> Answer:
    return answer({"request_id": "1234567890", "name": "noop", "status": status, **more})


# --- submitting -----------------------------------------------------------------------------------------------------


def test_a_submit_is_repeated_with_its_key_when_nobody_knows_whether_it_arrived() -> None:
    world = World([broken(), broken(reached=False), answer({"request_id": "r"}, 202)], met=False)
    assert world.run(plans.submit("noop", {"a": 1}, "key", world.patience)) == "r"
    assert {call.headers["Idempotency-Key"] for call in world.calls} == {"key"}
    assert len(world.calls) == 3


def test_a_submit_that_never_arrived_fails_at_once() -> None:
    world = World([broken(reached=False)])
    with pytest.raises(ServerUnreachable, match="does not answer: connection reset"):
        world.run(plans.submit("noop", {}, "key", world.patience))
    assert world.pauses == []


def test_a_refused_submit_is_final() -> None:
    world = World([refusal(Draining("stopping"), **{"retry-after": "7"})])
    with pytest.raises(Draining) as caught:
        world.run(plans.submit("noop", {}, "key", world.patience))
    assert caught.value.retry_after == 7


# --- waiting --------------------------------------------------------------------------------------------------------


def test_a_result_is_waited_for_across_a_restart_and_that_is_said_once() -> None:
    world = World([record("RUNNING"), *[broken(reached=False)] * 20, record("SUCCEEDED", result=[1])])
    assert world.run(plans.result("r", None, world.patience, world.clock)) == [1]
    assert len(world.said) == 2
    assert world.said[0].startswith("The server does not answer (connection reset); trying again for up to 60 s")
    assert world.said[1] == "The server answers again."


def test_a_short_cut_is_not_worth_a_word() -> None:
    world = World([broken(), record("SUCCEEDED", result=None)])
    assert world.run(plans.result("r", None, world.patience, world.clock)) is None
    assert world.said == []
    assert world.pauses == [0.0]


def test_patience_ends() -> None:
    world = World([forever(lambda: broken(reached=False))])
    with pytest.raises(ServerUnreachable):
        world.run(plans.result("r", None, world.patience, world.clock))
    assert 59 < world.now < 62
    assert len(world.said) == 1


def test_a_server_that_was_never_met_is_not_waited_for() -> None:
    world = World([broken(reached=False)], met=False)
    with pytest.raises(ServerUnreachable):
        world.run(plans.wait("r", 0.0, world.patience, world.clock))
    assert world.pauses == []


def test_a_stopping_server_that_answers_early_is_not_asked_in_a_loop() -> None:
    world = World([*[record("RUNNING")] * 10, record("SUCCEEDED", result=1)])
    assert world.run(plans.result("r", None, world.patience, world.clock)) == 1
    assert len(world.pauses) == 10
    assert sum(world.pauses) > 4


def test_a_wait_ends_in_time_also_while_the_server_is_away() -> None:
    world = World([record("RUNNING"), forever(lambda: broken(reached=False))])
    with pytest.raises(ServerUnreachable):
        world.run(plans.result("r", 5.0, world.patience, world.clock))
    assert 4.5 < world.now < 7


def test_a_result_that_does_not_come_in_time() -> None:
    world = World([forever(lambda: record("PENDING"))])
    with pytest.raises(TimeoutError, match=r"request r has not ended within 2 s \(it is PENDING\)"):
        world.run(plans.result("r", 2.0, world.patience, world.clock))
    assert 2 <= world.now < 4


def test_waiting_is_tried_again_when_the_server_is_busy_as_it_says() -> None:
    world = World([refusal(Busy("too much"), **{"retry-after": "3"}), record("SUCCEEDED", result=1)])
    assert world.run(plans.result("r", None, world.patience, world.clock)) == 1
    assert world.pauses == [3.0]


def test_an_unknown_id_is_final() -> None:
    world = World([refusal(NotFound("no request r"))])
    with pytest.raises(NotFound, match="no request r"):
        world.run(plans.result("r", None, world.patience, world.clock))


def test_failed_and_cancelled_results() -> None:
    told = {"type": "ValueError", "message": "no\nsuch", "hint": "h"}
    world = World([record("FAILED", error=told)])
    with pytest.raises(RequestFailed, match=r"request 12345678 \(noop\) failed: ValueError: no\nsuch") as caught:
        world.run(plans.result("r", None, world.patience, world.clock))
    assert caught.value.error == told
    assert caught.value.hint == "h"
    assert caught.value.record["status"] == "FAILED"
    world = World([record("CANCELLED", error=None, reason="cancelled by root")])
    with pytest.raises(RequestWasCancelled, match="was cancelled: cancelled by root"):
        world.run(plans.result("r", None, world.patience, world.clock))


# --- streaming ------------------------------------------------------------------------------------------------------


def text(data: str, after: int) -> bytes:
    return f"id: {after}\nevent: text\ndata: {json.dumps(data)}\n\n".encode()


def end(*, complete: bool = True, status: str = "SUCCEEDED") -> bytes:
    body = {"request_id": "r", "status": status, "exit_code": None, "complete": complete}
    return f"event: end\ndata: {json.dumps(body)}\n\n".encode()


OPENED = Answer(200, SSE, b"", URL)


def follow(world: World, **options: Any) -> Position:
    position = Position()
    world.run(plans.stream(Following("r", **options), position, world.patience, world.clock))
    return position


def test_a_log_and_its_end() -> None:
    raw = b"\xff\xfe"
    events = b"id: 5\nevent: bytes\ndata: " + base64.b64encode(raw) + b"\n\n"
    world = World([OPENED, text("ab\r", 3), events, end()])
    position = follow(world)
    assert world.emitted == b"ab\r" + raw
    assert position.offset == 5
    assert position.end is not None
    assert position.end["status"] == "SUCCEEDED"


def test_a_cut_stream_goes_on_at_the_exact_byte() -> None:
    world = World(
        [
            OPENED, text("one ", 4), broken(),
            OPENED, text("two ", 8), b"",
            refusal(Draining("stopping")),
            OPENED, text("three", 13), end(complete=False, status="RUNNING"),
            broken(reached=False),
            OPENED, end(),
        ]
    )  # fmt: skip
    follow(world, tail=3)
    assert world.emitted == b"one two three"
    assert [call.headers.get("Last-Event-ID") for call in world.calls] == [None, "4", "8", "8", "13", "13"]
    assert [call.params.get("tail") for call in world.calls] == [3] + [None] * 5


def test_bytes_that_come_twice_are_given_out_once() -> None:
    world = World([OPENED, text("abcdef", 6), broken(), OPENED, text("defghi", 9), text("ghi", 9), end()])
    follow(world)
    assert world.emitted == b"abcdefghi"


def test_bytes_that_are_missing_are_an_error() -> None:
    world = World([OPENED, text("abc", 3), broken(), OPENED, text("ghi", 9)])
    with pytest.raises(StreamIncomplete, match="3 bytes of the log are missing after byte 3"):
        follow(world)


def test_LG15_progress_keeps_a_stream_alive_for_ever_and_silence_ends_it() -> None:
    replies: list[Any] = []
    for number in range(500):  # a server that is reachable once in 20 s: ten times the patience in all
        replies += [OPENED, text("x", number + 1), *[broken()] * 25]
    world = World([*replies, OPENED, end()])
    follow(world)
    assert world.emitted == b"x" * 500
    assert world.now > 5000
    world = World([OPENED, text("x", 1), forever(broken)])
    with pytest.raises(StreamIncomplete, match="cut at byte 1: the server at http://here does not answer"):
        follow(world)


def test_LG15_a_404_stops_at_once() -> None:
    world = World([OPENED, text("x", 1), broken(), refusal(NotFound("no request r"))])
    with pytest.raises(NotFound):
        follow(world)
    assert world.pauses == [0.0]


def test_a_silent_but_living_stream_is_reopened_without_a_word() -> None:
    world = World([])
    slow: list[Any] = []
    for _ in range(50):

        def silent(_effect: Effect) -> Broken:
            world.now += 60.0
            return broken(idle=True)

        slow += [OPENED, silent]
    world.replies = [*slow, OPENED, text("late", 4), end()]
    follow(world)
    assert world.emitted == b"late"
    assert world.said == []


def test_what_a_pending_request_waits_for_is_told() -> None:
    told: list[dict[str, Any]] = []
    world = World([OPENED, b'event: waiting\ndata: {"reason":"full","position":2}\n\n: heartbeat\n\n', end()])
    follow(world, told=told.append)
    assert told == [{"reason": "full", "position": 2}]


def test_something_else_at_the_address_is_named() -> None:
    world = World([Answer(200, {"content-type": "text/html"}, b"", URL)])
    with pytest.raises(ServerUnreachable, match="is not a skyserve server"):
        follow(world)
    world = World([Answer(502, {}, b"<html>", URL)], met=False)
    with pytest.raises(ServerUnreachable, match=r"not a skyserve server, or a proxy before it failed \(HTTP 502\)"):
        follow(world)


def test_read_is_asked_for_only_while_a_stream_is_open() -> None:
    world = World([OPENED, text("a", 1), end()])
    follow(world)
    kinds = [type(effect) for effect in world.effects]
    assert kinds == [Open, Read, Emit, Read]


# --- errors ---------------------------------------------------------------------------------------------------------


def test_errors_come_back_as_their_own_kind() -> None:
    for kind in (NotFound, Busy, Draining):
        error = wire.error_of(refusal(kind("what", hint="do this", request_id="r")))
        assert type(error) is kind
        assert (error.message, error.hint, error.request_id) == ("what", "do this", "r")


def test_unknown_kinds_of_errors_are_told_by_their_status() -> None:
    assert type(wire.error_of(answer({"error": {"type": "Newer", "message": "m"}}, 409))).__name__ == "Conflict"
    assert type(wire.error_of(answer({"error": {"type": "RequestFailed", "message": "m"}}, 404))) is NotFound
    assert type(wire.error_of(answer({"error": {"type": 3, "message": "m"}}, 599))) is SkyserveError
