"""Cancel at every moment of a request's life: CX01, CX02, CX04, CX08, CX10."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import alive, marked, titled
from tests.server_under_test import Server, running_server
from tests.waiting import pause, seeded_rounds, wait_gone, wait_until


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Four short executors."""
    options = ("--long-executors", "1", "--short-executors", "4")
    with running_server(tmp_path_factory.mktemp("four"), *options) as server:
        yield server


def started(server: Server, marker: Path, **payload: object) -> tuple[str, int]:
    """A sleeping request that runs now, and the pid it runs in."""
    request_id = server.submit("sleep_for", marker=str(marker), **payload)
    wait_until(lambda: marker.exists() and marker.read_text().endswith("\n"), what=f"{request_id} runs")
    return request_id, int(marker.read_text().split()[1])


def test_CX01_cancels_near_the_end_hit_nobody_else(four: Server) -> None:
    lost_before = four.health()["pools"]["short"]["lost"]
    bystander = four.submit("sleep_for", seconds=600)
    neighbours: list[str] = []
    cancelled: list[str] = []
    for random in seeded_rounds(150):
        request_id = four.submit("sleep_for", seconds=0.03)
        neighbours.append(four.submit("sleep_for", seconds=0.02))
        pause(random.uniform(0.02, 0.04))
        outcome = four.cancel(request_id)[request_id]
        assert outcome in {"cancelled", "cancelling", "already SUCCEEDED"}
        cancelled.append(request_id)
    statuses = {four.get(request_id)["status"] for request_id in cancelled}
    assert statuses <= {"SUCCEEDED", "CANCELLED"}
    assert {four.get(request_id)["status"] for request_id in neighbours} == {"SUCCEEDED"}
    assert four.record(bystander)["status"] == "RUNNING"
    four.cancel(bystander)
    assert four.get(bystander)["status"] == "CANCELLED"
    assert four.health()["pools"]["short"]["lost"] == lost_before, "no executor died unasked"


def test_CX01_a_stale_row_leads_to_no_signal(four: Server, tmp_path: Path) -> None:
    # A finished row is forced back to RUNNING with the slot of an executor that serves somebody else now.
    old = four.submit("where")
    slot = four.get(old)["slot"]
    busy = [started(four, tmp_path / f"busy-{number}", seconds=600) for number in range(4)]
    slots = {four.record(request_id)["slot"] for request_id, _ in busy}
    with sqlite3.connect(four.state_dir / "requests.db") as database:
        database.execute("UPDATE requests SET status = 'RUNNING', finished_at = NULL WHERE request_id = ?", (old,))
    database.close()
    assert slot in slots or len(slots) == 4
    assert four.cancel(old) == {old: "cancelled"}
    assert four.get(old)["status"] == "CANCELLED", "nothing runs it, so nobody else would ever end it"
    assert all(alive(pid) for _, pid in busy)
    assert {four.record(request_id)["status"] for request_id, _ in busy} == {"RUNNING"}
    four.cancel(*(request_id for request_id, _ in busy))
    assert {four.get(request_id)["status"] for request_id, _ in busy} == {"CANCELLED"}
    assert four.result("echo", value="fine") == "fine"


def test_CX02_a_cancel_that_was_acknowledged_is_never_lost(tmp_path: Path) -> None:
    options = ("--long-executors", "1", "--short-executors", "1")
    with running_server(tmp_path, *options) as server:
        answered: dict[str, tuple[str, float, Path]] = {}
        for random in seeded_rounds(300):
            marker = tmp_path / f"marker-{len(answered)}"
            request_id = server.submit("sleep_for", seconds=0.005, marker=str(marker))
            pause(random.choice([0.0, 0.0, random.uniform(0, 0.02)]))
            outcome = server.cancel(request_id)[request_id]
            answered[request_id] = (outcome, time.time(), marker)
        for request_id, (outcome, at, marker) in answered.items():
            status = server.get(request_id)["status"]
            began = float(marker.read_text().split()[0]) if marker.exists() else None
            assert status in {"SUCCEEDED", "CANCELLED"}
            if outcome == "cancelled":
                assert status == "CANCELLED"
                assert began is None, "it was cancelled before it was claimed, so it never runs"
            if status == "CANCELLED" and began is not None:
                assert began <= at + 0.5, "its body began long after the cancel was acknowledged"
        wanted = {outcome for outcome, _, _ in answered.values()}
        print(wanted)


def test_a_cancel_right_after_the_start_is_not_lost(four: Server) -> None:
    for random in seeded_rounds(100):
        request_id = four.submit("sleep_for", seconds=600)
        pause(random.uniform(0, 0.004))
        before = time.monotonic()
        four.cancel(request_id)
        assert four.get(request_id)["status"] == "CANCELLED"
        assert time.monotonic() - before < 5, "it was ended by the kill after the grace period, not by the cancel"


def test_CX04_cancel_does_not_wait_in_the_queue(four: Server, tmp_path: Path) -> None:
    running = [started(four, tmp_path / f"running-{number}", seconds=600) for number in range(4)]
    queued = [four.submit("sleep_for", seconds=600) for _ in range(200)]
    before = time.monotonic()
    one_running, one_queued = running[0][0], queued[100]
    outcomes = four.cancel(one_running, one_queued)
    assert time.monotonic() - before < 1
    assert outcomes == {one_running: "cancelling", one_queued: "cancelled"}
    assert four.get(one_running, timeout=3)["status"] == "CANCELLED"
    assert four.get(one_queued, timeout=3)["status"] == "CANCELLED"
    assert len(four.cancel(all=True)) == 202
    assert {four.get(request_id)["status"] for request_id in queued} == {"CANCELLED"}


