"""Waits for requests and follows output in front of a user: spinner, exact bytes, and what Ctrl-C means.

Room: the command line, main thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from skyserve_exec.client import wire
from skyserve_exec.client.command_line import CommandLine, on_interrupt, write_bytes
from skyserve_exec.client.sdk import Client, LogStream, Request
from skyserve_exec.client.spinner import Spinner
from skyserve_exec.errors import (
    EXIT_CANCELLED,
    EXIT_JOB_NOT_FINISHED,
    EXIT_OK,
    EXIT_REQUEST_FAILED,
    NotFound,
    StreamIncomplete,
)
from skyserve_exec.states import Status

# Of a job that has ended without an exit code of its own.
STATUS_CODES: Mapping[str, int] = {
    Status.SUCCEEDED: EXIT_OK,
    Status.FAILED: EXIT_REQUEST_FAILED,
    Status.CANCELLED: EXIT_CANCELLED,
}
FIRST_LOOK_SECONDS = 0.3
LOOK_SECONDS = 2.0
Submit = Callable[[], Request]


@dataclass(slots=True)
class Explanation:
    """What to say at Ctrl-C; changes as a command goes on."""

    lines: tuple[str, ...]

    def __call__(self) -> tuple[str, ...]:
        return self.lines


def submitting(program: str) -> Explanation:
    """Before the id is known."""
    return Explanation(
        (f"Interrupted while submitting: the request may have been accepted. See: {program} api status",)
    )


def request_goes_on(program: str, request_id: str, name: str) -> tuple[str, ...]:
    """Once the id is known."""
    short = request_id[:8]
    return (
        f"Request {short} ({name}) goes on at the server.",
        f"Follow it with: {program} api logs {short}",
        f"Cancel it with: {program} api cancel {short}",
    )


def job_goes_on(program: str, cluster: str, job_id: int | None) -> tuple[str, ...]:
    """While a job's output is followed."""
    job = f"job {job_id}" if job_id is not None else "the job"
    words = f"{cluster} {job_id}" if job_id is not None else cluster
    return (
        f"Stopped following; {job} on cluster {cluster} goes on.",
        f"Follow it with: {program} logs {words}",
        f"Cancel it with: {program} cancel {cluster} {job_id if job_id is not None else 'JOB'}",
    )


def result_of(line: CommandLine, name: str, submit: Submit, *, doing: str) -> Any:
    """Submits a request and waits for its result.

    Raises:
        RequestFailed: it did not succeed.
    """
    explanation = submitting(line.program)
    with on_interrupt(explanation):
        request = submit()
        explanation.lines = request_goes_on(line.program, request.request_id, name)
        return wire.outcome_of(terminal_record(request, doing=doing))


def terminal_record(request: Request, *, doing: str) -> dict[str, Any]:
    """The record once it is terminal; meanwhile a spinner says why it is not."""
    with Spinner() as spinner:
        record = request.record(FIRST_LOOK_SECONDS)
        while not wire.is_terminal(record):
            waits = record.get("status") == Status.PENDING and record.get("reason")
            spinner.show(f"{doing}: {waits}" if waits else doing)
            record = request.record(LOOK_SECONDS)
    return record


def copy_log(request: Request, descriptor: int, *, doing: str, **options: Any) -> LogStream:
    """Copies what a request prints, byte by byte, until its end; the exhausted stream."""
    with Spinner() as spinner:
        stream = request.stream(told=lambda waits: spinner.show(f"{doing}: {waits.get('reason')}"), **options)
        with stream:
            for chunk in stream:
                spinner.hide()
                write_bytes(descriptor, chunk)
    return stream


@dataclass(frozen=True, slots=True)
class JobLog:
    """A job whose output is wanted. Without `job_id`: the latest job."""

    cluster: str
    job_id: int | None
    follow: bool = True
    tail: int = 0


def copy_job_log(line: CommandLine, client: Client, job: JobLog) -> int:
    """Copies a job's output to stdout; the job's exit code.

    Raises:
        RequestFailed: it cannot be read; NotFound and such are in the record's error.
        StreamIncomplete: the connection was gone for too long.
    """
    explanation = Explanation(job_goes_on(line.program, job.cluster, job.job_id))
    offset: int | None = None
    with on_interrupt(explanation):
        while True:
            request = client.logs(job.cluster, job.job_id, follow=job.follow, tail=job.tail)
            stream = copy_log(
                request,
                sys.stdout.fileno(),
                doing=f"Waiting for the output of cluster {job.cluster}",
                offset=offset,
                cancel_on_disconnect=True,
            )
            end = stream.end or {}
            if end.get("status") != Status.CANCELLED or not stream.outages:
                code = exit_code_of_end(end, request)
                return code if job.follow else _exit_code_so_far(request.record()["result"])
            # The connection was gone for so long that the server took us for gone and cancelled the following.
            offset = _go_on_at(stream, job)


def exit_code_of_end(end: Mapping[str, Any], request: Request) -> int:
    """The exit code of a request that has ended: its job's, if it was about one.

    Raises:
        RequestFailed, RequestWasCancelled: it did not succeed.
    """
    if end.get("status") in {Status.FAILED, Status.CANCELLED}:
        raise wire.failure_of(_whole_record(end, request))
    code = end.get("exit_code")
    return EXIT_OK if code is None else int(code)


def _exit_code_so_far(job: Mapping[str, Any]) -> int:
    """The exit code of a job that was looked at, not followed."""
    if job["status"] not in STATUS_CODES:
        return EXIT_JOB_NOT_FINISHED
    return int(job["exit_code"]) if job.get("exit_code") is not None else STATUS_CODES[job["status"]]


def _whole_record(end: Mapping[str, Any], request: Request) -> dict[str, Any]:
    try:
        return request.record()
    except NotFound:
        return {"request_id": request.request_id, **end}


def _go_on_at(stream: LogStream, job: JobLog) -> int | None:
    if job.tail or job.job_id is None:
        raise StreamIncomplete(
            "the connection was gone for so long that the server stopped following for us",
            hint=f"The job goes on. Follow it again with: sky logs {job.cluster}",
        )
    return stream.offset
