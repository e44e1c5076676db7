"""Finds the server a client shall talk to, and the token for it.

In this order: what the caller says, SKYSERVE_ENDPOINT, SKYPILOT_API_SERVER_ENDPOINT, `api_server.endpoint` in
~/.sky/config.yaml, and the server.json of the state directory, if its server lives.

Room: the user's process. Reads files; never starts anything.
"""

from __future__ import annotations

import importlib
import ipaddress
import json
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from skyserve_exec import settings
from skyserve_exec.errors import BadInput, ServerNotRunning
from skyserve_exec.paths import StateDir
from skyserve_exec.system.lockfile import is_held

CONFIG_FILE = "~/.sky/config.yaml"
LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address without a trailing slash. `source` says who named it; `token` is None where none is known."""

    url: str
    source: str
    state: StateDir
    token: str | None = field(default=None, repr=False)

    @property
    def is_found(self) -> bool:
        """Nobody named it: it is the server of the state directory."""
        return self.source == "server.json"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(urlsplit(self.url).hostname or "")


def find(
    endpoint: str | None = None, *, token: str | None = None, state_dir: str | os.PathLike[str] | None = None
) -> Endpoint:
    """The server to talk to.

    Raises:
        BadInput: the endpoint, wherever it was named, is not an http(s) URL.
        ServerNotRunning: none was named, and no server holds the state directory.
    """
    state = state_of(state_dir)
    named = named_endpoint(endpoint)
    if named is None:
        url, source = _running(state), "server.json"
    else:
        url, source = _checked(*named), named[1]
    return Endpoint(url, source, state, token or settings.token_of() or _token_for(url, state))


def state_of(state_dir: str | os.PathLike[str] | None = None) -> StateDir:
    """The state directory of this client."""
    if state_dir is None or not os.fspath(state_dir):
        return StateDir(settings.state_dir_of())
    return StateDir(Path(state_dir).expanduser().absolute())


def state_option(state: StateDir) -> str:
    """What must be added to a command so that it is about this state directory, too."""
    return "" if state.root == settings.state_dir_of() else f" --state-dir {shlex.quote(str(state.root))}"


def named_endpoint(endpoint: str | None = None) -> tuple[str, str] | None:
    """The endpoint somebody has named, and who; None when the state directory decides."""
    if endpoint:
        return endpoint, "--endpoint"
    from_environment = settings.endpoint_of()
    if from_environment:
        return from_environment, "the environment"
    from_config = _configured(Path(CONFIG_FILE).expanduser())
    return (from_config, CONFIG_FILE) if from_config else None


def read_server_json(state: StateDir) -> dict[str, Any]:
    """What the server of a state directory says about itself; empty when there is nothing to read."""
    try:
        information = json.loads(state.server_json.read_text())
    except (OSError, ValueError):
        return {}
    return information if isinstance(information, dict) else {}


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's loopback."""
    if host.lower() in {"localhost", "localhost.localdomain", "ip6-localhost"}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _running(state: StateDir) -> str:
    # A dead server leaves its file behind, and its port may be somebody else's by now: the lock decides.
    held = is_held(state.lock)
    url = str(read_server_json(state).get("endpoint") or "") if held else ""
    if held and not url:
        raise ServerNotRunning(
            f"a server holds {state.lock}, but {state.server_json.name} beside it does not say where it listens",
            hint="It is starting or stopping: try again. If it stays so the file is damaged: end that process.",
        )
    if not url:
        raise ServerNotRunning(
            f"no server is running (state directory {state.root})",
            hint=f"Start one with: sky api start{state_option(state)}",
        )
    parts = urlsplit(url)
    host = ANY_ADDRESS.get(parts.hostname or "")
    return url.rstrip("/") if host is None else f"{parts.scheme}://{host}:{parts.port}"


def _checked(url: str, source: str) -> str:
    hint = "It looks like http://127.0.0.1:46580 or https://sky.example.com."
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or any(ord(char) <= 32 or ord(char) == 127 for char in url.strip()):
        raise BadInput(f"endpoint: {ascii(url)[1:-1]} (from {source}) is not an http(s) URL", hint=hint)
    if parts.query or parts.fragment:
        raise BadInput(f"endpoint: {url} (from {source}) has a query or a fragment", hint=hint)
    return url.strip().rstrip("/")


def _configured(path: Path) -> str | None:
    if not path.is_file():
        return None
    yaml = importlib.import_module("yaml")  # costs every command its start-up time, and few have the file
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", hint="Make it readable, or pass --endpoint.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or "is not YAML"
        raise BadInput(f"{path}:{where} {problem}", hint="Repair it, or pass --endpoint.") from None
    section = config.get("api_server") if isinstance(config, dict) else None
    endpoint = section.get("endpoint") if isinstance(section, dict) else None
    if endpoint is None or isinstance(endpoint, str):
        return endpoint or None
    raise BadInput(f"{path}: api_server.endpoint is not text", hint="Write it as http://HOST:PORT.")


def _token_for(url: str, state: StateDir) -> str | None:
    """The token of the state directory, for a server on this machine that may know it."""
    parts = urlsplit(url)
    if not is_loopback(parts.hostname or "") or not _may_know(parts):
        return None
    try:
        return state.token.read_text().strip() or None
    except (OSError, ValueError):
        return None


def _may_know(parts: SplitResult) -> bool:
    """Whether this user or root listens there: a port of somebody else's must not be told our token."""
    port = f":{parts.port or (443 if parts.scheme == 'https' else 80):04X}"
    owners: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        rows = [line.split() for line in lines]
        owners |= {int(row[7]) for row in rows if len(row) > 7 and row[3] == LISTENING and row[1].endswith(port)}
    return owners <= {os.getuid(), 0}
