"""Submitting, waiting, getting, listing and cancelling, as one client sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from openapi_spec_validator import validate

from skyserve_exec.messages import Refused
from skyserve_exec.operation_table import BUILTIN, Operation
from skyserve_exec.states import ScheduleType, Status
from tests.process.http_stand_in import StandIn, stand_in
from tests.waiting import stays_so, wait_until

OWN = Operation(
    "count",
    ScheduleType.LONG,
    "",
    "m:count",
    "Counts.",
    restartable=True,
    deadline=7.0,
    schema={"$defs": {"Task": {"type": "string"}}, "type": "object", "properties": {"word": {"$ref": "#/$defs/Task"}}},
)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path, own_operations=[OWN.describe()]) as running:
        yield running


def in_background(call: Any, *arguments: Any, **named: Any) -> tuple[threading.Thread, list[httpx2.Response]]:
    answers: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: answers.append(call(*arguments, **named)), daemon=True)
    thread.start()
    return thread, answers


def test_a_submitted_request_is_committed_and_found_at_once(peer: StandIn) -> None:
    for number in range(50):
        answer = peer.http.post("/queue", json={"cluster": f"c{number}"})
        assert answer.status_code == 202
        request_id = answer.json()["request_id"]
        assert answer.headers["x-skypilot-request-id"] == request_id
        record = peer.http.get("/api/get", params={"request_id": request_id, "timeout": 0}).json()
        assert (record["request_id"], record["status"], record["cluster"]) == (request_id, "PENDING", f"c{number}")
    assert [each.request_id for each in peer.submits] == sorted(
        {each.request_id for each in peer.submits}, key=[each.request_id for each in peer.submits].index
    )


def test_what_serve_is_told(peer: StandIn, tmp_path: Path) -> None:
    peer.submit("launch", task={"run": "true", "workdir": str(tmp_path)}, cluster="mine")
    peer.submit("exec", task={"run": "true"}, cluster="mine")
    peer.submit("status", clusters=["mine"])
    peer.submit("count", word="x")
    peer.submit("launch", task={"run": "true"})
    launch, execute, status, count, unnamed = peer.submits
    assert (launch.schedule_type, launch.cluster, launch.lock_key) == ("long", "mine", "cluster/mine")
    assert orjson.loads(launch.payload)["task"]["workdir"] == str(tmp_path)
    assert (execute.cluster, execute.lock_key) == ("mine", "cluster/mine")
    assert (status.schedule_type, status.cluster, status.lock_key, status.restartable) == ("short", None, None, True)
    assert (count.schedule_type, count.restartable, count.deadline, count.lock_key) == ("long", True, 7.0, None)
    assert orjson.loads(count.payload) == {"word": "x"}
    assert unnamed.cluster is not None
    assert unnamed.cluster.startswith("sky-")
    assert orjson.loads(unnamed.payload)["cluster"] == unnamed.cluster


def test_prefer_wait_answers_with_the_record(peer: StandIn) -> None:
    peer.succeed_at_once = True
    answer = peer.http.post("/queue", json={}, headers={"Prefer": "respond-async, wait=10"})
    assert answer.status_code == 200
    record = answer.json()
    assert (record["status"], record["result"]) == ("SUCCEEDED", {"ok": True})
    assert answer.headers["x-skypilot-request-id"] == record["request_id"]
    assert peer.http.get("/api/get", params={"request_id": record["request_id"]}).json() == record


def test_prefer_wait_gives_up_after_its_time(peer: StandIn) -> None:
    began = time.monotonic()
    answer = peer.http.post("/queue", json={}, headers={"Prefer": "wait=0.7"})
    assert answer.status_code == 202
    assert 0.7 <= time.monotonic() - began < 2


def test_a_record_too_large_for_a_push_is_read(peer: StandIn) -> None:
    thread, answers = in_background(peer.client().post, "/queue", json={}, headers={"Prefer": "wait=20"})
    wait_until(lambda: peer.submits, what="the submit")
    request_id = peer.submits[0].request_id
    peer.start(request_id)
    peer.settle(request_id, push=False, result="x" * 1_000_000)
    peer.tell_settled_without_record(request_id)
    thread.join(5)
    assert len(answers[0].json()["result"]) == 1_000_000


def test_get_waits_for_the_end(peer: StandIn) -> None:
    request_id = peer.submit("queue")
    thread, answers = in_background(peer.client().get, "/api/get", params={"request_id": request_id[:8], "timeout": 20})
    stays_so(thread.is_alive, seconds=0.3, what="it waits")
    peer.start(request_id)
    peer.settle(request_id, Status.FAILED, error={"type": "Boom", "message": "no", "hint": ""}, exit_code=3)
    thread.join(5)
    assert (answers[0].json()["status"], answers[0].json()["exit_code"]) == ("FAILED", 3)
    assert answers[0].json()["error"]["type"] == "Boom"


def test_get_finds_the_end_although_no_push_came(peer: StandIn) -> None:
    request_id = peer.submit("queue")
    thread, answers = in_background(peer.client().get, "/api/get", params={"request_id": request_id, "timeout": 25})
    peer.start(request_id)
    peer.settle(request_id, push=False)
    thread.join(15)
    assert answers[0].json()["status"] == "SUCCEEDED"


def test_get_answers_after_its_time(peer: StandIn) -> None:
    request_id = peer.submit("queue")
    answer = peer.http.get("/api/get", params={"request_id": request_id, "timeout": 0.6})
    assert (answer.status_code, answer.json()["status"], answer.json()["position"]) == (200, "PENDING", 0)
    assert answer.json()["reason"].startswith("waits for a short executor")


def test_clients_that_stop_waiting_leave_nothing_behind(peer: StandIn) -> None:
    request_id = peer.submit("queue")
    for _ in range(20):
        with pytest.raises(httpx2.ReadTimeout):
            peer.client(headers={}).get("/api/get", params={"request_id": request_id}, timeout=0.05)
    for client in peer.clients[1:]:
        client.close()
    wait_until(lambda: peer.http.get("/api/health").json()["http"]["waiting"] == 0, what="nobody waits")


def test_idempotency_key(peer: StandIn) -> None:
    def post(key: str, wait: float = 0, **payload: Any) -> httpx2.Response:
        prefer = {"Prefer": f"wait={wait}"} if wait else {}
        return peer.http.post("/launch", json=payload, headers={"Idempotency-Key": key, **prefer})

    task = {"run": "true"}
    first = post("one", task=task)
    assert post("one", task=task).json() == first.json()
    assert post("two", task=task).json() != first.json()
    other = post("one", task={"run": "false"})
    assert other.status_code == 409
    assert other.json()["error"]["type"] == "Conflict"
    assert len(peer.submits) == 2
    assert post("one", wait=0.3, task=task).status_code == 202
    request_id = first.json()["request_id"]
    peer.start(request_id)
    peer.settle(request_id, result=5)
    waited = post("one", wait=5, task=task)
    assert (waited.status_code, waited.json()["request_id"], waited.json()["result"]) == (200, request_id, 5)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("Busy", 429),
        ("StoreBusy", 503),
        ("Unavailable", 503),
        ("DiskFull", 507),
        ("Draining", 503),
        ("NoSuchError", 503),
    ],
)
def test_what_serve_refuses(peer: StandIn, kind: str, status: int) -> None:
    peer.refuse = Refused(0, kind, "not now", "later")
    for headers in ({}, {"Prefer": "wait=5"}):
        answer = peer.http.post("/queue", json={}, headers=headers)
        assert answer.status_code == status
        assert answer.json()["error"]["message"] == "not now"
        assert answer.json()["error"]["hint"] == "later"
        assert ("retry-after" in answer.headers) == (status in {429, 503})
    assert peer.http.get("/api/health").json()["http"]["waiting"] == 0


def test_cancel(peer: StandIn) -> None:
    ids = [peer.submit("queue") for _ in range(3)]
    answer = peer.http.post("/api/cancel", json={"request_ids": [ids[0][:13], ids[1], ids[1]], "force": True})
    assert answer.json() == {"cancelled": {ids[0]: "cancelling", ids[1]: "cancelling"}}
    assert peer.cancels[0].force
    assert peer.http.post("/api/cancel", json={"all": True}).json() == {"cancelled": {}}
    assert peer.cancels[1].everything
    assert peer.http.post("/api/cancel", json={"cluster": "c"}).status_code == 200
    assert peer.cancels[2].cluster == "c"


def test_cancel_of_unknown_or_ambiguous_ids_cancels_nothing(peer: StandIn) -> None:
    ids = [peer.submit("queue") for _ in range(17)]  # two of them begin with the same character
    first = [each[0] for each in ids]
    twice = next(each for each in first if first.count(each) > 1)
    ambiguous = peer.http.post("/api/cancel", json={"request_ids": [ids[0], twice]})
    assert (ambiguous.status_code, ambiguous.json()["error"]["type"]) == (400, "AmbiguousId")
    unknown = peer.http.post("/api/cancel", json={"request_ids": [ids[0], "0" * 36]})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "NotFound")
    assert peer.cancels == []
    for path in ("/api/get", "/api/stream"):
        assert peer.http.get(path, params={"request_id": twice}).json()["error"]["type"] == "AmbiguousId"


def test_status_pages_and_filters(peer: StandIn) -> None:
    ids = [peer.submit("queue", cluster="a" if number % 2 else "b") for number in range(10)]
    launched = peer.submit("launch", task={"run": "x"}, cluster="a")
    seen: list[str] = []
    cursor: dict[str, int] = {}
    while True:
        page = peer.http.get("/api/status", params={"limit": 4, "name": "queue", **cursor}).json()
        seen += [each["request_id"] for each in page["requests"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == ids[::-1]
    listed = peer.http.get("/api/status", params={"cluster": "a", "schedule_type": "long"}).json()["requests"]
    assert [each["request_id"] for each in listed] == [launched]
    assert listed[0]["reason"].startswith("waits for a long executor")
    assert "payload" not in listed[0]
    by_id = peer.http.get("/api/status", params={"request_id": [ids[0], f"{ids[1]},{ids[2]}"]}).json()["requests"]
    assert {each["request_id"] for each in by_id} == set(ids[:3])
    peer.start(*ids)
    running = peer.http.get("/api/status?status=running,failed&status=succeeded&limit=1000").json()["requests"]
    assert len(running) == 11
    locked = peer.submit("exec", task={"run": "x"}, cluster="a")
    waiting = peer.http.get("/api/status", params={"status": "PENDING"}).json()["requests"]
    assert [each["request_id"] for each in waiting] == [locked]
    assert f"waits for request {launched[:8]}" in waiting[0]["reason"]


def test_HT07_the_openapi_document_is_complete_and_valid(peer: StandIn) -> None:
    document = peer.http.get("/openapi.json").json()
    validate(document)
    for operation in (*BUILTIN, OWN):
        post = document["paths"][f"/{operation.name}"]["post"]
        reference = post["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference.rpartition("/")[2] in document["components"]["schemas"]
        assert {"200", "202", "default"} <= set(post["responses"])
        assert {"Prefer", "Idempotency-Key"} == {each["name"] for each in post["parameters"]}
    assert "task" in document["components"]["schemas"]["LaunchPayload"]["properties"]
    assert document["components"]["schemas"]["own.count"]["properties"]["word"]["$ref"].endswith("/own.count.Task")
    assert "$defs" not in str(document)
    assert "HTTPValidationError" not in str(document)
    stream = document["paths"]["/api/stream"]["get"]
    assert {"request_id", "follow", "tail", "offset", "cancel_on_disconnect", "last-event-id"} <= {
        each["name"] for each in stream["parameters"]
    }
    ids = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(ids) == len(set(ids))
    assert peer.http.get("/docs").status_code == 200


def test_operations_are_listed_with_their_schemas(peer: StandIn) -> None:
    listed = {each["name"]: each for each in peer.http.get("/api/operations").json()["operations"]}
    assert set(listed) == {each.name for each in BUILTIN} | {"count"}
    assert listed["count"] == {
        "name": "count",
        "schedule_type": "long",
        "help": "Counts.",
        "restartable": True,
        "deadline": 7.0,
        "own": True,
        "schema": OWN.schema,
    }
    assert listed["launch"]["schema"]["required"] == ["task"]