def test_CX04_SH16_cancel_works_while_the_server_drains(tmp_path: Path) -> None:
    with running_server(tmp_path, "--shutdown-grace-seconds", "30") as server:
        request_id, _ = started(server, tmp_path / "marker", seconds=600, cleanup_seconds=25)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.http.get("/readyz").status_code == 503, what="it drains")
        assert server.cancel(request_id, force=True) == {request_id: "cancelling"}
        before = time.monotonic()
        assert server.process.wait(15) == 0
        assert time.monotonic() - before < 10, "the drain ends with its last request"


@pytest.mark.parametrize("times", [1, 2])
def test_CX08_a_soft_cancel_lets_the_cleanup_finish(four: Server, tmp_path: Path, times: int) -> None:
    marker = tmp_path / "marker"
    request_id, pid = started(four, marker, seconds=600, cleanup_seconds=1.5)
    for _ in range(times):
        assert four.cancel(request_id) == {request_id: "cancelling"}
    record = four.get(request_id)
    assert record["status"] == "CANCELLED"
    assert record["error"]["type"] == "RequestCancelled"
    assert record["reason"]
    assert record["cancel_requested"]
    assert marker.with_name("marker.cleaned").exists()
    assert four.log(request_id).count(b"interrupted by RequestCancelled") == 1
    wait_until(lambda: not alive(pid), what="the executor is gone")


def test_CX08_force_is_immediate(four: Server, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    request_id, pid = started(four, marker, seconds=600, cleanup_seconds=60)
    four.cancel(request_id)
    wait_until(lambda: b"interrupted by" in four.log(request_id), what="it cleans up")
    four.cancel(request_id, force=True)
    assert four.get(request_id, timeout=3)["status"] == "CANCELLED"
    assert not marker.with_name("marker.cleaned").exists()
    wait_until(lambda: not alive(pid), what="the executor is gone")


@pytest.mark.parametrize("how", ["signal", "except"])
def test_a_request_that_ignores_it_is_killed_after_the_grace(tmp_path: Path, how: str) -> None:
    with running_server(tmp_path, "--cancel-grace-seconds", "1") as server:
        marker = tmp_path / "marker"
        request_id = server.submit("ignore_term", seconds=600, marker=str(marker), how=how)
        wait_until(marker.exists, what="it runs")
        server.cancel(request_id)
        record = server.get(request_id, timeout=10)
        assert record["status"] == "CANCELLED"
        assert record["finished_at"] - float(marker.read_text().split()[0]) >= 0.9
        assert server.result("echo", value=1) == 1


SCRIPTS = {
    "pipeline": "sleep 600 | grep x",
    "background": "sleep 600 & sleep 601",
    "own_session": "setsid sleep 600 & sleep 601",
    "orphan": "(setsid sleep 600 &) ; sleep 601",
    "held_pipe": "exec 3>&1; (sleep 600 >&3 &) ; exit 0",
    "ignores_term": "trap '' TERM INT HUP; sleep 600; sleep 601; sleep 602",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_CX10_a_cancelled_tail_ends_with_all_its_parts(four: Server, name: str) -> None:
    def sleepers() -> list[str]:
        return [seen.title for seen in marked(four.mark) if seen.title.startswith(("sleep 60", "sh -c"))]

    again = 1000 if name == "held_pipe" else 0
    request_id = four.submit("hand_off", script=SCRIPTS[name], again=again)
    if name != "held_pipe":
        wait_until(sleepers, what="the tail runs")
    else:
        four.wait_status(request_id, "RUNNING")
    four.cancel(request_id)
    assert four.get(request_id, timeout=15)["status"] == "CANCELLED"
    wait_gone(sleepers, seconds=2, what="parts of the tail")
    wait_until(lambda: four.health()["tails"] == 0, what="no tail is counted")


def test_a_tail_frees_its_executor_and_then_asks_how_it_ended(four: Server) -> None:
    request_id = four.submit("hand_off", script='echo "tail $TAIL_NUMBER"', again=2, code=7)
    record = four.get(request_id)
    assert (record["status"], record["exit_code"], record["result"]) == ("SUCCEEDED", 7, {"tails": 3})
    assert four.log(request_id) == b"tail 0\ntail 1\ntail 2\n"


def test_many_tails_run_beside_few_executors(four: Server) -> None:
    ids = [four.submit("hand_off", script="sleep 600") for _ in range(12)]
    wait_until(lambda: four.health()["tails"] == 12, what="twelve tails beside four executors")
    assert four.result("echo", value="free") == "free"
    four.cancel(*ids)
    assert {four.get(request_id)["status"] for request_id in ids} == {"CANCELLED"}


def test_cancel_by_prefix_and_what_it_refuses(four: Server, tmp_path: Path) -> None:
    request_id, _ = started(four, tmp_path / "marker", seconds=600)
    assert four.cancel(request_id[:8]) == {request_id: "cancelling"}
    assert four.get(request_id)["status"] == "CANCELLED"
    assert four.cancel(request_id) == {request_id: "already CANCELLED"}
    answer = four.http.post("/api/cancel", json={"request_ids": ["ffffffff-0000"]})
    assert answer.status_code == 404
    answer = four.http.post("/api/cancel", json={"request_ids": ["g"]})
    assert answer.status_code in {400, 422}
    assert len(titled(four.pid, "sky: executor")) >= 4
