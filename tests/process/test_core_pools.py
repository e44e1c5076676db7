"""The pools: how big, how bounded, how executors are replaced: QU05, QU06, QU07, QU10, QU15, SU01, CR03, RE03."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import alive, rss_of, status_field, titled
from tests.server_under_test import Sampler, Server, running_server
from tests.waiting import pause, seeded_rounds, wait_until

MIB = 1024 * 1024
MOST_SPARES = 2  # warm executors beyond the size of a pool


def sizes(server: Server) -> tuple[int, int]:
    pools = server.health()["pools"]
    return pools["long"]["size"], pools["short"]["size"]


def executors(server: Server, kind: str = "") -> list[int]:
    return [seen.pid for seen in titled(server.pid, f"sky: executor {kind}")]


def test_QU07_sizes_follow_the_cpus_of_this_process_and_are_printed(tmp_path: Path) -> None:
    one = str(min(os.sched_getaffinity(0)))
    derived = ("--long-executors", "0", "--short-executors", "0")
    with running_server(tmp_path, *derived, prefix=("taskset", "-c", one)) as server:
        assert sizes(server) == (1, 2)
        assert "1 long" in server.server_log()
        assert "2 short" in server.server_log()
        assert "1 CPUs" in server.server_log() or "1 CPU" in server.server_log()
        ids = [server.submit("where_long") for _ in range(3)]
        assert {server.get(request_id)["status"] for request_id in ids} == {"SUCCEEDED"}


def test_QU07_sizes_can_be_set(tmp_path: Path) -> None:
    environment = {"SKYSERVE_SHORT_EXECUTORS": "3"}
    with running_server(tmp_path, "--long-executors", "2", env=environment) as server:
        assert sizes(server) == (2, 3)
        running = [server.submit("sleep_for", seconds=600) for _ in range(5)]
        wait_until(lambda: server.health()["pools"]["short"]["busy"] == 3, what="three short ones run")
        assert server.health()["pending"]["short"] == 2
        assert server.cancel(*running).keys() == set(running)


def test_SU01_many_executors_start_without_a_herd(tmp_path: Path) -> None:
    began = time.monotonic()
    with running_server(tmp_path, "--long-executors", "16", "--short-executors", "32") as server:
        print(f"48 executors: healthy after {time.monotonic() - began:.2f} s")
        wait_until(lambda: len(executors(server)) >= 48, what="all executors are there")
        assert server.result("echo", value=1) == 1


def test_QU05_QU06_a_burst_is_queued_and_the_machine_stays_bounded(tmp_path: Path) -> None:
    options = ("--long-executors", "2", "--short-executors", "2")
    with running_server(tmp_path, *options) as server, Sampler(server) as sampler:
        follower = Follower(server, server.submit("print_lines", count=2000, interval=0.02))
        ids = [server.submit("noop_long") for _ in range(300)]
        most = 0

        def all_done() -> bool:
            nonlocal most
            most = max(most, len(executors(server)))
            return bool(server.record(ids[-1])["status"] == "SUCCEEDED")

        wait_until(all_done, seconds=60, what="the last of 300 is done")
        assert {server.get(request_id)["status"] for request_id in ids} == {"SUCCEEDED"}
        assert most <= 4 + 2 * MOST_SPARES, "the number of processes is the size of the pools"
        starts = [server.record(request_id)["started_at"] for request_id in ids]
        assert starts == sorted(starts), "first come, first served"
        follower.stop()
        print(f"longest silence of the follower {follower.longest:.2f} s, at most {most} executors")
        assert follower.longest < 5
        assert not sampler.failures
        assert sampler.longest < 5


def test_QU05_beyond_the_limit_a_submit_is_refused_and_says_when_to_return(tmp_path: Path) -> None:
    with running_server(tmp_path, "--max-pending", "10") as server:
        server.submit("sleep_for", seconds=600)
        server.submit("sleep_for", seconds=600)
        wait_until(lambda: server.health()["pools"]["short"]["busy"] == 2, what="both executors are busy")
        answers = [server.http.post("/noop", json={}) for _ in range(30)]
        codes = [answer.status_code for answer in answers]
        assert codes.count(202) == 10
        assert codes.count(429) == 20
        refused = answers[-1]
        assert int(refused.headers["Retry-After"]) > 0
        assert refused.json()["error"]["type"] == "Busy"
        listed = server.http.get("/api/status", params={"limit": 100}).json()["requests"]
        assert len(listed) == 12, "what was refused left no row"
        server.cancel(all=True)


def test_QU10_more_http_processes_are_still_one_server(tmp_path: Path) -> None:
    options = ("--http-processes", "4", "--long-executors", "1", "--short-executors", "2")
    for _ in range(2):
        with running_server(tmp_path, *options) as server:
            wait_until(lambda: len(titled(server.pid, "sky: http")) == 4, what="four http processes")
            assert len(titled(server.pid, "sky: spawner")) == 1
            assert len(executors(server)) <= 3 + 2 * MOST_SPARES
            marker = tmp_path / f"runs-{server.pid}"
            clients = [server.client() for _ in range(8)]
            for number in range(40):
                body = {"seconds": 0, "marker": str(marker)}
                answer = clients[number % 8].post("/sleep_again", json=body)
                assert answer.status_code == 202
            wait_until(lambda: server.health()["counters"]["succeeded"] >= 40, what="all are done")
            assert marker.read_text().splitlines() == ["1"] * 40, "each ran once"
            boots = {client.get("/api/health").json()["boot_id"] for client in clients}
            assert len(boots) == 1


def test_QU15_the_process_that_forks_has_one_thread(shared_server: Server) -> None:
    (spawner,) = titled(shared_server.pid, "sky: spawner")
    assert status_field(spawner.pid, "Threads") == "1"
    for executor in executors(shared_server):
        assert status_field(executor, "Threads") == "1"


def test_QU15_CR03_CR11_killed_executors_are_replaced_and_only_their_request_fails(tmp_path: Path) -> None:
    options = ("--long-executors", "1", "--short-executors", "4")
    with running_server(tmp_path, *options) as server, Sampler(server) as sampler:
        load = Load(server)
        killed = 0
        for random in seeded_rounds(60):
            victims = executors(server, "short")
            if victims:
                os.kill(random.choice(victims), signal.SIGKILL)
                killed += 1
            pause(random.uniform(0, 0.05))
        load.stop()
        records = [server.get(request_id) for request_id in load.ids]
        failed = [record for record in records if record["status"] != "SUCCEEDED"]
        print(f"{killed} executors killed, {len(failed)} of {len(records)} requests failed")
        assert all(record["error"]["type"] == "ExecutorDied" for record in failed)
        assert len(failed) <= killed
        pools = wait_until(lambda: idle_again(server, "short", 4), seconds=5, what="the pool is back to its size")
        assert pools["short"]["lost"] == killed
        assert server.result("echo", value=1) == 1
        assert not sampler.failures


def test_CR12_executors_that_cannot_live_make_the_server_unhealthy_not_busy(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        stop = threading.Event()

        def kill_all() -> None:
            while not stop.wait(0.005):
                for pid in executors(server):
                    if alive(pid):
                        os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_all)
        killer.start()
        try:
            health = wait_until(
                lambda: (now := server.health())["status"] == "unhealthy" and now, seconds=20, what="it says so"
            )
            assert health
            assert "executor" in health["problem"]
        finally:
            stop.set()
            killer.join()
        wait_until(lambda: server.health()["status"] == "healthy", seconds=15, what="it recovers by itself")
        assert server.result("echo", value=1) == 1


def test_RE03_memory_does_not_creep(tmp_path: Path) -> None:
    options = ("--long-executors", "1", "--short-executors", "4", "--recycle-mb", "100")
    with running_server(tmp_path, *options) as server:
        fat = [server.submit("grow_memory", mb=250, keep=True, seconds=0.3) for _ in range(4)]
        used = {server.get(request_id)["result"] for request_id in fat}
        ids = [server.submit("echo", value=number) for number in range(300)]
        assert [server.get(request_id)["result"] for request_id in ids] == list(range(300))
        wait_until(lambda: not any(map(alive, used)), what="the fat executors are gone")
        assert all(rss_of(pid) < 150 * MIB for pid in executors(server))


@pytest.mark.parametrize(
    "option", [("--recycle-requests", "5"), ("--recycle-seconds", "1")], ids=lambda option: option[0]
)
def test_RE03_short_executors_are_replaced_by_count_and_age(tmp_path: Path, option: tuple[str, str]) -> None:
    with running_server(tmp_path, *option) as server:
        pids: list[int] = []

        def enough() -> bool:
            pids.append(server.result("where")["pid"])
            return len(set(pids)) >= 6

        wait_until(enough, seconds=20, what="six different executors")
        if option[0] == "--recycle-requests":
            assert max(pids.count(pid) for pid in pids) <= 5
        assert server.health()["pools"]["short"]["lost"] == 0


def test_a_long_executor_is_replaced_by_a_warm_spare(tmp_path: Path) -> None:
    with running_server(tmp_path, "--long-executors", "1", "--short-executors", "1") as server:
        waits = []
        for _ in range(10):
            record = server.run("noop_long")
            waits.append(record["started_at"] - record["created_at"])
        print(f"long requests in a row waited {[round(1000 * wait, 1) for wait in waits]} ms")
        assert len(executors(server, "long")) <= 1 + MOST_SPARES


class Load:
    """Submits short requests from a thread until stopped."""

    def __init__(self, server: Server) -> None:
        self.ids: list[str] = []
        self._client = server.client()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._submit, name="load")
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _submit(self) -> None:
        while not self._over.wait(0.005):
            answer = self._client.post("/sleep_for", json={"seconds": 0.01})
            assert answer.status_code == 202
            self.ids.append(answer.json()["request_id"])


class Follower:
    """Follows one request's output in a thread and measures its longest silence."""

    def __init__(self, server: Server, request_id: str) -> None:
        self.longest = 0.0
        self._server = server
        self._request_id = request_id
        self._client = server.client()
        self._thread = threading.Thread(target=self._follow, name="follower")
        self._thread.start()

    def stop(self) -> None:
        self._server.cancel(self._request_id)
        self._thread.join()

    def _follow(self) -> None:
        last = time.monotonic()
        with self._client.stream("GET", "/api/stream", params={"request_id": self._request_id}) as answer:
            for _ in answer.iter_raw():
                now = time.monotonic()
                self.longest, last = max(self.longest, now - last), now


def idle_again(server: Server, kind: str, size: int) -> dict[str, Any] | None:
    pools = dict(server.health()["pools"])
    return pools if pools[kind]["idle"] >= size else None
