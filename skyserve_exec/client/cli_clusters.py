"""`sky status` and `sky down`: the clusters.

Room: the command line, main thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from skyserve_exec.client import following, rendering, wire
from skyserve_exec.client.cli_options import Clusters, Format, Output, Yes, confirm, either, line_of
from skyserve_exec.client.command_line import CommandLine, error_json, exit_code_of, on_interrupt
from skyserve_exec.client.following import result_of
from skyserve_exec.client.sdk import Client
from skyserve_exec.errors import EXIT_OK, SkyserveError

app = typer.Typer(add_completion=False)
HEADERS = ("NAME", "INFRA", "STATUS", "RESOURCES", "JOBS", "CREATED", "LAST TASK")


@app.command("status")
def status(ctx: typer.Context, clusters: Clusters = None, output: Output = Format.TABLE) -> int:
    """List clusters: those named, or all."""
    line = line_of(ctx)
    with line.client() as client:
        found = _clusters(line, client, clusters or ())
    if line.wants_json:
        line.print_json(found)
    elif found:
        rendering.print_table(HEADERS, [_row(each) for each in found])
    else:
        line.note(f"No clusters. Make one with: {line.program} launch -c NAME -- COMMAND")
    return EXIT_OK


@app.command("down")
def down(
    ctx: typer.Context,
    clusters: Clusters = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="All clusters.")] = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> int:
    """Cancel the jobs of clusters and remove them, with their directories."""
    line = line_of(ctx)
    either(clusters, everything, what="CLUSTERS", command=f"{line.program} down")
    with line.client() as client:
        names = list(dict.fromkeys(clusters or ()))
        if everything:
            names = [str(each["name"]) for each in _clusters(line, client, ())]
            if not names:
                line.say("No clusters.")
            else:
                count = rendering.counted(len(names), "cluster")
                confirm(line, f"Remove {count} with all jobs ({', '.join(names)})?", yes=yes)
        return _down(line, client, names)


def _down(line: CommandLine, client: Client, names: Sequence[str]) -> int:
    """Removes all of them at once; the first failure decides the exit code, but every cluster is tried."""
    explanation = following.submitting(line.program)
    failures: list[SkyserveError] = []
    outcomes: list[dict[str, Any]] = []
    with on_interrupt(explanation):
        requests = []
        for name in names:
            requests.append((name, client.down(name)))
            explanation.lines = tuple(
                text
                for _, each in requests
                for text in following.request_goes_on(line.program, each.request_id, "down")
            )
        for name, request in requests:
            try:
                wire.outcome_of(following.terminal_record(request, doing=f"Removing cluster {name}"))
            except SkyserveError as error:
                failures.append(error)
                outcomes.append({"cluster": name, "removed": False, **error_json(error)})
                if not line.wants_json:
                    line.report(error)
            else:
                outcomes.append({"cluster": name, "removed": True})
                line.say(f"Cluster {name} is removed.")
    if line.wants_json:
        line.print_json(outcomes)
    return exit_code_of(failures[0]) if failures else EXIT_OK


def _clusters(line: CommandLine, client: Client, names: Sequence[str]) -> list[dict[str, Any]]:
    result = result_of(line, "status", lambda: client.status(names), doing="Asking for the clusters")
    return list(result)


def _row(cluster: dict[str, Any]) -> tuple[object, ...]:
    return (
        cluster.get("name"),
        cluster.get("infra"),
        cluster.get("status"),
        rendering.amounts(cluster.get("resources")),
        _job_counts(cluster.get("jobs")),
        rendering.ago(cluster.get("created_at")),
        cluster.get("last_task"),
    )


def _job_counts(counts: Any) -> str | None:
    if not isinstance(counts, dict):
        return None
    words = [f"{counts[name]} {name}" for name in ("running", "pending") if counts.get(name)]
    return ", ".join(words) or "none"
