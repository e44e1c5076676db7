"""`sky api status`, `logs`, `cancel` and `call`: the requests themselves.

Room: the command line, main thread.
"""

from __future__ import annotations

import datetime
import importlib
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from skyserve_exec.client import following, rendering, wire
from skyserve_exec.client.cli_options import Follow, Format, Output, RequestIds, Tail, Yes, confirm, either, line_of
from skyserve_exec.client.command_line import CommandLine, on_interrupt
from skyserve_exec.client.completion import complete_clusters, complete_operations, complete_requests
from skyserve_exec.client.sdk import Client, Request
from skyserve_exec.errors import EXIT_JOB_NOT_FINISHED, EXIT_OK, BadInput, NotFound
from skyserve_exec.states import ScheduleType, Status

app = typer.Typer(add_completion=False)
HEADERS = ("ID", "NAME", "CLUSTER", "USER", "STATUS", "CREATED", "TOOK", "REASON")
AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
WATCH_SECONDS = 2.0
MOST_LISTED = 10
ACTIVE = ("PENDING", "RUNNING")

ClusterFilter = Annotated[
    str | None, typer.Option("-c", "--cluster", help="About this cluster.", autocompletion=complete_clusters)
]
User = Annotated[str | None, typer.Option("--user", help="Of this user.")]


@app.command("status")
def status(
    ctx: typer.Context,
    ids: RequestIds = None,
    statuses: Annotated[
        list[Status] | None, typer.Option("--status", help="With this status. Repeatable.", case_sensitive=False)
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of this operation, such as launch.")] = None,
    user: User = None,
    cluster: ClusterFilter = None,
    kind: Annotated[ScheduleType | None, typer.Option("--type", help="Of this schedule type.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Created since: 30m, 2h, 1d, 2026-01-31, or Unix seconds.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 50,
    cursor: Annotated[
        int | None, typer.Option("--cursor", min=0, help="The next page, as the page before says.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again until Ctrl-C.")] = False,
    output: Output = Format.TABLE,
) -> int:
    """List requests, newest first: all, those with these ids, or those that pass the filters."""
    line = line_of(ctx)
    filters: dict[str, Any] = {
        "request_ids": ids or (),
        "status": statuses or (),
        "name": name,
        "user": user,
        "cluster": cluster,
        "schedule_type": kind,
        "since": None if since is None else seconds_since(since, time.time()),
        "limit": limit,
        "cursor": cursor,
    }
    with line.client() as client:
        if watch:
            with on_interrupt(lambda: ()):
                _watch(line, client, filters)
        _print_page(line, client.api_status(**filters), bool(ids))
    return EXIT_OK


@app.command("logs")
def logs(
    ctx: typer.Context,
    request_id: Annotated[
        str | None, typer.Argument(metavar="ID", autocompletion=complete_requests, show_default=False)
    ] = None,
    follow: Follow = True,
    tail: Tail = 0,
) -> int:
    """Show or follow what a request prints; without ID the latest request.

    Ends with 0 (or the job's exit code) when the request succeeded, 100 when it failed, 101 when it was cancelled, 108
    when it has not ended (with --no-follow). Ctrl-C stops the following, not the request.
    """
    line = line_of(ctx)
    explanation = following.Explanation(("Stopped following.",))
    with line.client() as client, on_interrupt(explanation):
        record = _find(client, request_id)
        request = client.request(str(record["request_id"]))
        goes_on = following.request_goes_on(line.program, request.request_id, str(record["name"]))
        explanation.lines = ("Stopped following.", *goes_on)
        doing = f"Request {request.request_id[:8]} ({record['name']})"
        stream = following.copy_log(request, sys.stdout.fileno(), doing=doing, follow=follow, tail=tail)
        end = stream.end or {}
        if not wire.is_terminal(end):
            return EXIT_JOB_NOT_FINISHED
        return following.exit_code_of_end(end, request)


@app.command("cancel")
def cancel(
    ctx: typer.Context,
    ids: RequestIds = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="All requests that wait or run.")] = False,
    cluster: ClusterFilter = None,
    user: User = None,
    force: Annotated[bool, typer.Option("--force", help="Without time to clean up.")] = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> int:
    """Cancel requests: by id or its beginning, all, or all about a cluster. Acts at once, outside the queue."""
    line = line_of(ctx)
    if cluster is None:
        either(ids, everything, what="IDS, -c CLUSTER", command=f"{line.program} api cancel")
    elif ids or everything:
        raise BadInput("give one of IDS, -a (--all) and -c (--cluster)", hint=f"See: {line.program} api cancel --help")
    with line.client() as client:
        if not ids:
            _confirm_bulk(line, client, cluster, user, yes=yes)
        body = client.api_cancel(ids or (), all_requests=everything, cluster=cluster, user=user, force=force)
    outcomes: dict[str, str] = body["cancelled"]
    if line.wants_json:
        line.print_json(body)
    elif outcomes:
        rendering.print_table(("ID", "OUTCOME"), list(outcomes.items()))
    else:
        line.note("No request waits or runs.")
    return EXIT_OK


@app.command("call")
def call(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_operations, show_default=False)],
    arg: Annotated[
        list[str] | None, typer.Option("--arg", help="A parameter: NAME=VALUE, the value JSON or text. Repeatable.")
    ] = None,
    arguments: Annotated[str | None, typer.Option("--args", help="All parameters as one JSON object.")] = None,
    asynchronous: Annotated[bool, typer.Option("--async", help="End at once; print the request's id only.")] = False,
    key: Annotated[str | None, typer.Option("--idempotency-key", help="The same key is the same request.")] = None,
) -> int:
    """Run any operation, such as one of your own: its output goes to stderr, its result to stdout as JSON."""
    line = line_of(ctx)
    given = _json_object(arguments)
    explanation = following.submitting(line.program)
    with line.client() as client, on_interrupt(explanation):
        payload = given | _parameters(arg or (), _schema(client, name))
        request = client.submit(name, payload, idempotency_key=key)
        explanation.lines = following.request_goes_on(line.program, request.request_id, name)
        if asynchronous:
            print(request.request_id, flush=True)
            return EXIT_OK
        return _show_call(line, request, name)


