"""Bad input of all sorts: one clear JSON error that names the field, and nothing started."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from skyserve_exec.operation_table import Operation
from skyserve_exec.states import ScheduleType
from tests.process.http_following import read_head
from tests.process.http_stand_in import StandIn, stand_in

OWN = Operation(
    name="count",
    schedule_type=ScheduleType.SHORT,
    payload="",
    function="somewhere:count",
    help="Counts words.",
    schema={
        "type": "object",
        "properties": {
            "words": {"type": "array", "items": {"$ref": "#/$defs/Word"}},
            "least": {"type": "integer", "minimum": 1, "default": 1},
        },
        "required": ["words"],
        "additionalProperties": False,
        "$defs": {"Word": {"type": "string", "maxLength": 20}},
    },
)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    directory = tmp_path_factory.mktemp("http")
    with stand_in(directory, own_operations=[OWN.describe()]) as running:
        yield running
        # All tests of this module send what must not be taken.
        assert running.submits == []


def error_of(peer: StandIn, path: str, content: bytes | str, status: int = 400) -> dict[str, Any]:
    answer = peer.http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    error = dict(answer.json()["error"])
    assert "\n" not in error["message"]
    assert len(error["message"]) < 1500
    return error


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/queue", {"clustr": "x"}, "clustr"),
        ("/queue", {"cluster": 7}, "cluster"),
        ("/queue", {"cluster": "a/b"}, "cluster"),
        ("/queue", {"cluster": "../../etc"}, "cluster"),
        ("/queue", {"cluster": "a\u0000b"}, "cluster"),
        ("/queue", {"cluster": "a\nb"}, "cluster"),
        ("/queue", {"cluster": "trailing\n"}, "cluster"),
        ("/queue", {"cluster": "x" * 100_000}, "cluster"),
        ("/queue", {"skip_finished": "yes"}, "skip_finished"),
        ("/queue", [], "body"),
        ("/queue", "text", "body"),
        ("/queue", None, "body"),
        ("/logs", {}, "cluster"),
        ("/logs", {"cluster": "c", "tail": -1}, "tail"),
        ("/logs", {"cluster": "c", "tail": 1.5}, "tail"),
        ("/logs", {"cluster": "c", "job_id": 0}, "job_id"),
        ("/logs", {"cluster": "c", "job_id": 10**30}, "job_id"),
        ("/logs", {"cluster": "c", "follow": 1}, "follow"),
        ("/cancel", {"cluster": "c"}, "job_ids"),
        ("/cancel", {"cluster": "c", "job_ids": [1, "2"]}, "job_ids[1]"),
        ("/launch", {}, "task"),
        ("/launch", {"task": {"run": 1}}, "task.run"),
        ("/launch", {"task": {"run": "x", "num_nodes": 2}}, "task.num_nodes"),
        ("/launch", {"task": {"resources": {"cpus": "many"}}}, "task.resources.cpus"),
        ("/launch", {"task": {"resources": {"infra": "aws"}}}, "task.resources.infra"),
        ("/launch", {"task": {"envs": {"A B": "x"}}}, "task.envs"),
        ("/launch", {"task": {"envs": {"A": 1}}}, "task.envs.A"),
        ("/launch", {"task": {"file_mounts": {}}}, "task.file_mounts"),
        ("/launch", {"task": {"workdir": "relative"}}, "task.workdir"),
        ("/launch", {"task": {"workdir": "/does/not/exist"}}, "task.workdir"),
        ("/launch", {"task": {"workdir": "/etc/passwd"}}, "task.workdir"),
        ("/launch", {"task": {"workdir": "/bad\x01\n\x1b[31mname"}}, "task.workdir"),
        ("/launch", {"task": {"x" * 10_000: 1}}, "task.x"),
        ("/launch", {"task": {"bad\x1b[31m\nname": 1}}, "task.bad"),
        ("/count", {}, "words"),
        ("/count", {"words": ["a", 2]}, "words[1]"),
        ("/count", {"words": ["x" * 50_000]}, "words[0]"),
        ("/count", {"words": [], "leest": 3}, "leest"),
        ("/count", {"words": [], "least": 0}, "least"),
        ("/count", [], "body"),
        ("/api/cancel", {}, "request_ids"),
        ("/api/cancel", {"request_ids": ["../x"]}, "request_ids[0]"),
        ("/api/cancel", {"request_ids": ["ab"], "all": True}, "give one of"),
        ("/api/cancel", {"everything": True}, "everything"),
    ],
)
def test_the_message_names_the_field(peer: StandIn, path: str, body: Any, names: str) -> None:
    error = error_of(peer, path, json.dumps(body))
    assert names in error["message"], error
    assert error["message"].isprintable()
    assert error["hint"].isprintable()


def test_a_misspelt_field_gets_a_suggestion(peer: StandIn) -> None:
    error = error_of(peer, "/launch", b'{"task": {"run": "x", "resources": {"cpu": 1}}}')
    assert error["type"] == "UnsupportedField"
    assert error["message"] == "task.resources.cpu: not a known field"
    assert "Did you mean cpus?" in error["hint"]
    assert "Did you mean least?" in error_of(peer, "/count", b'{"words": [], "leest": 1}')["hint"]


@pytest.mark.parametrize("path", ["/queue", "/count", "/api/cancel"])
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"cluster": NaN, "words": NaN}',
        b'{"cluster": "\xff\xfe", "words": ["\xff"]}',
        b'{"cluster": "\\ud800", "words": ["\\ud800"]}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"cluster":' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}",
        b"{}{}",
        b"\xef\xbb\xbf{}",
        b"\0",
        b"not json",
    ],
    ids=["cut", "nan", "utf-8", "surrogate", "deep list", "deep object", "two", "bom", "nul", "words"],
)
def test_what_is_not_json(peer: StandIn, path: str, body: bytes) -> None:
    error_of(peer, path, body)


def test_secrets_are_not_repeated(peer: StandIn) -> None:
    error = error_of(peer, "/launch", b'{"task": {"secrets": {"KEY": ["canary"]}, "envs": {"OTHER": "canary\\u0000"}}}')
    assert "canary" not in str(error)


@pytest.mark.parametrize("path", ["/queue", "/count", "/api/cancel"])
def test_bodies_over_the_limit(peer: StandIn, path: str) -> None:
    huge = b'{"cluster": "' + b"x" * 10_000_000 + b'"}'
    error = error_of(peer, path, huge, status=413)
    assert error["type"] == "TooLarge"
    answer = peer.http.post(
        path,
        content=(huge[at : at + 65536] for at in range(0, len(huge), 65536)),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 413, answer.text
    assert peer.http.get("/api/health").status_code == 200


def test_a_chunked_body_without_a_length_is_taken(peer: StandIn) -> None:
    answer = peer.http.post(
        "/queue", content=iter([b'{"clus', b'ter": "a/', b'b"}']), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert "cluster" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "names"),
    [
        ({"Prefer": "wait=soon"}, "Prefer"),
        ({"Prefer": "wait=-1"}, "Prefer"),
        ({"Prefer": "wait=nan"}, "Prefer"),
        ({"Prefer": "wait"}, "Prefer"),
        ({"Prefer": "respond-async, wait=1e3"}, "Prefer"),
        ({"Idempotency-Key": ""}, "Idempotency-Key"),
        ({"Idempotency-Key": "x" * 300}, "Idempotency-Key"),
        ({"Idempotency-Key": "caf\u00e9"}, "Idempotency-Key"),
    ],
)
def test_bad_headers(peer: StandIn, headers: dict[str, str], names: str) -> None:
    encoded = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
    answer = peer.http.post("/queue", json={}, headers=encoded)
    assert answer.status_code == 400, answer.text
    assert names in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status", "names"),
    [
        ("/api/get?request_id=zzz", 400, "request_id"),
        ("/api/get?request_id=" + "a" * 37, 400, "request_id"),
        ("/api/get?request_id=" + "a" * 5000, 400, "request_id"),
        ("/api/get?request_id=%00", 400, "request_id"),
        ("/api/get?request_id=abc", 404, "abc"),
        ("/api/get?request_id=00000000-0000-0000-0000-000000000000", 404, "00000000"),
        ("/api/get?timeout=-1", 400, "timeout"),
        ("/api/get?timeout=nan", 400, "timeout"),
        ("/api/get?timeout=99999", 400, "timeout"),
        ("/api/get?timeuot=1", 400, "timeuot"),
        ("/api/stream?tail=-5", 400, "tail"),
        ("/api/stream?tail=many", 400, "tail"),
        ("/api/stream?offset=-1", 400, "offset"),
        ("/api/stream?offset=99999999999999999999", 400, "offset"),
        ("/api/stream?offset=1&tail=1", 400, "tail"),
        ("/api/stream?follow=perhaps", 400, "follow"),
        ("/api/stream?request_id=abc", 404, "abc"),
        ("/api/status?limit=0", 400, "limit"),
        ("/api/status?limit=1001", 400, "limit"),
        ("/api/status?cursor=x", 400, "cursor"),
        ("/api/status?cursor=-1", 400, "cursor"),
        ("/api/status?status=DONE", 400, "status"),
        ("/api/status?since=inf", 400, "since"),
        ("/api/status?schedule_type=medium", 400, "schedule_type"),
        ("/api/status?request_id=xyz", 400, "request_id"),
        ("/api/nothing", 404, "/api/nothing"),
        ("/%00%0a", 404, "there is no"),
        ("/queue", 405, "GET"),
        ("/queue/", 404, "/queue/"),
    ],
)
def test_bad_queries(peer: StandIn, path: str, status: int, names: str) -> None:
    answer = peer.http.get(path)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert names in error["message"], error
    assert error["message"].isprintable()


def test_a_bad_last_event_id(peer: StandIn) -> None:
    answer = peer.http.get("/api/stream", headers={"Last-Event-ID": "-3"})
    assert answer.status_code == 400
    assert "Last-Event-ID" in answer.json()["error"]["message"]


def test_unknown_posts_and_other_methods(peer: StandIn) -> None:
    assert peer.http.post("/nothing", json={}).status_code == 404
    assert peer.http.post("/api/status", json={}).status_code == 405
    assert peer.http.delete("/queue").json()["error"]["type"] == "MethodNotAllowed"


def test_what_is_no_http(peer: StandIn) -> None:
    with socket.create_connection(peer.address, timeout=5) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
        assert read_head(sock)[0] == 400
    with socket.create_connection(peer.address, timeout=5) as sock:
        sock.sendall(b"POST /queue HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n")
        assert read_head(sock)[0] == 400
    assert peer.http.get("/api/health").json()["http"]["errors"] == 0
