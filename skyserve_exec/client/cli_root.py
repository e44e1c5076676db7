"""The tree of commands. A command's module is imported only when that command runs: help stays fast.

Room: the command line, main thread.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from skyserve_exec.client.command_line import CommandLine, Interrupted, ReaderGone
from skyserve_exec.client.quick_params import make_quick
from skyserve_exec.errors import BadInput
from skyserve_exec.version import __version__

LOCAL, ANYWHERE = ("state_dir",), ("endpoint", "state_dir")


@dataclass(frozen=True, slots=True)
class Row:
    """One command: where it is, the line that help shows, and which of the shared options it takes."""

    name: str
    module: str
    panel: str
    help: str
    shared: tuple[str, ...] = ANYWHERE


COMMANDS = (
    Row("launch", "cli_launch", "Jobs", "Run a task on a cluster, which is made if need be, and follow its output."),
    Row("exec", "cli_launch", "Jobs", "Run a task on a cluster that is up, without its setup."),
    Row("queue", "cli_jobs", "Jobs", "List jobs."),
    Row("logs", "cli_jobs", "Jobs", "Show or follow a job's output; ends with the job's exit code."),
    Row("cancel", "cli_jobs", "Jobs", "Cancel jobs of a cluster."),
    Row("status", "cli_clusters", "Clusters", "List clusters."),
    Row("down", "cli_clusters", "Clusters", "Cancel the jobs of clusters and remove them."),
)
API_COMMANDS = (
    Row("start", "cli_server", "Server", "Start the server of this machine.", ()),
    Row("stop", "cli_server", "Server", "Stop the server of this machine; jobs go on.", LOCAL),
    Row("info", "cli_server", "Server", "Show the server's health, version and pools."),
    Row("status", "cli_api", "Requests", "List requests."),
    Row("logs", "cli_api", "Requests", "Show or follow what a request prints."),
    Row("cancel", "cli_api", "Requests", "Cancel requests."),
    Row("call", "cli_api", "Requests", "Run any operation, such as one of your own, and print its result."),
)
HELP = "Run jobs on machines through a request server: durable queue, bounded executors, live logs, cancel."
API_HELP = "The server and its requests."


def dispatch(line: CommandLine) -> int:
    """Runs the command of this command line; its exit code.

    Raises:
        BadInput: the command line is not understood.
        SkyserveError: the command failed.
    """
    command = typer.main.get_command(_tree(rich=sys.stdout.isatty()))
    make_quick(command)
    try:
        code = command.main(args=list(line.arguments), prog_name=line.program, standalone_mode=False, obj=line)
    except typer.Abort:
        raise Interrupted(("Nothing was changed.",)) from None
    except Exception as error:
        usage = _usage_error(error, line)
        if usage is None:
            raise
        raise usage from None
    return code if isinstance(code, int) else 0


class LazyGroup(TyperGroup):
    """A group whose commands are stand-ins with a help line, until one of them is asked for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        row = _rows(self.name).get(name or "")
        if row is None:
            make_quick(command)
        return name, command if row is None else load(row), rest


def load(row: Row) -> Any:
    """The real command, with the shared options it takes."""
    module = importlib.import_module(f"skyserve_exec.client.{row.module}")
    group: Any = typer.main.get_command(module.app)
    command = group.commands[row.name]
    command.callback = _shielded(command.callback)
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    command.params.extend(param for param in _shared_params() if param.name in row.shared)
    make_quick(command)
    return command


def take_endpoint(ctx: typer.Context, value: str | None) -> str | None:
    if value is not None:
        ctx.find_root().obj.endpoint = value
    return value


def take_state_dir(ctx: typer.Context, value: str | None) -> str | None:
    if value is not None:
        ctx.find_root().obj.state_dir = value
    return value


Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint", help="Server to talk to, http(s)://HOST:PORT.", callback=take_endpoint, expose_value=False
    ),
]
StateDirectory = Annotated[
    str | None,
    typer.Option(
        "--state-dir", help="State directory of this machine's server.", callback=take_state_dir, expose_value=False
    ),
]


def _tree(*, rich: bool) -> typer.Typer:
    mode: Any = "rich" if rich else None  # laying help out costs 80 ms: only where somebody looks
    context: dict[Any, Any] = {"help_option_names": ["-h", "--help"]}
    root = typer.Typer(cls=LazyGroup, help=HELP, rich_markup_mode=mode, context_settings=context)
    root.callback(invoke_without_command=True)(_root)
    api = typer.Typer(cls=LazyGroup, help=API_HELP, rich_markup_mode=mode, context_settings=context)
    api.callback(invoke_without_command=True)(_api)
    for group, rows in ((root, COMMANDS), (api, API_COMMANDS)):
        for row in rows:
            group.command(row.name, help=row.help, rich_help_panel=row.panel)(_stand_in)
    root.add_typer(api, name="api", rich_help_panel="Server")
    return root


def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    endpoint: Endpoint = None,
    state_dir: StateDirectory = None,
) -> None:
    if version:
        print(f"skyserve-exec {__version__}")
        raise typer.Exit
    _help_without_command(ctx)


def _api(ctx: typer.Context) -> None:
    _help_without_command(ctx)


def _help_without_command(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit


def _stand_in() -> None:
    raise NotImplementedError


def _rows(group: str | None) -> Mapping[str, Row]:
    return {row.name: row for row in (API_COMMANDS if group == "api" else COMMANDS)}


def _shared_params() -> list[Any]:
    def options(endpoint: Endpoint = None, state_dir: StateDirectory = None) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(options)
    return typer.main.get_command(app).params


def _shielded(callback: Callable[..., Any]) -> Callable[..., Any]:
    """The command, without what the library below would make of Ctrl-C and of a reader that has gone."""

    def run(**arguments: Any) -> Any:
        try:
            return callback(**arguments)
        except KeyboardInterrupt:
            raise Interrupted(("Nothing was changed.",)) from None
        except BrokenPipeError:
            raise ReaderGone from None

    return run


def _usage_error(error: Exception, line: CommandLine) -> BadInput | None:
    """The library's complaint about the command line as an error of ours; None when it is something else."""
    told = getattr(error, "format_message", None)
    if told is None:
        return None
    context = getattr(error, "ctx", None)
    path = line.program if context is None else context.command_path
    message = str(told()).rstrip(".")
    return BadInput(message[:1].lower() + message[1:], hint=f"See: {path} --help")
