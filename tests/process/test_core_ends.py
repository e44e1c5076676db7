"""How a request can end, seen through HTTP: results, errors, deaths, deadlines."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.processes import alive, look
from tests.server_under_test import Server
from tests.waiting import wait_gone, wait_until


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1.5,
        1 << 62,
        "",
        'text with "quotes", \\, \n, \x00, \u2028, é and 😀',
        [],
        {},
        {"a": [1, {"b": None}], "": {"é": [[]]}},
        "x" * 1_000_000,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_result_comes_back_as_it_was(shared_server: Server, value: Any) -> None:
    record = shared_server.run("echo", value=value)
    assert (record["status"], record["result"], record["error"]) == ("SUCCEEDED", value, None)


def test_the_record_tells_when_where_and_by_whom(shared_server: Server) -> None:
    request_id = shared_server.submit("echo", value=1)
    record = shared_server.get(request_id)
    assert record["request_id"] == request_id
    assert record["name"] == "echo"
    assert record["schedule_type"] == "short"
    assert record["created_at"] <= record["started_at"] <= record["finished_at"]
    assert record["attempts"] == 1
    assert record["slot"].startswith("short-")
    assert record["boot_id"] == shared_server.health()["boot_id"]
    assert record["user"] == shared_server.health()["user"]
    assert not record["cancel_requested"]
    assert "payload" not in record


@pytest.mark.parametrize("code", [0, 1, 3, 137, 255])
def test_a_request_may_have_an_exit_code_of_its_own(shared_server: Server, code: int) -> None:
    record = shared_server.run("exit_code", code=code, result={"job": 1})
    assert (record["status"], record["exit_code"], record["result"]) == ("SUCCEEDED", code, {"job": 1})


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("ValueError", "wrong on purpose"),
        ("KeyboardInterrupt", "wrong on purpose"),
        ("GeneratorExit", "wrong on purpose"),
        ("MemoryError", "wrong on purpose"),
        ("BaseExceptionGroup", "wrong on purpose"),
        ("RecursionError", "recursion"),
        ("OddError", "cannot be shown"),
        ("SystemExit", "7"),
    ],
)
def test_an_exception_is_the_error_of_the_record(shared_server: Server, kind: str, shown: str) -> None:
    record = shared_server.run("raise_error", kind=kind)
    assert record["status"] == "FAILED"
    assert record["result"] is None
    assert record["error"]["type"] == kind
    assert shown in record["error"]["message"]
    if kind != "SystemExit":
        assert "raise_error" in record["error"]["traceback"]
        assert len(record["error"]["traceback"]) <= 10_000
        assert "operations_under_test.py" in shared_server.log(record["request_id"]).decode()


def test_the_traceback_shows_the_users_code_and_the_cause_and_nothing_of_ours(shared_server: Server) -> None:
    error = shared_server.run("raise_error", kind="chained")["error"]
    assert error["type"] == "RuntimeError"
    assert "KeyError: 'inner'" in error["traceback"]
    assert "direct cause" in error["traceback"]


@pytest.mark.parametrize("kind", ["surrogate", "long", "controls"])
def test_an_odd_message_arrives(shared_server: Server, kind: str) -> None:
    error = shared_server.run("raise_odd_message", kind=kind)["error"]
    assert error["type"] == "ValueError"
    assert 0 < len(error["message"]) <= 20_000


@pytest.mark.parametrize(
    "kind", ["object", "set", "bytes", "nan", "loop", "deep", "surrogate", "keys", "big_integer", "huge"]
)
def test_a_result_that_json_cannot_hold_is_a_clear_failure(shared_server: Server, kind: str) -> None:
    record = shared_server.run("unencodable", kind=kind)
    assert record["status"] == "FAILED", record["result"]
    assert record["error"]["type"] in {"ResultNotJson", "ResultTooLarge"}
    assert "result" in record["error"]["message"]
    assert record["error"]["hint"]
    assert shared_server.result("echo", value="still works") == "still works"


@pytest.mark.parametrize("what", ["resume", "argv", "empty", "nul", "env"])
def test_a_hand_off_that_cannot_be_carried_is_a_clear_failure(shared_server: Server, what: str) -> None:
    record = shared_server.run("hand_off_badly", what=what)
    assert (record["status"], record["error"]["type"]) == ("FAILED", "HandOffNotJson")


@pytest.mark.parametrize(
    ("how", "message", "field", "value"),
    [
        ("exit", "exit code 3", "executor_exit_code", 3),
        ("segv", "SIGSEGV", "signal", "SIGSEGV"),
        ("kill", "SIGKILL", "signal", "SIGKILL"),
        ("abort", "SIGABRT", "signal", "SIGABRT"),
    ],
)
def test_CR09_a_dead_executor_is_told_with_its_cause(
    shared_server: Server, how: str, message: str, field: str, value: object
) -> None:
    record = shared_server.run("crash", how=how, mb=60)
    assert record["status"] == "FAILED"
    assert record["error"]["type"] == "ExecutorDied"
    assert message in record["error"]["message"]
    assert record["error"][field] == value
    assert record["peak_rss"] > 60 * 1024 * 1024
    assert shared_server.log(record["request_id"]) == b"last words\n"
    assert shared_server.result("echo", value="still works") == "still works"


def test_SH08_a_sigterm_from_outside_ends_only_the_request_that_ran(shared_server: Server, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    neighbour = shared_server.submit("sleep_for", seconds=1.0)
    victim = shared_server.run("crash", how="term")
    assert victim["status"] == "FAILED"
    assert "outside" in victim["error"]["message"]
    assert shared_server.get(neighbour)["status"] == "SUCCEEDED"
    assert not marker.exists()


def test_a_restartable_request_runs_again_when_its_executor_dies(shared_server: Server) -> None:
    record = shared_server.run("crash_until", attempt=3)
    assert (record["status"], record["result"], record["attempts"]) == ("SUCCEEDED", 3, 3)


def test_a_restartable_request_is_not_run_for_ever(shared_server: Server) -> None:
    record = shared_server.run("crash_until", attempt=100)
    assert (record["status"], record["attempts"]) == ("FAILED", 3)
    assert "SIGKILL" in record["error"]["message"]


def test_a_deadline_ends_a_request_and_says_so(shared_server: Server, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    record = shared_server.run("sleep_past_deadline", marker=str(marker))
    assert record["status"] == "FAILED"
    assert record["error"]["type"] == "DeadlineExceeded"
    assert "0.5" in record["error"]["message"]
    assert marker.with_name("marker.cleaned").exists()
    assert b"interrupted by DeadlineExceeded" in shared_server.log(record["request_id"])
    assert 0.4 < record["finished_at"] - record["started_at"] < 10


@pytest.mark.parametrize("how", ["child", "session", "double_fork"])
@pytest.mark.parametrize("wait", [False, True], ids=["ended", "cancelled"])
def test_what_a_request_started_ends_with_it(shared_server: Server, tmp_path: Path, how: str, wait: bool) -> None:
    pid_file = tmp_path / "pid"
    request_id = shared_server.submit("spawn_sleep", how=how, wait=wait, pid_file=str(pid_file))
    pid = read_pid(pid_file)
    if wait:
        assert alive(pid)
        shared_server.cancel(request_id)
    record = shared_server.get(request_id)
    assert record["status"] == ("CANCELLED" if wait else "SUCCEEDED")
    wait_until(lambda: not alive(pid), seconds=5, what=f"process {pid} is gone")


def test_a_crashed_executor_leaves_none_of_its_children(shared_server: Server, tmp_path: Path) -> None:
    pids, requests = [], []
    for how in ("child", "session"):
        pid_file = tmp_path / how
        requests.append(shared_server.submit("spawn_sleep", how=how, wait=True, pid_file=str(pid_file)))
        pids.append(read_pid(pid_file))
    parents = [seen.parent for pid in pids if (seen := look(pid)) is not None]
    assert len(parents) == len(pids)
    for pid in parents:
        os.kill(pid, signal.SIGKILL)
    for request_id in requests:
        assert shared_server.get(request_id)["error"]["type"] == "ExecutorDied"
    wait_gone(lambda: [pid for pid in pids if alive(pid)], seconds=5, what="the children of dead executors")


def read_pid(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), what=f"{file.name} holds a pid")
    return int(file.read_text())
