"""`sky queue`, `sky logs` and `sky cancel`: the jobs of clusters.

Room: the command line, main thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from skyserve_exec.client import rendering
from skyserve_exec.client.cli_options import (
    Cluster,
    Follow,
    Format,
    OptionalCluster,
    Output,
    Tail,
    Yes,
    confirm,
    either,
    line_of,
)
from skyserve_exec.client.command_line import CommandLine
from skyserve_exec.client.following import STATUS_CODES, JobLog, copy_job_log, result_of
from skyserve_exec.client.sdk import Client
from skyserve_exec.errors import EXIT_JOB_NOT_FINISHED, EXIT_OK, BadInput, NotFound

app = typer.Typer(add_completion=False)
HEADERS = ("CLUSTER", "JOB", "NAME", "STATUS", "EXIT", "SUBMITTED", "RAN", "RESOURCES", "REASON")
MOST_LISTED = 20


@app.command("queue")
def queue(
    ctx: typer.Context,
    cluster: OptionalCluster = None,
    skip_finished: Annotated[bool, typer.Option("-s", "--skip-finished", help="Only jobs that wait or run.")] = False,
    output: Output = Format.TABLE,
) -> int:
    """List the jobs of a cluster, or of all clusters."""
    line = line_of(ctx)
    with line.client() as client:
        jobs = _jobs(line, client, cluster, skip_finished=skip_finished)
    if line.wants_json:
        line.print_json(jobs)
    elif jobs:
        rendering.print_table(HEADERS, [_row(job) for job in jobs])
    else:
        line.note(f"No jobs on cluster {cluster}." if cluster else "No jobs.")
    return EXIT_OK


@app.command("logs")
def logs(
    ctx: typer.Context,
    cluster: Cluster,
    job: Annotated[int | None, typer.Argument(metavar="JOB", min=1, show_default=False)] = None,
    follow: Follow = True,
    tail: Tail = 0,
    status: Annotated[bool, typer.Option("--status", help="Print the job's status instead of its output.")] = False,
) -> int:
    """Show or follow a job's output; without JOB the latest job's.

    Ends with the job's own exit code; 108 when the job has not ended (with --no-follow or --status). With --status: 0
    when it succeeded, 100 when it failed, 101 when it was cancelled. Ctrl-C stops the following, not the job.
    """
    line = line_of(ctx)
    with line.client() as client:
        if not status:
            return copy_job_log(line, client, JobLog(cluster, job, follow, tail))
        found = _chosen(_jobs(line, client, cluster), cluster, job)
    print(found["status"], flush=True)
    return STATUS_CODES.get(found["status"], EXIT_JOB_NOT_FINISHED)


@app.command("cancel")
def cancel(
    ctx: typer.Context,
    cluster: Cluster,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOBS", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="All jobs that wait or run.")] = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> int:
    """Cancel jobs of a cluster, by their numbers or all. (Requests are cancelled with: sky api cancel)"""
    line = line_of(ctx)
    either(jobs, everything, what="JOBS", command=f"{line.program} cancel")
    numbers = [_number(word) for word in jobs or ()]
    with line.client() as client:
        if everything and not yes and line.may_ask():
            active = _jobs(line, client, cluster, skip_finished=True)
            confirm(line, _question(cluster, active), yes=yes or not active)
        result = result_of(
            line,
            "cancel",
            lambda: client.cancel(cluster, numbers, all_jobs=everything),
            doing=f"Cancelling jobs of cluster {cluster}",
        )
    if line.wants_json:
        line.print_json({"cluster": cluster, "cancelled": result})
    else:
        _say_cancelled(line, cluster, numbers, result)
    return EXIT_OK


def _jobs(
    line: CommandLine, client: Client, cluster: str | None, *, skip_finished: bool = False
) -> list[dict[str, Any]]:
    result = result_of(
        line, "queue", lambda: client.queue(cluster, skip_finished=skip_finished), doing="Asking for the jobs"
    )
    return list(result)


def _chosen(jobs: Sequence[dict[str, Any]], cluster: str, number: int | None) -> dict[str, Any]:
    candidates = [job for job in jobs if number is None or job["job_id"] == number]
    if not candidates:
        what = f"cluster {cluster} has no jobs" if number is None else f"cluster {cluster} has no job {number}"
        raise NotFound(what, hint=f"See: sky queue {cluster}")
    return max(candidates, key=lambda job: int(job["job_id"]))


def _row(job: dict[str, Any]) -> tuple[object, ...]:
    ended = job.get("ended_at")
    started = job.get("started_at")
    ran = "-" if started is None else rendering.span((ended or rendering.now()) - started)
    resources = rendering.amounts(job.get("resources"))
    submitted = rendering.ago(job.get("submitted_at"))
    facts = (job.get("cluster"), job.get("job_id"), job.get("name"), job.get("status"), job.get("exit_code"))
    return (*facts, submitted, ran, resources, job.get("reason"))


def _number(word: str) -> int:
    if not (word.isascii() and word.isdigit()) or int(word) < 1:
        raise BadInput(f"JOBS: {word} is not a job's number", hint="Numbers are in the column JOB of: sky queue")
    return int(word)


def _question(cluster: str, active: Sequence[dict[str, Any]]) -> str:
    named = ", ".join(str(job["job_id"]) for job in active[:MOST_LISTED])
    more = f" and {len(active) - MOST_LISTED} more" if len(active) > MOST_LISTED else ""
    return f"Cancel {rendering.counted(len(active), 'job')} of cluster {cluster} ({named}{more})?"


def _say_cancelled(line: CommandLine, cluster: str, asked: Sequence[int], cancelled: Sequence[Any]) -> None:
    for number in cancelled:
        line.say(f"Job {number} of cluster {cluster} is cancelled.")
    for number in asked:
        if number not in cancelled:
            line.say(f"Job {number} of cluster {cluster} had ended already.")
    if not asked and not cancelled:
        line.say(f"No job of cluster {cluster} waits or runs.")
