"""What the shell offers for cluster names and request ids. Quiet and quick: no error, no server is started.

Room: the command line, while the user types.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import typer

from skyserve_exec.client import endpoint as endpoints
from skyserve_exec.errors import SkyserveError

SECONDS = 1.0
MOST = 200


def complete_clusters(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of clusters: those of this machine's server, or those that requests were about."""
    line = ctx.find_root().obj
    named = getattr(line, "endpoint", None)
    state = endpoints.state_of(getattr(line, "state_dir", None))
    try:
        if endpoints.named_endpoint(named) is None:
            names = sorted(path.name for path in state.clusters.iterdir() if path.is_dir())
        else:
            names = sorted({str(each["cluster"]) for each in _requests(ctx) if each.get("cluster")})
    except (OSError, SkyserveError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_requests(ctx: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Ids of the latest requests, with what they are."""
    for each in _requests(ctx):
        request_id = str(each.get("request_id", ""))
        if request_id.startswith(incomplete):
            yield request_id[: max(8, len(incomplete))], f"{each.get('name')} {each.get('status')}"


def complete_operations(ctx: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Names of operations, with what they do."""
    for each in _listed(ctx, "/api/operations", "operations"):
        if str(each.get("name")).startswith(incomplete):
            yield str(each.get("name")), str(each.get("help", ""))


def _requests(ctx: typer.Context) -> list[dict[str, Any]]:
    return _listed(ctx, f"/api/status?limit={MOST}", "requests")


def _listed(ctx: typer.Context, path: str, key: str) -> list[dict[str, Any]]:
    line = ctx.find_root().obj
    try:
        found = endpoints.find(getattr(line, "endpoint", None), state_dir=getattr(line, "state_dir", None))
        parts = urlsplit(found.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=SECONDS)
        headers = {} if found.token is None else {"Authorization": f"Bearer {found.token}"}
        connection.request("GET", f"{parts.path}{path}", headers=headers)
        body = json.loads(connection.getresponse().read())
        connection.close()
    except (SkyserveError, OSError, ValueError, http.client.HTTPException):
        return []
    found_list = body.get(key) if isinstance(body, dict) else None
    return found_list if isinstance(found_list, list) else []
