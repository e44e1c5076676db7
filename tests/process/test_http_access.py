"""Who may talk to the server: token, Host, Origin, content type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.process.http_stand_in import StandIn, stand_in

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with stand_in(tmp_path_factory.mktemp("http"), allowed_hosts="skyserve.example, box") as running:
        yield running


def refused(peer: StandIn, answer: httpx2.Response, status: int, kind: str) -> dict[str, Any]:
    """Asserts the one error shape, and that nothing was submitted or cancelled."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = dict(answer.json()["error"])
    assert error["type"] == kind
    assert error["message"]
    assert "\n" not in error["message"]
    assert peer.submits == []
    assert peer.cancels == []
    return error


@pytest.mark.parametrize("path", ["/queue", "/api/cancel"])
@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"Content-Type": "text/plain"}, 415, "WrongContentType"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "WrongContentType"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415, "WrongContentType"),
        ({"Content-Type": ""}, 415, "WrongContentType"),
        ({**JSON, "Origin": "http://evil.example"}, 403, "Forbidden"),
        ({**JSON, "Origin": "null"}, 403, "Forbidden"),
        ({**JSON, "Origin": "http://127.0.0.1.evil.example"}, 403, "Forbidden"),
        ({**JSON, "Origin": "file://localhost"}, 403, "Forbidden"),
        ({**JSON, "Host": "evil.example"}, 403, "Forbidden"),
        ({**JSON, "Host": "evil.example:46580"}, 403, "Forbidden"),
        ({**JSON, "Host": "localhost.evil.example"}, 403, "Forbidden"),
        ({**JSON, "Host": "[::1"}, 403, "Forbidden"),
        ({**JSON, "Host": ""}, 403, "Forbidden"),
    ],
)
def test_SE06_a_web_page_cannot_drive_the_server(
    peer: StandIn, path: str, headers: dict[str, str], status: int, kind: str
) -> None:
    body = b'{"all": true}' if path == "/api/cancel" else b"{}"
    refused(peer, peer.http.post(path, content=body, headers=headers), status, kind)


@pytest.mark.parametrize("path", ["/api/status", "/api/health", "/api/stream", "/metrics", "/docs", "/openapi.json"])
def test_SE06_reading_is_closed_to_foreign_names_as_well(peer: StandIn, path: str) -> None:
    refused(peer, peer.http.get(path, headers={"Host": "evil.example"}), 403, "Forbidden")
    refused(peer, peer.http.get(path, headers={"Origin": "https://evil.example"}), 403, "Forbidden")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:1234"},
        {"Host": "127.0.0.1"},
        {"Host": "127.8.9.10:80"},
        {"Host": "[::1]:46580"},
        {"Host": "LOCALHOST."},
        {"Host": "skyserve.example"},
        {"Host": "box:8080", "Origin": "https://box"},
        {"Origin": "http://localhost:3000"},
    ],
)
def test_SE06_our_own_names_pass(peer: StandIn, headers: dict[str, str]) -> None:
    assert peer.http.get("/api/status", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer wrong", "Basic c2VjcmV0", "secret-of-the-test", "Bearer secret-of-the-tes"],
)
def test_SE07_without_the_token_nothing_but_the_probes_answers(peer: StandIn, authorization: str) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    with httpx2.Client(base_url=peer.url, headers=headers, trust_env=False) as client:
        for path in (
            "/api/status",
            "/api/health",
            "/api/get",
            "/api/stream",
            "/metrics",
            "/docs",
            "/openapi.json",
            "/no",
        ):
            answer = client.get(path)
            refused(peer, answer, 401, "Unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
        refused(peer, client.post("/queue", json={}), 401, "Unauthorized")
        refused(peer, client.post("/api/cancel", json={"all": True}), 401, "Unauthorized")
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 200
        assert client.head("/readyz").status_code == 200


def test_SE07_the_scheme_is_not_case_sensitive(peer: StandIn) -> None:
    answer = peer.http.get("/api/status", headers={"Authorization": f"bearer {peer.token}"})
    assert answer.status_code == 200


def test_without_a_token_on_loopback_everything_answers(tmp_path: Path) -> None:
    with stand_in(tmp_path, token=None) as peer:
        answer = httpx2.post(f"{peer.url}/queue", json={}, trust_env=False)
        assert answer.status_code == 202
        assert (
            httpx2.get(f"{peer.url}/api/status", headers={"Host": "evil.example"}, trust_env=False).status_code == 403
        )