def seconds_since(text: str, now: float) -> float:
    """Unix seconds of a point in time: ago (30m, 2h, 1d), a date, or the seconds themselves.

    Raises:
        BadInput: it is none of them.
    """
    ago = AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            return max(0.0, now - float(ago[1]) * UNITS[ago[2]])
        if text.replace(".", "", 1).isdigit() and len(text.partition(".")[0]) > 4:
            return float(text)
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadInput(f"--since {text}: not a time", hint="Such as 30m, 2h, 1d, 2026-01-31 or Unix seconds.") from None


def _print_page(line: CommandLine, page: dict[str, Any], by_id: bool) -> None:
    if line.wants_json:
        line.print_json(page)
    elif page["requests"]:
        rendering.print_table(HEADERS, [_row(each) for each in page["requests"]])
    else:
        line.note("No such request." if by_id else "No requests.")
    if page.get("next_cursor") is not None:
        line.note(f"There are more: add --cursor {page['next_cursor']}")


def _watch(line: CommandLine, client: Client, filters: dict[str, Any]) -> None:
    """Shows the page again and again; ends by Ctrl-C only."""
    if line.wants_json or not sys.stdout.isatty():
        while True:
            _print_page(line, client.api_status(**filters), bool(filters["request_ids"]))
            time.sleep(WATCH_SECONDS)
    live = importlib.import_module("rich.live")
    filters = filters | {"limit": min(filters["limit"], max(1, rendering.terminal_lines() - 3))}
    with live.Live(screen=False, auto_refresh=False, vertical_overflow="crop") as display:
        while True:
            page = client.api_status(**filters)
            cells = [[rendering.shown(value) for value in _row(each)] for each in page["requests"]]
            display.update(rendering.rich_table(HEADERS, cells), refresh=True)
            time.sleep(WATCH_SECONDS)


def _row(record: dict[str, Any]) -> tuple[object, ...]:
    started, finished = record.get("started_at"), record.get("finished_at")
    took = None if started is None else rendering.span((finished or time.time()) - started)
    reason = record.get("reason")
    if record.get("cancel_requested") and record["status"] == Status.RUNNING:
        reason = f"cancelling: {reason}" if reason else "cancelling"
    identity = (record["request_id"][:8], record["name"], record.get("cluster"), record.get("user"))
    return (*identity, record["status"], rendering.ago(record.get("created_at")), took, reason)


def _find(client: Client, request_id: str | None) -> dict[str, Any]:
    """The record of an id, of its beginning, or of the latest request."""
    if request_id is not None:
        return client.api_get(request_id)
    latest = client.api_status(limit=1)["requests"]
    if not latest:
        raise NotFound("there are no requests yet", hint="See: sky api status")
    record: dict[str, Any] = latest[0]
    return record


def _confirm_bulk(line: CommandLine, client: Client, cluster: str | None, user: str | None, *, yes: bool) -> None:
    if yes or not line.may_ask():
        return
    found = client.api_status(status=ACTIVE, cluster=cluster, user=user, limit=1000)["requests"]
    if not found:
        return
    named = ", ".join(f"{each['request_id'][:8]} {each['name']}" for each in found[:MOST_LISTED])
    more = f" and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    confirm(line, f"Cancel {rendering.counted(len(found), 'request')} ({named}{more})?", yes=yes)


def _schema(client: Client, name: str) -> dict[str, Any]:
    operations = {str(each["name"]): each for each in client.api_operations()["operations"]}
    if name not in operations:
        raise NotFound(f"there is no operation {name}", hint=f"There are: {', '.join(sorted(operations))}.")
    return dict(operations[name].get("schema") or {})


def _json_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"--args: not JSON: {error}", hint="Such as: --args '{\"count\": 3}'") from None
    if not isinstance(value, dict):
        raise BadInput("--args: not a JSON object", hint="Such as: --args '{\"count\": 3}'")
    return value


def _parameters(words: Sequence[str], schema: dict[str, Any]) -> dict[str, Any]:
    """NAME=VALUE words as JSON values; what the schema says is text stays text."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise BadInput(f"--arg {word}: not NAME=VALUE", hint="Such as: --arg count=3 --arg 'words=[\"a\"]'")
        kind = (schema.get("properties") or {}).get(name, {}).get("type")
        try:
            values[name] = text if kind == "string" else json.loads(text)
        except ValueError:
            values[name] = text
    return values


def _show_call(line: CommandLine, request: Request, name: str) -> int:
    stream = following.copy_log(request, sys.stderr.fileno(), doing=f"Request {request.request_id[:8]} ({name})")
    code = following.exit_code_of_end(stream.end or {}, request)
    line.print_json(request.record()["result"])
    return code
