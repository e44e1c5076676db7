"""A server's life: ports, locks, two servers, deaths and restarts, idleness, its own log.

SU04, SU06, SU12, SU13, ST11, ST14, SH01, SH02, CR05, CR07, CR14, CR15.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.processes import alive, cpu_seconds, descriptors, status_field, titled
from tests.server_under_test import SMALL, Server, clear_away, is_free, read_json, running_server, start
from tests.waiting import pause, seeded_rounds, stays_so, wait_gone, wait_until


def ended(server: Server, seconds: float = 10.0) -> str:
    """What a server that must not come up has said, once it has ended with a failure."""
    try:
        assert server.process.wait(seconds) != 0
        return server.server_log()
    finally:
        clear_away(server)


@contextlib.contextmanager
def listening(family: socket.AddressFamily, address: str, port: int = 0) -> Iterator[int]:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen()
        yield sock.getsockname()[1]


# --- ports and locks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_SU06_a_used_port_is_refused_before_anything_starts(tmp_path: Path, address: str) -> None:
    with listening(socket.AF_INET, address) as port:
        before = time.monotonic()
        said = ended(start(tmp_path / "state", "--port", str(port)))
        assert time.monotonic() - before < 5
    assert str(port) in said
    assert str(os.getpid()) in said, "it names the holder"
    assert "Traceback" not in said
    assert not (tmp_path / "state" / "server.json").exists()
    assert is_free(tmp_path / "state" / "server.lock")


def test_SU06_a_port_held_on_ipv6(tmp_path: Path) -> None:
    with listening(socket.AF_INET6, "::") as port:
        assert str(os.getpid()) in ended(start(tmp_path / "state", "--port", str(port)))
    with listening(socket.AF_INET6, "::1") as port, running_server(tmp_path, "--port", str(port)) as server:
        assert server.endpoint == f"http://127.0.0.1:{port}", "another family's loopback is another address"


def test_SU06_a_port_in_time_wait_is_no_obstacle(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        port = httpx2.URL(server.endpoint).port
        with socket.create_connection(("127.0.0.1", port or 0)) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            while client.recv(65536):
                pass
    with running_server(tmp_path, "--port", str(port)) as server:
        assert httpx2.URL(server.endpoint).port == port


def test_SU06_only_the_api_listens(shared_server: Server) -> None:
    inodes = set()
    for seen in shared_server.tree():
        for entry in Path(f"/proc/{seen.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes |= set(re.findall(r"socket:\[(\d+)\]", str(entry.readlink())))
    listeners = []
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/{shared_server.pid}/net/{table}").read_text().splitlines()[1:]]
        listeners += [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]
    port = httpx2.URL(shared_server.endpoint).port
    assert [int(address.rpartition(":")[2], 16) for address in listeners] == [port]


def test_a_second_server_on_the_same_directory_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        said = ended(start(tmp_path / "state", *SMALL))
        assert str(server.pid) in said
        assert "Traceback" not in said
        assert read_json(server.state_dir / "server.json")["pid"] == server.pid
        assert server.result("echo", value=1) == 1


def test_SU13_SU04_two_servers_and_a_namesake_do_not_touch_each_other(tmp_path: Path) -> None:
    namesake = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", "-m", "skyserve_exec.serve", str(tmp_path / "a/state")]
    )
    try:
        with running_server(tmp_path / "a") as first:
            with running_server(tmp_path / "b") as second:
                assert first.endpoint != second.endpoint
                assert first.token != second.token
                ids = [server.submit("sleep_for", seconds=600) for server in (first, second)]
                assert second.http.get("/api/get", params={"request_id": ids[0], "timeout": 0}).status_code == 404
                foreign = second.client(headers={"Authorization": f"Bearer {first.token}"})
                assert foreign.get("/api/health").status_code == 401
                assert second.cancel(all=True).keys() == {ids[1]}
                assert second.kill() == -signal.SIGKILL
                second.expect_exit = -signal.SIGKILL
            assert first.record(ids[0])["status"] == "RUNNING"
            # A restart looks for leftovers of its own life only.
            with running_server(tmp_path / "b") as second:
                assert second.get(ids[1])["status"] in {"CANCELLED", "FAILED"}
            assert first.record(ids[0])["status"] == "RUNNING"
            first.cancel(ids[0])
        assert namesake.poll() is None
    finally:
        namesake.kill()
        namesake.wait()


def test_SU12_stop_and_start_at_the_same_time(tmp_path: Path) -> None:
    state = tmp_path / "state"
    server = start(state, *SMALL)
    server.wait_ready()
    for random in seeded_rounds(10):
        server.process.send_signal(signal.SIGTERM)
        pause(random.uniform(0, 0.3))
        following = start(state, *SMALL)
        try:
            assert server.process.wait(20) == 0
            code = refused_or_ready(following)
            if code is not None:
                # Refused, since the old one was still there: its file and lock say so no longer.
                assert is_free(state / "server.lock")
                following = start(state, *SMALL)
                following.wait_ready()
            assert not is_free(state / "server.lock")
            assert read_json(state / "server.json")["pid"] == following.pid
        finally:
            clear_away(server)
        server = following
    assert server.stop() == 0
    clear_away(server)


def refused_or_ready(server: Server) -> int | None:
    """The exit code of a start that was refused, None when it is ready."""
    answers = wait_until(
        lambda: (
            server.process.poll() is not None or read_json(server.state_dir / "server.json").get("pid") == server.pid
        ),
        seconds=30,
        what="the start ends or comes up",
    )
    assert answers
    if server.process.poll() is not None:
        return server.process.returncode
    server.wait_ready()
    return None


# --- ends and restarts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
def test_SH01_SH02_a_stop_leaves_nothing_and_settles_what_ran(tmp_path: Path, signum: int) -> None:
    with running_server(tmp_path) as server:
        markers = [tmp_path / "short", tmp_path / "long"]
        running = [
            server.submit("sleep_for", seconds=600, marker=str(markers[0]), cleanup_seconds=0.5),
            server.submit("sleep_long", seconds=600, marker=str(markers[1])),
        ]
        again = server.submit("sleep_again", seconds=600, marker=str(tmp_path / "again"))
        tail = server.submit("hand_off", script="sleep 600", again=100)
        wait_until(lambda: all(marker.exists() for marker in [*markers, tmp_path / "again"]), what="three run")
        pending = server.submit("sleep_long", seconds=0)
        assert server.kill(signum) == 0
    assert all(marker.with_name(f"{marker.name}.cleaned").exists() for marker in markers)
    with running_server(tmp_path) as server:
        for request_id in running:
            record = server.get(request_id)
            assert record["status"] == "FAILED"
            assert "stopped" in record["error"]["message"]
            assert record["error"]["hint"]
        assert server.get(pending)["status"] == "SUCCEEDED"
        assert server.wait_status(again, "RUNNING")["attempts"] == 2
        assert server.wait_status(tail, "RUNNING")
        server.cancel(all=True)
        assert server.get(again)["status"] == "CANCELLED"


def test_SH01_CR07_after_a_kill_nothing_is_left_and_nothing_is_lost(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        running = [server.submit("sleep_long", seconds=600), server.submit("spawn_sleep", how="session", wait=True)]
        again = server.submit("sleep_again", seconds=0.2, marker=str(tmp_path / "again"))
        tail = server.submit("hand_off", script="sleep 600 & sleep 601", again=100)
        for request_id in running:
            server.wait_status(request_id, "RUNNING")
        pending = [server.submit("sleep_long", seconds=0) for _ in range(10)]
        former = server.health()["boot_id"]
        server.expect_exit = server.kill()
        wait_gone(server.marked, seconds=5, what="what serve had started")
    with running_server(tmp_path) as server:
        assert server.health()["boot_id"] != former
        for request_id in running:
            record = server.get(request_id)
            assert record["status"] == "FAILED"
            assert record["error"]["type"] == "Interrupted"
            assert record["error"]["hint"]
        records = [server.get(request_id) for request_id in pending]
        assert {record["status"] for record in records} == {"SUCCEEDED"}
        starts = [record["started_at"] for record in records]
        assert starts == sorted(starts), "CR15: in their order"
        assert server.get(again)["status"] == "SUCCEEDED"
        server.wait_status(tail, "RUNNING")
        server.cancel(tail)
        assert server.get(tail)["status"] == "CANCELLED"


def test_CR06_what_was_acknowledged_survives_kills_at_any_moment(tmp_path: Path) -> None:
    ids: list[str] = []
    for random in seeded_rounds(5):
        with running_server(tmp_path) as server:
            load = threading.Thread(target=submit_until_refused, args=(server, ids), name="load")
            load.start()
            pause(random.uniform(0.05, 0.4))
            server.expect_exit = server.kill()
            load.join()
            wait_gone(server.marked, seconds=5, what="what serve had started")
    with running_server(tmp_path) as server:
        records = [server.get(request_id) for request_id in ids]
        failed = [record for record in records if record["status"] != "SUCCEEDED"]
        print(f"{len(records)} acknowledged, {len(failed)} of them ran when the server was killed")
        assert all(record["error"]["type"] == "Interrupted" for record in failed)
        assert len(failed) <= 5 * 2, "at most what ran in two executors at five kills"
        runs = [record["result"] for record in records if record["name"] == "sleep_again"]
        assert all(runs), "restartable ones ran again"


def submit_until_refused(server: Server, ids: list[str]) -> None:
    """Every id in `ids` was acknowledged."""
    client = server.client()
    with contextlib.suppress(httpx2.TransportError):
        while True:
            name, body = (("noop", {}), ("sleep_again", {"seconds": 0.001}))[len(ids) % 2]
            answer = client.post(f"/{name}", json=body)
            if answer.status_code != 202:
                return
            ids.append(answer.json()["request_id"])


def test_SH01_serve_and_spawner_killed_in_the_same_instant(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        pid_file = tmp_path / "pid"
        running = server.submit("spawn_sleep", how="session", wait=True, pid_file=str(pid_file))
        wait_until(pid_file.exists, what="it runs")
        (spawner,) = titled(server.pid, "sky: spawner")
        os.kill(server.pid, signal.SIGSTOP)
        os.kill(spawner.pid, signal.SIGKILL)
        server.expect_exit = server.kill()
        # What is no direct child is found by the next start at the latest.
        with running_server(tmp_path) as following:
            wait_gone(server.marked, seconds=5, what="what the former life had started")
            assert following.get(running)["status"] == "FAILED"


def test_SU12_a_start_during_a_drain_is_refused_and_names_the_holder(tmp_path: Path) -> None:
    with running_server(tmp_path, "--shutdown-grace-seconds", "30") as server:
        marker = tmp_path / "marker"
        request_id = server.submit("sleep_for", seconds=600, marker=str(marker), cleanup_seconds=5)
        wait_until(marker.exists, what="it runs")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: b"interrupted by ServerShutdown" in server.log(request_id), what="it cleans up")
        said = ended(start(server.state_dir, *SMALL))
        assert str(server.pid) in said
        assert server.process.wait(15) == 0
    assert marker.with_name("marker.cleaned").exists()


def test_a_dead_spawner_is_replaced(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        running = server.submit("sleep_long", seconds=600)
        again = server.submit("sleep_again", seconds=0.3)
        server.wait_status(running, "RUNNING")
        old = [seen.pid for seen in server.tree() if seen.title.startswith(("sky: spawner", "sky: executor"))]
        (spawner,) = titled(server.pid, "sky: spawner")
        os.kill(spawner.pid, signal.SIGKILL)
        record = server.get(running)
        assert (record["status"], record["error"]["type"]) == ("FAILED", "ExecutorDied")
        assert server.get(again)["status"] == "SUCCEEDED"
        wait_gone(lambda: [pid for pid in old if alive(pid)], seconds=5, what="what was below the spawner")
        assert server.result("echo", value=1) == 1
        wait_until(lambda: server.health()["status"] == "healthy", what="it is healthy again")


def test_a_dead_http_process_is_replaced_and_running_requests_do_not_notice(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        running = server.submit("sleep_for", seconds=2)
        server.wait_status(running, "RUNNING")
        (http,) = titled(server.pid, "sky: http")
        os.kill(http.pid, signal.SIGKILL)

        def answers() -> bool:
            with contextlib.suppress(httpx2.TransportError):
                return server.http.get("/readyz").status_code == 200
            return False

        wait_until(answers, what="it answers again on the same port")
        assert server.get(running)["status"] == "SUCCEEDED"
        assert server.record(running)["attempts"] == 1


def test_SH20_many_signals_are_one_stop(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        marker = tmp_path / "marker"
        server.submit("sleep_for", seconds=600, marker=str(marker), cleanup_seconds=60)
        wait_until(marker.exists, what="it runs")
        for _ in range(5):
            server.process.send_signal(signal.SIGTERM)
            pause(0.05)
        before = time.monotonic()
        assert server.process.wait(15) == 0
        print(f"ended {time.monotonic() - before:.1f} s after the fifth signal")


def test_CR14_lock_files_left_by_a_killed_server_are_harmless(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        server.expect_exit = server.kill()
        assert (server.state_dir / "server.lock").exists()
        assert read_json(server.state_dir / "server.json")["pid"] == server.pid
    with running_server(tmp_path) as server:
        assert server.result("echo", value=1) == 1


# --- idle -----------------------------------------------------------------------------------------------------------


def test_ST11_an_idle_server_writes_nothing_and_hardly_wakes(tmp_path: Path) -> None:
    options = ("--long-executors", "4", "--short-executors", "12")
    with running_server(tmp_path, *options) as server:
        assert server.result("echo", value=1) == 1
        files = [server.state_dir / f"requests.db{suffix}" for suffix in ("", "-wal")]
        wait_until(lambda: server.health()["pools"]["short"]["idle"] >= 12, what="all are idle")
        before = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()]
        pids = [seen.pid for seen in server.tree()]
        used = cpu_seconds(pids)
        trace = tmp_path / "trace"
        calls = "trace=write,pwrite64,fsync,fdatasync,ftruncate,rename,unlink"
        strace = subprocess.Popen(
            ["strace", "-f", "-y", "-e", calls, "-o", str(trace), *(f"-p{pid}" for pid in pids)], stderr=subprocess.PIPE
        )
        assert strace.stderr is not None
        try:
            attached = strace.stderr.readline()
            assert b"attached" in attached, attached
            stays_so(lambda: server.process.poll() is None, seconds=4, what="the server idles")
        finally:
            strace.send_signal(signal.SIGINT)
            strace.communicate()
        lines = [line for line in trace.read_text().splitlines() if str(server.state_dir) in line]
        print(f"{cpu_seconds(pids) - used:.2f} s of CPU in about 4 s for {len(pids)} idle processes")
        assert lines == [], "no write to any file of the state directory"
        assert [(file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()] == before


def test_descriptors_and_threads_are_back_at_their_number(tmp_path: Path) -> None:
    def resources() -> dict[str, tuple[int, str]]:
        seen = [seen for seen in server.tree() if not seen.title.startswith("sky: executor")]
        return {one.title: (len(descriptors(one.pid)), status_field(one.pid, "Threads")) for one in seen}

    def exercise() -> None:
        ids = [server.submit("echo", value=number) for number in range(50)]
        ids += [server.submit("noop_long") for _ in range(20)]
        ids += [server.submit("crash", how="kill") for _ in range(10)]
        ids += [server.submit("hand_off", script="echo followed") for _ in range(10)]
        sleeping = [server.submit("sleep_for", seconds=600) for _ in range(10)]
        ids += [server.submit("hand_off", script="sleep 600", again=100) for _ in range(10)]
        server.cancel(*sleeping, *ids[-10:])
        for request_id in [*ids, *sleeping]:
            server.get(request_id)
        with server.http.stream("GET", "/api/stream", params={"request_id": ids[0]}) as answer:
            answer.read()

    with running_server(tmp_path) as server:
        exercise()
        before = resources()
        exercise()
        # The connections of a client and what is being replaced right now come and go.
        wait_until(
            lambda: all(resources()[title][0] <= number + 2 for title, (number, _) in before.items()),
            what=f"descriptors are back at {before}",
        )
        assert {title: threads for title, (_, threads) in resources().items()} == {
            title: threads for title, (_, threads) in before.items()
        }


# --- the server's own log -------------------------------------------------------------------------------------------


def test_ST14_the_server_log_is_rotated_by_size(tmp_path: Path) -> None:
    limit = 8 * 1024
    with running_server(tmp_path, "--server-log-bytes", str(limit)) as server:

        def rotated() -> bool:
            server.run("crash", how="kill")
            return (server.state_dir / "server.log.3").exists()

        wait_until(rotated, seconds=60, what="the third old log")
        for _ in range(20):
            server.run("crash", how="kill")
        logs = sorted(server.state_dir.glob("server.log*"))
        assert [path.name for path in logs] == ["server.log", "server.log.1", "server.log.2", "server.log.3"]
        assert all(path.stat().st_size < 4 * limit for path in logs), [path.stat().st_size for path in logs]
