"""`sky launch` and `sky exec`: submit a task, show how it is set up, follow its output, end with its exit code.

Room: the command line, main thread.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from skyserve_exec import settings
from skyserve_exec.client import endpoint as endpoints
from skyserve_exec.client import following, server_process, task_file, wire
from skyserve_exec.client.cli_options import Cluster, Yes, line_of
from skyserve_exec.client.cli_server import Progress, say_started
from skyserve_exec.client.command_line import CommandLine, on_interrupt
from skyserve_exec.client.completion import complete_clusters
from skyserve_exec.client.following import JobLog, Submit
from skyserve_exec.client.sdk import Client
from skyserve_exec.errors import EXIT_OK, BadInput, ServerNotRunning

app = typer.Typer(add_completion=False)

Words = Annotated[list[str] | None, typer.Argument(metavar="TASK.yaml | -- COMMAND", show_default=False)]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", help="A variable for the task: NAME=VALUE, or NAME from here. Repeatable.", metavar="K=V"),
]
Name = Annotated[str | None, typer.Option("-n", "--name", help="Name of the job.")]
Detach = Annotated[bool, typer.Option("-d", "--detach", help="End once the job is submitted; do not follow it.")]
Async = Annotated[bool, typer.Option("--async", help="End at once; print the request's id only.")]
Infra = Annotated[str | None, typer.Option("--infra", help="Where to run: local.")]
Cpus = Annotated[str | None, typer.Option("--cpus", help="CPUs of the cluster, or that the job takes of it.")]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory in GB.")]
Gpus = Annotated[str | None, typer.Option("--gpus", help="Accelerators, NAME or NAME:COUNT.")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says about the task."""

    words: tuple[str, ...]
    env: tuple[str, ...]
    name: str | None
    resources: dict[str, Any]


@app.command("launch")
def launch(
    ctx: typer.Context,
    task: Words = None,
    cluster: Annotated[
        str | None,
        typer.Option("-c", "--cluster", help="Cluster to use or make.", autocompletion=complete_clusters),
    ] = None,
    infra: Infra = None,
    env: Env = None,
    name: Name = None,
    detach: Detach = False,
    asynchronous: Async = False,
    cpus: Cpus = None,
    memory: Memory = None,
    gpus: Gpus = None,
    yes: Yes = False,
) -> int:
    """Run a task as a job on a cluster, which is made if need be, and follow its output.

    TASK.yaml describes the task (run, setup, workdir, envs, resources, name); or give a command after two dashes:
    sky launch -c dev -- python train.py

    Ends with the job's own exit code. Starts this machine's server if none runs; no other command does. Ctrl-C stops
    the following, not the job.
    """
    line = line_of(ctx)
    resources = {"infra": infra, "cpus": cpus, "memory": memory, "accelerators": gpus}
    wanted = Wanted(tuple(task or ()), tuple(env or ()), name, resources)
    task_file.check_cluster(cluster)
    fields = _task(line, wanted)
    client = _client_or_new_server(line)
    return _run(line, client, "launch", lambda: client.launch(fields, cluster=cluster), detach, asynchronous)


@app.command("exec")
def execute(
    ctx: typer.Context,
    cluster: Cluster,
    task: Words = None,
    env: Env = None,
    name: Name = None,
    detach: Detach = False,
    asynchronous: Async = False,
    cpus: Cpus = None,
    memory: Memory = None,
    gpus: Gpus = None,
) -> int:
    """Run a task as a job on a cluster that is up, without its setup, and follow its output.

    Ends with the job's own exit code. Ctrl-C stops the following, not the job.
    """
    line = line_of(ctx)
    resources = {"cpus": cpus, "memory": memory, "accelerators": gpus}
    wanted = Wanted(tuple(task or ()), tuple(env or ()), name, resources)
    task_file.check_cluster(cluster)
    fields = _task(line, wanted)
    client = line.client()
    return _run(line, client, "exec", lambda: client.exec_(cluster, fields), detach, asynchronous)


def _run(line: CommandLine, client: Client, name: str, submit: Submit, detach: bool, asynchronous: bool) -> int:
    explanation = following.submitting(line.program)
    with client, on_interrupt(explanation):
        request = submit()
        short = request.request_id[:8]
        explanation.lines = following.request_goes_on(line.program, request.request_id, name)
        if asynchronous:
            print(request.request_id, flush=True)
            return EXIT_OK
        # What is printed until the job is submitted is about the cluster; stdout belongs to the job.
        stream = following.copy_log(request, sys.stderr.fileno(), doing=f"Request {short} ({name})")
        following.exit_code_of_end(stream.end or {}, request)
        result = wire.outcome_of(request.record())
        found, job_id = str(result["cluster"]), result.get("job_id")
        if detach or job_id is None:
            _say_detached(line, found, job_id)
            return EXIT_OK
        return following.copy_job_log(line, client, JobLog(found, int(job_id)))


def _say_detached(line: CommandLine, cluster: str, job_id: int | None) -> None:
    if job_id is None:
        line.say(f"Cluster {cluster} is up.")
        return
    line.say(f"Job {job_id} is submitted to cluster {cluster}.")
    line.note(f"Follow it with: {line.program} logs {cluster} {job_id}")
    line.note(f"Cancel it with: {line.program} cancel {cluster} {job_id}")


def _task(line: CommandLine, wanted: Wanted) -> dict[str, Any]:
    """The task of the command line, checked."""
    command, words = _split(line, wanted.words)
    envs = task_file.environment(wanted.env, settings.own_environment())
    if command is None:
        if len(words) != 1:
            raise BadInput(
                "one task file is needed" + (f", not {len(words)}: {' '.join(words)}" if words else ""),
                hint=f"For a command write: {line.program} {line.arguments[0]} … -- COMMAND",
            )
        source = words[0]
        fields, lines = task_file.from_yaml(Path(source))
    elif words or not command:
        raise BadInput(
            "either a task file or a command after two dashes, not both"
            if words
            else "the command after -- is missing",
            hint=f"Such as: {line.program} launch -- echo hello",
        )
    else:
        source, fields, lines = "", task_file.from_command(command), {}
    task = task_file.completed(fields, envs, name=wanted.name, resources=wanted.resources)
    is_local = endpoints.named_endpoint(line.endpoint) is None
    return task_file.checked(task, source=source, lines=lines, is_local=is_local)


def _split(line: CommandLine, words: tuple[str, ...]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The command after the two dashes, if there is one, and the words before them."""
    command = line.after_dashes
    if command is None or words[len(words) - len(command) :] != command:
        return None, words
    return command, words[: len(words) - len(command)]


def _client_or_new_server(line: CommandLine) -> Client:
    """The client; starts this machine's server when nobody has named another one and none runs."""
    try:
        return line.client()
    except ServerNotRunning:
        options = {} if line.state_dir is None else {"state_dir": line.state_dir}
        with Progress(line) as progress:
            running = server_process.start(options, progress.told)
        say_started(line, running)
        return line.client()
