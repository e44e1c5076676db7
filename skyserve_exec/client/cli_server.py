"""`sky api start`, `stop` and `info`: the server of this machine.

Room: the command line, main thread.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Annotated, Any

import typer

from skyserve_exec import settings
from skyserve_exec.client import endpoint as endpoints
from skyserve_exec.client import rendering, server_process
from skyserve_exec.client.cli_options import Format, Output, line_of
from skyserve_exec.client.command_line import CommandLine, on_interrupt
from skyserve_exec.client.server_process import Running
from skyserve_exec.client.spinner import Spinner
from skyserve_exec.errors import EXIT_OK, StartFailed, Unavailable
from skyserve_exec.version import __version__

app = typer.Typer(add_completion=False)
SHOW_AFTER, SAY_EVERY = 0.3, 10.0
STOP_SECONDS = 120.0


class Progress:
    """Says what is awaited: as a spinner on a terminal, elsewhere as a line now and then."""

    def __init__(self, line: CommandLine) -> None:
        self._line = line
        self._spinner = Spinner()
        self._next = SAY_EVERY

    def told(self, what: str, seconds: float) -> None:
        if seconds < SHOW_AFTER:
            return
        if sys.stderr.isatty():
            self._spinner.show(f"{what}: {seconds:.0f} s")
        elif seconds >= self._next:
            self._next += SAY_EVERY
            self._line.note(f"{what}: {seconds:.0f} s")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._spinner.hide()


def start(ctx: typer.Context, foreground: bool, **options: Any) -> int:
    """Start the server of this machine in the background, and wait until it is healthy.

    Every option can be set in the environment, too. When a server runs already with the options asked for, that is
    fine; with others it is an error.
    """
    line = line_of(ctx)
    if line.state_dir is not None:
        options.setdefault("state_dir", None)
        options["state_dir"] = options["state_dir"] or line.state_dir
    if foreground:
        return _become_server(options)
    still_starting = f"The server is still starting. See: {line.program} api info; stop it: {line.program} api stop"
    with on_interrupt(lambda: (still_starting,)), Progress(line) as progress:
        try:
            running = server_process.start(options, progress.told)
        except StartFailed as failed:
            for text in failed.last_lines:
                line.note(f"  | {text}")
            raise
    say_started(line, running)
    return EXIT_OK


@app.command("stop")
def stop(
    ctx: typer.Context,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for its end.")] = STOP_SECONDS,
) -> int:
    """Stop the server of this machine: running requests get time to clean up, jobs go on.

    Waits until it is gone. What is pending runs after the next start.
    """
    line = line_of(ctx)
    state = endpoints.state_of(line.state_dir)
    going_on = f"The server goes on stopping. See: {line.program} api info"
    with on_interrupt(lambda: (going_on,)), Progress(line) as progress:
        stopped = server_process.stop(state, timeout, progress.told)
    if not stopped.gone:
        who = "the server" if stopped.pid is None else f"the server (pid {stopped.pid})"
        raise Unavailable(
            f"{who} has not ended within {timeout:g} s", hint=f"It goes on stopping. Its log: {state.server_log}"
        )
    if stopped.pid is None:
        line.say(f"No server is running (state directory {state.root}).")
    else:
        line.say(f"The server (pid {stopped.pid}) has ended after {stopped.seconds:.1f} s.")
    return EXIT_OK


@app.command("info")
def info(ctx: typer.Context, output: Output = Format.TABLE) -> int:
    """Show the server's health, version and pools."""
    line = line_of(ctx)
    with line.client() as client:
        found = client.endpoint
        health = client.api_info()
    if line.wants_json:
        line.print_json(health | {"found_by": found.source})
    else:
        rendering.print_pairs(_pairs(health, found.url, found.source))
    on_disk = health.get("version_on_disk")
    if on_disk not in {None, health.get("version")}:
        line.warn(
            f"the server runs version {health.get('version')}, but {on_disk} is installed; "
            f"restart it: {line.program} api stop; {line.program} api start"
        )
    elif health.get("version") != __version__:
        line.warn(f"the server is version {health.get('version')}, this command is {__version__}")
    return EXIT_OK


def say_started(line: CommandLine, running: Running) -> None:
    """Where the server is."""
    how = "The server has started" if running.fresh else "The server is already running"
    line.note(f"{how} at {running.endpoint} (pid {running.pid}).")


def _pairs(health: dict[str, Any], url: str, source: str) -> list[tuple[str, object]]:
    status = str(health.get("status"))
    problem = health.get("problem")
    pairs: list[tuple[str, object]] = [
        ("Status", f"{status}: {problem}" if problem else status),
        ("Endpoint", f"{url} (from {source})"),
        ("Version", health.get("version")),
        ("User", health.get("user")),
        ("Process", health.get("pid")),
        ("Started", f"{rendering.clock(health.get('started_at'))} ({rendering.ago(health.get('started_at'))})"),
    ]
    if health.get("settings"):
        pairs.append(("State directory", health["settings"].get("state_dir")))
    pending = health.get("pending") or {}
    for name, pool in (health.get("pools") or {}).items():
        busy, size = pool.get("busy", 0), pool.get("size", "?")
        pairs.append((f"{name.capitalize()} executors", f"{busy} of {size} busy, {pending.get(name, 0)} requests wait"))
    pairs.append(("Followed logs", health.get("tails")))
    return pairs


def _become_server(options: dict[str, Any]) -> int:
    settings.load(options)
    words = [*server_process.arguments_of(options), "--log-to-terminal"]
    try:
        os.execv(words[0], words)
    except OSError as error:
        raise StartFailed(f"{words[0]} cannot be run: {error.strerror}") from None


def _start_command() -> Any:
    """`start` with one option for each setting, as the library wants to see it: in the function's signature."""
    foreground = Annotated[bool, typer.Option("--foreground", help="Do not detach; log to the terminal.")]
    parameters = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        inspect.Parameter("foreground", inspect.Parameter.KEYWORD_ONLY, annotation=foreground, default=False),
    ]
    parameters += [_parameter(row) for row in settings.TABLE]

    def command(**arguments: Any) -> int:
        return start(**arguments)

    command.__doc__ = start.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(row: settings.Setting) -> inspect.Parameter:
    names = f"{row.option}/--no-{row.option[2:]}" if row.type is bool else row.option
    shown = "from the machine" if row.default == 0 and row.name.endswith("_executors") else f"{row.default}"
    help_text = f"{row.help} (default: {shown or 'none'}; {row.env})"
    option = typer.Option(names, help=help_text, show_default=False, rich_help_panel="Settings")
    return inspect.Parameter(
        row.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[row.type | None, option], default=None
    )


app.command("start")(_start_command())
