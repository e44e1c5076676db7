"""An executor is clean: no request sees what the one before it did, and each prints into its own log."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import children, descriptors, signals_in, titled
from tests.server_under_test import Server, running_server
from tests.waiting import wait_until

ONE_EXECUTOR = ("--long-executors", "1", "--short-executors", "1")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose short requests all run in one executor, as long as that is reused."""
    with running_server(tmp_path_factory.mktemp("single"), *ONE_EXECUTOR) as server:
        yield server


def test_short_executors_are_reused(single: Server) -> None:
    pids = {single.result("where")["pid"] for _ in range(10)}
    assert len(pids) <= 2, "one executor and its warm spare"


def test_long_executors_serve_one_request_each(single: Server) -> None:
    pids = [single.result("where_long")["pid"] for _ in range(4)]
    assert len(set(pids)) == 4


def test_nothing_of_a_request_is_left_for_the_next(single: Server, tmp_path: Path) -> None:
    before = single.result("report_everything")
    changed = single.result("change_everything", directory=str(tmp_path))
    request_id = single.submit("report_everything")
    after = single.get(request_id)["result"]
    assert before | {"pid": None} == after | {"pid": None}
    assert after["changed"] is None
    assert after["home"] is not None
    assert after["blocked"] == []
    assert after["stdin"] == "/dev/null"
    assert single.log(request_id) == b"this line must arrive\n"
    assert isinstance(changed, int)


def test_a_cancelled_executor_is_not_reused(single: Server, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    request_id = single.submit("sleep_for", seconds=60, marker=str(marker))
    wait_until(marker.exists, what="it runs")
    used = int(marker.read_text().split()[1])
    single.cancel(request_id)
    assert single.get(request_id)["status"] == "CANCELLED"
    assert single.result("where")["pid"] != used


@pytest.mark.parametrize("name", ["leave_thread", "leave_descriptors"])
def test_an_executor_with_leftovers_is_replaced(single: Server, name: str) -> None:
    arguments = {"count": 200} if name == "leave_descriptors" else {}
    used = {single.result(name, **arguments) for _ in range(25 if arguments else 1)}
    now = {single.result("where")["pid"] for _ in range(25 if arguments else 1)}
    if name == "leave_thread":
        assert not used & now
    else:
        assert all(len(descriptors(pid)) < 2000 for pid in now)


def test_a_request_sees_its_identity_and_a_bounded_machine(single: Server) -> None:
    request_id = single.submit("where")
    seen = single.get(request_id)["result"]
    assert seen["request_id"] == request_id
    assert seen["session"] == seen["pid"], "it leads its own session"
    assert set(seen["threads"].values()) == {"1"}, "numeric libraries may not take all cores"
    assert seen["test_mark"] == single.mark
    assert seen["oom_score_adj"] > 0, "the kernel takes it before serve"


def test_an_executor_does_not_carry_what_http_and_clients_need(single: Server) -> None:
    modules = {name.split(".")[0] for name in single.result("where")["modules"]}
    assert not modules & {"fastapi", "starlette", "uvicorn", "typer", "rich", "httpx2", "prometheus_client"}


def test_SH08_executors_have_default_signals_and_few_descriptors(single: Server) -> None:
    listening = {link for link in descriptors(single.pid).values() if link.startswith("socket:")}
    executors = titled(single.pid, "sky: executor")
    assert executors
    for executor in executors:
        assert signals_in(executor.pid, "SigBlk") == set()
        assert signals_in(executor.pid, "SigIgn") <= {signal.SIGPIPE, signal.SIGXFSZ}, "Python itself ignores these two"
        opened = descriptors(executor.pid)
        assert opened[0] == "/dev/null"
        assert len(opened) <= 8, opened
        assert not listening & set(opened.values()), "CR01: executors do not hold the listening socket"
        assert not any("requests.db" in link for link in opened.values())


def test_every_process_has_a_name_in_ps(single: Server) -> None:
    titles = {seen.title.split(" short-")[0].split(" long-")[0] for seen in single.tree()}
    assert titles == {"sky: serve", "sky: http", "sky: spawner", "sky: executor"}


def test_SH07_children_are_outside_the_group_of_serve(single: Server) -> None:
    assert all(os.getpgid(child.pid) != os.getpgid(single.pid) for child in children(single.pid))


def test_everything_that_is_printed_is_in_the_log(single: Server) -> None:
    request_id = single.submit("print_everywhere")
    assert single.get(request_id)["status"] == "SUCCEEDED"
    lines = single.log(request_id).decode().splitlines()
    assert lines == [
        "from print",
        "from stderr",
        "from descriptor 1",
        "from descriptor 2",
        "from logging",
        "INFO from configured logging",
        "from child",
        "from child stderr",
        "no newline at the end",
    ]


@pytest.mark.parametrize("data", [bytes(range(256)) * 10, b"a\rb\rc", b"\n" * 5, "é😀".encode()], ids=repr)
def test_the_log_is_byte_for_byte_what_was_printed(single: Server, data: bytes) -> None:
    request_id = single.submit("print_bytes", data=base64.b64encode(data).decode(), chunk=7)
    assert single.get(request_id)["status"] == "SUCCEEDED"
    assert single.log(request_id) == data


def test_output_is_in_the_log_while_the_request_runs(single: Server) -> None:
    request_id = single.submit("print_lines", count=500, interval=0.01)
    wait_until(lambda: single.log(request_id).count(b"\n") >= 3, what="the first lines are there")
    assert single.record(request_id)["status"] == "RUNNING"
    single.cancel(request_id)
    single.get(request_id)


def test_requests_that_run_together_do_not_mix_their_output(shared_server: Server) -> None:
    ids = [shared_server.submit("print_lines", count=2000, text=f"request {number}") for number in range(8)]
    for number, request_id in enumerate(ids):
        shared_server.get(request_id)
        wanted = "".join(f"request {number} {line}\n" for line in range(2000))
        assert shared_server.log(request_id).decode() == wanted


def test_logs_and_state_are_private(single: Server) -> None:
    request_id = single.submit("print_lines", count=1)
    single.get(request_id)
    for path in [single.state_dir, *single.state_dir.rglob("*")]:
        if not path.is_socket():
            assert path.stat().st_mode & 0o077 == 0, path
