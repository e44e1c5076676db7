"""The pure parts of the http process: access rules, headers, payloads, waiting, reasons, schemas."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from skyserve_exec.errors import BadInput, Busy, Draining, Forbidden, StoreBusy, Unauthorized, Unavailable
from skyserve_exec.messages import Refused
from skyserve_exec.operation_table import BUILTIN
from skyserve_exec.protocol import NAME_PATTERN, LaunchPayload
from skyserve_exec.record import RequestRow
from skyserve_exec.server.access import Access
from skyserve_exec.server.answers import answer_error
from skyserve_exec.server.openapi import hoisted
from skyserve_exec.server.operations_routes import cluster_name
from skyserve_exec.server.payloads import check_of, checked, place_name
from skyserve_exec.server.pending import reason
from skyserve_exec.server.posted import idempotency_key, wait_seconds
from skyserve_exec.server.supervisor_link import refusal
from skyserve_exec.server.waiting import Waiting
from skyserve_exec.store.request_reader import Holder
from skyserve_exec.store.request_reader import Waiting as Why

LOCAL = "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "local", "ours"),
    [
        ("localhost:46580", LOCAL, True),
        ("127.0.0.1", LOCAL, True),
        ("[::1]:80", "::1", True),
        ("10.1.2.3:46580", "10.1.2.3", True),  # the address the connection came in on
        ("10.1.2.3:46580", "::ffff:10.1.2.3", True),
        ("10.1.2.4", "10.1.2.3", False),
        ("bound.example", LOCAL, True),
        ("other.example", LOCAL, False),
        ("0.0.0.0", LOCAL, False),
        ("", LOCAL, False),
        ("localhost@evil", LOCAL, False),
        ("evil\x00localhost", LOCAL, False),
    ],
)
def test_hosts(host: str, local: str, ours: bool) -> None:
    access = Access(None, ["bound.example", "0.0.0.0", "::"])
    for _ in range(2):  # the second answer comes from what is known
        if ours:
            access.check({b"host": host.encode()}, local)
        else:
            with pytest.raises(Forbidden):
                access.check({b"host": host.encode()}, local)


def test_tokens() -> None:
    access = Access("t", ["localhost"])
    access.check({b"host": b"localhost", b"authorization": b"BEARER t"}, LOCAL)
    for wrong in (b"", b"Bearer", b"Bearer tt", b"Token t", b"Bearer \xff"):
        with pytest.raises(Unauthorized):
            access.check({b"host": b"localhost", b"authorization": wrong}, LOCAL)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("wait=10", 10),
        ("wait=0", 0),
        ("Wait=2.5", 2.5),
        ('respond-async, wait="7"', 7),
        ("wait=5;foo=bar", 5),
        ("handling=lenient", 0),
        ("wait=999999", 3600),
        ("", 0),
    ],
)
def test_prefer(given: str, seconds: float) -> None:
    assert wait_seconds({b"prefer": given.encode()}) == seconds


def test_idempotency_keys() -> None:
    assert idempotency_key({}) is None
    assert idempotency_key({b"idempotency-key": b" a key "}) == "a key"
    for wrong in (b"", b"   ", b"x" * 256, b"a\tb", b"\xe9"):
        with pytest.raises(BadInput):
            idempotency_key({b"idempotency-key": wrong})


def test_places_are_named_as_users_write_them() -> None:
    assert place_name(("task", "resources", "cpus")) == "task.resources.cpus"
    assert place_name(("job_ids", 2)) == "job_ids[2]"
    assert place_name(()) == "body"
    assert place_name(("a\nb",)) == "a\\nb"


def test_an_empty_body_is_an_empty_object() -> None:
    queue = next(each for each in BUILTIN if each.name == "queue")
    assert check_of(queue)(b"") == {"cluster": None, "skip_finished": False}


def test_several_faults_are_told_at_once_but_not_hundreds() -> None:
    with pytest.raises(BadInput) as caught:
        checked(LaunchPayload, b'{"task": {"run": 1, "setup": 2, "name": 3, "workdir": 4, "num_nodes": 5}}')
    assert caught.value.message.count(";") == 3
    assert "and 2 more" in caught.value.message


@pytest.mark.parametrize("user", ["root", "Jane.Doe", "-", "ünï", "x" * 200, "a@b.example"])
def test_made_cluster_names_are_valid(user: str) -> None:
    assert re.match(NAME_PATTERN, cluster_name(user))


def test_errors_bring_their_headers() -> None:
    assert dict(answer_error(Busy("b")).headers)[b"retry-after"] == b"5"
    assert dict(answer_error(StoreBusy("b")).headers)[b"retry-after"] == b"1"
    assert dict(answer_error(Draining("d")).headers)[b"connection"] == b"close"
    assert dict(answer_error(BadInput("d", request_id="abc")).headers) == {b"x-skypilot-request-id": b"abc"}


def test_a_refusal_is_the_error_that_serve_named() -> None:
    assert isinstance(refusal(Refused(1, "Busy", "m")), Busy)
    assert refusal(Refused(1, "Draining", "m")).hint == Draining.hint
    assert type(refusal(Refused(1, "Any", "m"))) is Unavailable
    assert type(refusal(Refused(1, "annotations", "m"))) is Unavailable


def test_definitions_become_components_with_their_own_names() -> None:
    schema = {
        "$defs": {"T": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
        "properties": {"t": {"$ref": "#/$defs/T"}},
    }
    assert hoisted("own.a", schema, prefix="own.a.") == {
        "own.a": {"properties": {"t": {"$ref": "#/components/schemas/own.a.T"}}},
        "own.a.T": {"type": "array", "items": {"$ref": "#/components/schemas/own.a.T"}},
    }


def row(**fields: Any) -> RequestRow:
    values: dict[str, Any] = dict.fromkeys(RequestRow.__slots__, None)
    values.update(request_id="r", schedule_type="short", cluster="c")
    values.update(fields)
    return RequestRow(**values)


def test_reasons() -> None:
    holder = Holder("0123456789", "launch", 100.0)
    assert reason(row(), Why(0, [], None), 110.0) == "waits for a short executor; next in its queue"
    assert (
        reason(row(), Why(2, [holder], None), 110.0)
        == "waits for a short executor; 2 before it; running: launch 01234567 for 10 s"
    )
    assert "5 more" in reason(row(), Why(1000, [holder] * 8, None), 10_000.0)
    assert "1000+ before it" in reason(row(), Why(1000, [], None), 110.0)
    assert reason(row(), Why(3, [], "abcdef0123"), 1.0) == "waits for request abcdef01, which has cluster c"
    assert reason(row(reason="runs again"), Why(0, [], None), 1.0).startswith("runs again; waits")


def test_watches_are_woken_by_what_concerns_them() -> None:
    waiting = Waiting()
    woken: list[str] = []
    first = waiting.watch("a", lambda: woken.append("first"), wants_start=True)
    second = waiting.watch("a", lambda: woken.append("second"))
    other = waiting.watch("b", lambda: woken.append("other"))
    waiting.start(["a", "unknown"])
    assert woken == ["first"]
    assert first.started
    waiting.settle({"a": {"status": "FAILED"}, "unknown": None})
    assert woken == ["first", "first", "second"]
    assert second.record == {"status": "FAILED"}
    assert not other.settled
    for watch in (first, second, other, other):
        waiting.unwatch(watch)
    assert len(waiting) == 0


def test_one_look_settles_what_no_push_told() -> None:
    waiting = Waiting()
    watches = {name: waiting.watch(name) for name in ("ended", "runs", "gone", "waits")}
    asked = waiting.awaited(longer_than=-1)
    assert sorted(asked) == sorted(watches)
    waiting.learn(asked, {"ended": "SUCCEEDED", "runs": "RUNNING", "waits": "PENDING"})
    assert [name for name, watch in watches.items() if watch.settled] == ["ended", "gone"]
    assert [name for name, watch in watches.items() if watch.started] == ["runs"]
    assert sorted(waiting.awaited(longer_than=-1)) == ["runs", "waits"]


def test_waiting_ends_by_time_push_or_goodbye() -> None:
    async def main() -> None:
        waiting = Waiting()
        loop = asyncio.get_running_loop()
        watch = waiting.watch("a")
        assert not await watch.settled_within(0)
        assert not await watch.settled_within(0.01)
        loop.call_later(0.01, waiting.settle, {"a": None})
        assert await watch.settled_within(10)
        watch = waiting.watch("b")
        loop.call_later(0.01, waiting.say_goodbye)
        assert not await watch.settled_within(10)
        assert not await watch.settled_within(10)
        assert not await waiting.watch("c").settled_within(10)

    asyncio.run(main())
