"""Which server a client talks to, and with which token."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyserve_exec.client import endpoint as endpoints
from skyserve_exec.errors import BadInput, ServerNotRunning
from skyserve_exec.system.lockfile import Lock

URL = "http://10.1.2.3:46580"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and an environment that says nothing."""
    for name in ("SKYSERVE_ENDPOINT", "SKYPILOT_API_SERVER_ENDPOINT", "SKYSERVE_TOKEN", "SKYSERVE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def running(home: Path) -> Iterator[str]:
    """A state directory whose server seems to live, with a token."""
    state = home / ".sky/api_server"
    state.mkdir(parents=True)
    lock = Lock(state / "server.lock")
    lock.take()
    (state / "token").write_text("secret\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (state / "server.json").write_text(json.dumps({"endpoint": url, "pid": 1}))
        yield url
    lock.release()


def configure(home: Path, text: str) -> None:
    (home / ".sky").mkdir(exist_ok=True)
    (home / ".sky/config.yaml").write_text(text)


def test_without_a_server_the_hint_is_to_start_one() -> None:
    with pytest.raises(ServerNotRunning) as caught:
        endpoints.find()
    assert "sky api start" in caught.value.hint


def test_the_state_directory_of_a_living_server(running: str) -> None:
    found = endpoints.find()
    assert (found.url, found.source, found.token) == (running, "server.json", "secret")
    assert found.is_found
    assert "secret" not in repr(found)


def test_a_dead_server_leaves_a_file_that_counts_for_nothing(home: Path) -> None:
    state = home / ".sky/api_server"
    state.mkdir(parents=True)
    (state / "server.json").write_text(json.dumps({"endpoint": URL, "pid": 1}))
    with pytest.raises(ServerNotRunning):
        endpoints.find()


def test_SU13_flag_environment_and_config_in_this_order(
    home: Path, running: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(home, "api_server: {endpoint: 'http://config:1', other: 3}\nallowed_clouds: [aws]\n")
    assert endpoints.find().url == "http://config:1"
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", "http://pilot:1/")
    assert endpoints.find().url == "http://pilot:1"
    monkeypatch.setenv("SKYSERVE_ENDPOINT", "https://serve:1")
    assert endpoints.find().url == "https://serve:1"
    assert endpoints.find("http://flag:1").url == "http://flag:1"
    assert endpoints.find("http://flag:1").token is None, "the token of this machine's server is told to nobody else"


@pytest.mark.parametrize("text", ["", "other: 1", "api_server:", "api_server: {}", "api_server: {endpoint: }", "[]"])
def test_a_config_without_an_endpoint(home: Path, running: str, text: str) -> None:
    configure(home, text)
    assert endpoints.find().url == running


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", "config.yaml: line 1: mapping values are not allowed here"),
        ("api_server: {endpoint: 3}", "api_server.endpoint is not text"),
        ("api_server: {endpoint: nonsense}", "nonsense (from ~/.sky/config.yaml) is not an http(s) URL"),
    ],
)
def test_a_faulty_config_is_named(home: Path, text: str, message: str) -> None:
    configure(home, text)
    with pytest.raises(BadInput) as caught:
        endpoints.find()
    assert message in caught.value.message


@pytest.mark.parametrize(
    "url",
    ["", " ", "localhost:46580", "ftp://x", "http://", "http://x:99999", "http://[::1", "http://x/?a=b", "http://a b"],
)
def test_endpoints_that_are_no_urls(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((BadInput, ServerNotRunning)):
        endpoints.find(url)


def test_the_token_is_told_on_loopback_only(running: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = running.rpartition(":")[2]
    assert endpoints.find(f"http://localhost:{port}").token == "secret"
    assert endpoints.find(URL).token is None
    assert endpoints.find(URL, token="mine").token == "mine"
    monkeypatch.setenv("SKYSERVE_TOKEN", "told")
    assert endpoints.find(URL).token == "told"


def test_wildcard_addresses_are_reached_through_loopback(home: Path, running: str) -> None:
    (home / ".sky/api_server/server.json").write_text(json.dumps({"endpoint": "http://0.0.0.0:5"}))
    assert endpoints.find().url == "http://127.0.0.1:5"
    (home / ".sky/api_server/server.json").write_text(json.dumps({"endpoint": "http://[::]:5"}))
    assert endpoints.find().url == "http://[::1]:5"


def test_another_state_directory(home: Path, running: str) -> None:
    with pytest.raises(ServerNotRunning, match="elsewhere"):
        endpoints.find(state_dir=home / "elsewhere")
    assert endpoints.find(state_dir="~/.sky/api_server").url == running
