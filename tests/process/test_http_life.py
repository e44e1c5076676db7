"""Boot, probes, draining, the end, and what happens when serve is gone."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from skyserve_exec.messages import Goodbye
from tests.process.http_following import follow, read_head
from tests.process.http_stand_in import StandIn, stand_in
from tests.processes import alive, descriptors, look, status_field
from tests.waiting import stays_so, wait_until


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path) as running:
        yield running


def probe(peer: StandIn, path: str) -> int:
    return httpx2.get(f"{peer.url}{path}", trust_env=False).status_code


def test_the_process_names_itself_and_keeps_its_environment(peer: StandIn) -> None:
    seen = look(peer.pid)
    assert seen is not None
    assert seen.title == "sky: http"
    assert "SKYSERVE_TEST_MARK=http" in seen.environment
    assert peer.server_log() == ""


def test_it_ignores_the_signals_of_a_terminal(peer: StandIn) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(peer.pid, signum)
    stays_so(lambda: probe(peer, "/readyz") == 200, seconds=0.5, what="it goes on")


def test_it_ends_at_once_when_serve_is_gone(tmp_path: Path) -> None:
    with stand_in(tmp_path) as peer:
        follow(peer, peer.submit("queue"))
        peer.over.set()
        peer.channel.sock.shutdown(socket.SHUT_RDWR)
        assert peer.process.wait(2) == 1
        assert "the supervisor is gone" in peer.server_log()


def test_readiness_follows_what_serve_reports(peer: StandIn) -> None:
    assert peer.http.get("/api/health").json()["status"] == "healthy"
    peer.problem = "the database cannot be written"
    peer.report()
    wait_until(lambda: probe(peer, "/readyz") == 503, what="not ready")
    health = peer.http.get("/api/health").json()
    assert (health["status"], health["problem"]) == ("unhealthy", "the database cannot be written")
    peer.problem = ""
    peer.pools = peer.pools | {"short": {"size": 2, "busy": 0, "idle": 0, "starting": 0}}
    peer.report()
    wait_until(lambda: peer.http.get("/api/health").json()["problem"] == "no short executor can work", what="no pool")
    assert probe(peer, "/readyz") == 503
    assert probe(peer, "/livez") == 200
    metrics = peer.http.get("/metrics").text
    assert "skyserve_ready 0.0" in metrics
    assert 'skyserve_executors{pool="long",state="idle"} 2.0' in metrics


def test_a_silent_serve_is_reported(peer: StandIn) -> None:
    peer.silent = True
    wait_until(lambda: probe(peer, "/readyz") == 503, seconds=10, what="not ready")
    assert "silent" in peer.http.get("/api/health").json()["problem"]
    assert probe(peer, "/livez") == 200
    peer.silent = False
    wait_until(lambda: probe(peer, "/readyz") == 200, what="ready again")


def test_HT10_while_draining_nothing_is_reset(peer: StandIn) -> None:
    peer.succeed_at_once = True
    request_id = peer.submit("queue")
    codes: list[int] = []
    failures: list[Exception] = []
    over = threading.Event()

    def keep_sending() -> None:
        # As a load balancer does that has not noticed yet: keep-alive connections, new ones when told to close.
        with httpx2.Client(
            base_url=peer.url, headers={"Authorization": f"Bearer {peer.token}"}, trust_env=False
        ) as client:
            while not over.wait(0.02):
                try:
                    answer = client.post("/queue", json={})
                except httpx2.TransportError as error:
                    failures.append(error)
                    continue
                codes.append(answer.status_code)
                if answer.status_code == 503:
                    assert answer.json()["error"]["type"] == "Draining"
                    assert answer.headers["connection"] == "close"
                    assert int(answer.headers["retry-after"]) > 0

    threads = [threading.Thread(target=keep_sending) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(codes) > 20, what="answers")
    peer.drain()
    wait_until(lambda: codes.count(503) > 50, what="refusals")
    assert probe(peer, "/readyz") == 503
    assert probe(peer, "/livez") == 200
    assert peer.http.get("/api/health").json()["status"] == "draining"
    assert peer.http.get("/api/get", params={"request_id": request_id}).json()["status"] == "SUCCEEDED"
    assert follow(peer, request_id).wait_end()["complete"] is True
    assert peer.http.post("/api/cancel", json={"all": True}).status_code == 200
    over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(codes) == {202, 503}
    assert codes[-10:] == [503] * 10


def test_goodbye_answers_everybody_and_ends(peer: StandIn) -> None:
    running = peer.submit("queue")
    peer.start(running)
    pending = peer.submit("queue")
    peer.write(running, b"half a line")
    followings = [follow(peer, running), follow(peer, pending), follow(peer, running, events=False)]
    followings[0].wait_for(b"half a line")
    answers: list[httpx2.Response] = []
    getting = threading.Thread(
        target=lambda: answers.append(peer.client().get("/api/get", params={"request_id": pending, "timeout": 60}))
    )
    waiting = threading.Thread(
        target=lambda: answers.append(peer.client().post("/queue", json={}, headers={"Prefer": "wait=60"}))
    )
    for thread in (getting, waiting):
        thread.start()
    wait_until(lambda: peer.http.get("/api/health").json()["http"]["waiting"] == 5, what="five wait")
    began = time.monotonic()
    peer.drain()
    assert peer.goodbye() == 0
    assert time.monotonic() - began < 2
    assert followings[0].wait_end() == {
        "request_id": running,
        "status": "RUNNING",
        "exit_code": None,
        "error": None,
        "complete": False,
    }
    assert followings[1].wait_end()["status"] == "PENDING"
    assert followings[1].wait_end()["complete"] is False
    assert followings[2].closed.wait(5)
    assert followings[2].data == b"half a line"
    assert not followings[2].finished  # a plain stream that is not complete is cut
    for thread in (getting, waiting):
        thread.join(5)
    assert sorted(answer.status_code for answer in answers) == [200, 202]


def test_goodbye_does_not_wait_for_clients_that_do_not_read(peer: StandIn) -> None:
    request_id = peer.submit("queue")
    peer.start(request_id)
    with peer.log(request_id).open("wb") as file:
        file.truncate(1 << 30)
    sock = socket.create_connection(peer.address)
    sock.sendall(
        f"GET /api/stream?request_id={request_id} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {peer.token}\r\n\r\n".encode()
    )
    assert read_head(sock)[0] == 200
    began = time.monotonic()
    assert peer.goodbye() == 0
    assert time.monotonic() - began < 4
    sock.close()


def test_a_goodbye_before_the_first_request(tmp_path: Path) -> None:
    with stand_in(tmp_path) as peer:
        peer.tell(Goodbye())
        assert peer.process.wait(5) == 0


def test_nothing_is_left_open_by_many_requests(peer: StandIn) -> None:
    peer.succeed_at_once = True
    baseline = (len(descriptors(peer.pid)), status_field(peer.pid, "Threads"))
    for number in range(60):
        request_id = peer.submit("queue")
        peer.write(request_id, b"x")
        follow(peer, request_id, events=number % 2 == 0).closed.wait(5)
        peer.http.get("/api/get", params={"request_id": request_id})
        peer.http.get("/api/status")
        follow(peer, "abcdef").disconnect()
    for client in peer.clients:
        client.close()
    wait_until(
        lambda: len(descriptors(peer.pid)) <= baseline[0] + 12,
        what=f"descriptors as before ({baseline}): {descriptors(peer.pid)}",
    )
    assert int(status_field(peer.pid, "Threads")) <= int(baseline[1]) + 8
    assert alive(peer.pid)


def test_SU10_a_new_version_on_disk_is_shown(peer: StandIn) -> None:
    health = peer.http.get("/api/health").json()
    assert health["version"] == health["version_on_disk"]
    assert health["pid"] == os.getpid()
    assert health["boot_id"] == "stand-in"
    assert health["endpoint"] == peer.url
    assert health["settings"]["state_dir"] == str(peer.state.root)
