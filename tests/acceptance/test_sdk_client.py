"""The SDK against a real server, over good and bad networks, and across restarts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skyserve_exec.client import aio, sdk
from skyserve_exec.client.aio import AsyncClient
from skyserve_exec.client.sdk import Client
from skyserve_exec.errors import (
    BadInput,
    NotFound,
    RequestFailed,
    RequestWasCancelled,
    ServerNotRunning,
    ServerUnreachable,
    StreamIncomplete,
)
from skyserve_exec.operation_table import BUILTIN
from tests.acceptance.tcp_proxy import Proxy, proxy_to
from tests.server_under_test import OWN_OPERATIONS, SMALL, Server, environment, finish, running_server, start
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the machine, and proxies that must not be used for loopback."""
    for name in list(os.environ):
        if name.startswith(("SKYSERVE_", "SKYPILOT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.fixture
def client(shared_server: Server) -> Iterator[Client]:
    with Client(state_dir=shared_server.state_dir) as client:
        yield client


@pytest.fixture
def proxy(shared_server: Server) -> Iterator[Proxy]:
    with proxy_to(shared_server.endpoint) as proxy:
        yield proxy


# --- results --------------------------------------------------------------------------------------------------------


def test_results_records_and_failures(client: Client) -> None:
    request = client.call("echo", value={"a": [1, None, "ü"]})
    assert request.result(timeout=30) == {"a": [1, None, "ü"]}
    record = request.record()
    assert record["request_id"] == request.request_id
    assert record["status"] == "SUCCEEDED"
    assert client.request(request.request_id[:8]).result() == {"a": [1, None, "ü"]}
    failed = client.call("fail_plainly") if _has(client, "fail_plainly") else client.call("typed", words=["x"], least=1)
    failed.record(timeout=30)
    with pytest.raises(BadInput, match="words"):
        client.call("typed", words="no list")
    with pytest.raises(NotFound):
        client.call("no_such_operation")
    with pytest.raises(BadInput, match="cannot be sent as JSON"):
        client.call("echo", value=object())


def _has(client: Client, name: str) -> bool:
    return any(each["name"] == name for each in client.api_operations()["operations"])


def test_a_request_that_raises(client: Client) -> None:
    request = client.call("sleep_past_deadline")
    with pytest.raises(RequestFailed) as caught:
        request.result(timeout=30)
    assert caught.value.request_id == request.request_id
    assert caught.value.record["status"] == "FAILED"
    assert caught.value.error["type"]


def test_cancel_and_timeouts(client: Client) -> None:
    request = client.call("sleep_for", seconds=600)
    with pytest.raises(TimeoutError):
        request.result(timeout=0.3)
    assert request.cancel() in {"cancelling", "cancelled"}
    with pytest.raises(RequestWasCancelled):
        request.result(timeout=30)
    assert request.cancel() == "already CANCELLED"


def test_an_idempotency_key_makes_one_request_of_two(client: Client) -> None:
    first = client.call("echo", value=1, idempotency_key="once")
    assert client.call("echo", value=1, idempotency_key="once").request_id == first.request_id


def test_lists_and_cancels_by_filter(client: Client) -> None:
    ids = [client.call("echo", value=number).request_id for number in range(3)]
    for request_id in ids:
        client.api_get(request_id, timeout=30)
    page = client.api_status(name="echo", status=["SUCCEEDED"], limit=2)
    assert [each["request_id"] for each in page["requests"]] == ids[:0:-1]
    more = client.api_status(name="echo", limit=2, cursor=page["next_cursor"])
    assert more["requests"][0]["request_id"] == ids[0]
    listed = client.api_status(request_ids=[ids[0][:8]])["requests"]
    assert [each["request_id"] for each in listed] == [ids[0]]
    assert client.api_cancel([ids[0]])["cancelled"] == {ids[0]: "already SUCCEEDED"}
    assert client.api_info()["status"] == "healthy"


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_stream_is_exact_and_ends_with_its_end(client: Client) -> None:
    raw = bytes(range(256)) * 300 + "ünïcödé\r100%\n".encode() + b"event: end\ndata: {}\n\n"
    request = client.call("print_bytes", data=base64.b64encode(raw).decode(), chunk=777)
    with request.stream() as stream:
        assert b"".join(stream) == raw
    assert stream.end is not None
    assert (stream.end["status"], stream.end["request_id"]) == ("SUCCEEDED", request.request_id)
    assert stream.offset == len(raw)
    assert b"".join(request.stream(offset=len(raw) - 10)) == raw[-10:]
    assert b"".join(client.api_stream(request.request_id, tail=1)) == b"\n"


def test_a_stream_may_be_left_and_taken_up_again(client: Client) -> None:
    request = client.call("print_lines", count=50, interval=0.02)
    stream = request.stream()
    first = next(stream)
    stream.close()
    assert stream.end is None
    rest = b"".join(request.stream(offset=stream.offset))
    assert (first + rest).decode().splitlines() == [f"line {number}" for number in range(50)]


def test_a_job_without_follow_ends_with_what_there_is(client: Client) -> None:
    request = client.call("sleep_for", seconds=600)
    stream = request.stream(follow=False)
    assert b"".join(stream) == b""
    assert stream.end is not None
    assert stream.end["status"] in {"PENDING", "RUNNING"}
    request.cancel()


def test_what_a_pending_request_waits_for_is_told(client: Client) -> None:
    sleepers = [client.call("sleep_for", seconds=600) for _ in range(2)]
    told: list[dict[str, Any]] = []
    waiting = client.call("echo", value=1)
    thread = threading.Thread(target=lambda: b"".join(waiting.stream(told=told.append)))
    thread.start()
    wait_until(lambda: told, what="the reason is told")
    for sleeper in sleepers:
        sleeper.cancel()
    thread.join(30)
    assert "short executor" in told[0]["reason"]
    assert waiting.result() == 1


def test_LG15_a_network_that_cuts_all_the_time_loses_and_repeats_nothing(client: Client, proxy: Proxy) -> None:
    said: list[str] = []
    far = Client(proxy.url, client.endpoint.token, notify=said.append)
    request = far.call("print_lines", count=300, interval=0.02, text="µ line")
    stop = threading.Event()

    def cut() -> None:
        chance = random.Random(1)
        while not stop.wait(chance.uniform(0.05, 0.5)):
            proxy.cut()

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        text = b"".join(request.stream()).decode()
    finally:
        stop.set()
        cutting.join()
        far.close()
    assert text.splitlines() == [f"µ line {number}" for number in range(300)]
    assert proxy.cuts > 5
    assert said == []


def test_an_answer_that_is_lost_does_not_make_two_requests_of_one(client: Client, proxy: Proxy) -> None:
    with Client(proxy.url, client.endpoint.token) as far:
        far.api_info()
        before = len(client.api_status(name="echo", limit=1000)["requests"])
        proxy.swallow_next = True
        assert far.call("echo", value=2).result(timeout=30) == 2
        assert len(client.api_status(name="echo", limit=1000)["requests"]) == before + 1


def test_a_server_that_does_not_come_back_is_given_up_and_that_is_no_success(client: Client, proxy: Proxy) -> None:
    said: list[str] = []
    far = Client(proxy.url, client.endpoint.token, patience=1.0, notify=said.append)
    request = far.call("print_lines", count=100, interval=0.1)
    stream = request.stream()
    first = next(stream)
    proxy.is_away = True
    proxy.cut()
    with pytest.raises(StreamIncomplete) as caught:
        b"".join(stream)
    assert f"cut at byte {stream.offset}" in caught.value.message
    assert first
    assert len(said) == 1
    with pytest.raises(ServerUnreachable):
        request.result()
    proxy.is_away = False
    assert request.cancel() in {"cancelling", "cancelled"}
    far.close()


def test_LG08_a_large_log_is_quick_and_exact(client: Client) -> None:
    data = os.urandom(300_000) * 2 + b"x" * 5_000_000 + b"\n".join(b"%d" % number for number in range(600_000))
    raw = base64.b64encode(data[:4_000_000]).decode()
    request = client.call("print_bytes", data=raw)
    request.record(timeout=60)
    begun = time.monotonic()
    received = b"".join(request.stream())
    took = time.monotonic() - begun
    assert hashlib.sha256(received).digest() == hashlib.sha256(data[:4_000_000]).digest()
    print(f"{len(received) / took / 1e6:.0f} MB/s")
    assert took < 5


# --- restarts -------------------------------------------------------------------------------------------------------


def test_results_and_streams_survive_a_restart_on_another_port(tmp_path: Path) -> None:
    server = start(tmp_path / "state", *OWN_OPERATIONS, *SMALL)
    said: list[str] = []
    outcome: dict[str, Any] = {}
    try:
        server.wait_ready()
        client = Client(state_dir=server.state_dir, notify=said.append)
        request = client.call("sleep_again", seconds=2, marker=str(tmp_path / "marker"))
        wait_until((tmp_path / "marker").exists, what="it runs")

        def stream() -> None:
            outcome["stream"] = b"".join(request.stream())

        def wait() -> None:
            outcome["result"] = client.request(request.request_id).result(timeout=60)

        threads = [threading.Thread(target=each) for each in (stream, wait)]
        for thread in threads:
            thread.start()
        finish(server)
        first = server.endpoint
        wait_until(lambda: len(said) >= 2, what="both say that the server is away")
    finally:
        server.process.kill()
        server.process.wait()
    with running_server(tmp_path) as again:
        for thread in threads:
            thread.join(60)
        assert outcome == {"stream": b"", "result": 2}
        assert again.endpoint != first
        assert client.endpoint.url == again.endpoint
        client.close()
    assert sorted(said) == sorted(
        [*[line for line in said if line.startswith("The server does not answer")], *["The server answers again."] * 2]
    )
    assert len(said) == 4


# --- asyncio: the same names ----------------------------------------------------------------------------------------


def public(kind: type) -> dict[str, inspect.Signature]:
    """Public methods and their parameters; what they give back may differ."""
    return {
        name: inspect.signature(value).replace(return_annotation=None)
        for name, value in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    assert public(Client) == public(AsyncClient)
    assert public(sdk.Request) == public(aio.AsyncRequest)
    assert set(public(sdk.LogStream)) == set(public(aio.AsyncLogStream))
    assert inspect.signature(Client.__init__).parameters == inspect.signature(AsyncClient.__init__).parameters


def test_every_operation_has_a_method() -> None:
    methods = {name.rstrip("_") for name in public(Client)}
    assert {row.name for row in BUILTIN} <= methods


def test_the_asyncio_client(shared_server: Server) -> None:
    async def session() -> None:
        async with AsyncClient(state_dir=shared_server.state_dir) as client:
            requests = await asyncio.gather(*(client.call("echo", value=number) for number in range(50)))
            results = await asyncio.gather(*(request.result(timeout=60) for request in requests))
            assert results == list(range(50))
            lines = await client.call("print_lines", count=20, interval=0.01)
            async with lines.stream() as stream:
                text = b"".join([chunk async for chunk in stream])
            assert text.decode().splitlines() == [f"line {number}" for number in range(20)]
            assert stream.end is not None
            assert stream.end["status"] == "SUCCEEDED"
            sleeper = await client.call("sleep_for", seconds=600)
            with pytest.raises(TimeoutError):
                await sleeper.result(timeout=0.2)
            assert await sleeper.cancel() in {"cancelling", "cancelled"}
            with pytest.raises(RequestWasCancelled):
                await sleeper.result(timeout=30)
            assert (await client.api_info())["status"] == "healthy"
            page = await client.api_status(limit=1)
            assert page["requests"][0]["request_id"] == sleeper.request_id

    asyncio.run(session())


def test_LG15_the_asyncio_client_resumes_too(client: Client, proxy: Proxy) -> None:
    async def session() -> bytes:
        async with AsyncClient(proxy.url, client.endpoint.token) as far:
            request = await far.call("print_lines", count=100, interval=0.02)
            text = b""
            async for chunk in request.stream():
                if len(text) // 200 != len(text + chunk) // 200:
                    proxy.cut()
                text += chunk
            return text

    assert asyncio.run(session()).decode().splitlines() == [f"line {number}" for number in range(100)]
    assert proxy.cuts >= 2


def test_a_cancelled_task_leaves_nothing_open(shared_server: Server) -> None:
    async def session() -> None:
        async with AsyncClient(state_dir=shared_server.state_dir) as client:
            request = await client.call("sleep_for", seconds=600)

            async def follow() -> None:
                async for _ in request.stream():
                    pass

            for act in (follow, request.result):
                await _cancelled_soon(act)
            await request.cancel()

    asyncio.run(session())


async def _cancelled_soon(act: Callable[[], Awaitable[Any]]) -> None:
    task = asyncio.ensure_future(act())
    await asyncio.wait([task], timeout=0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- finding it, and where it runs ----------------------------------------------------------------------------------


def test_a_client_never_starts_a_server(tmp_path: Path) -> None:
    with pytest.raises(ServerNotRunning) as caught:
        Client(state_dir=tmp_path / "none")
    assert "sky api start" in caught.value.hint
    assert not (tmp_path / "none").exists()
    with Client("http://127.0.0.1:9") as client, pytest.raises(ServerUnreachable, match="connection refused"):
        client.api_info()


@pytest.mark.parametrize(
    "way",
    ["python script.py", "python -c", "piped into python", "python -i", "with a running event loop", "in a fork"],
)
def test_scripts_without_a_main_guard_and_other_places(shared_server: Server, tmp_path: Path, way: str) -> None:
    script = textwrap.dedent(f"""
        import asyncio, os, threading
        from skyserve_exec.client.sdk import Client
        before = threading.active_count()
        client = Client(state_dir={str(shared_server.state_dir)!r})
        def go():
            request = client.call("echo", value=7)
            assert b"".join(request.stream()) == b""
            return request.result()

        result = go()
        assert threading.active_count() == before == 1
        """)
    if way == "with a running event loop":
        script += "async def inside(): return go()\nresult = asyncio.run(inside())\n"
    if way == "in a fork":
        script += "if os.fork() == 0:\n    assert go() == 7\n    os._exit(0)\n\n"
        script += "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\nresult = go()\n"
    script += "print('result', result)\n"
    path = tmp_path / "script.py"
    path.write_text(script)
    argv, stdin = [sys.executable, "-W", "error", str(path)], ""
    if way == "python -c":
        argv[-1:] = ["-c", script]
    elif way in {"piped into python", "python -i"}:
        argv, stdin = [sys.executable, "-W", "error", *(["-i"] if way == "python -i" else ["-"])], script
    done = subprocess.run(
        argv,
        input=stdin,
        env=environment(shared_server.mark, tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "result 7" in done.stdout, done
    assert "Traceback" not in done.stderr, done
