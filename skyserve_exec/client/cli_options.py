"""Options that several commands share.

Room: the command line, main thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from skyserve_exec.client.command_line import CommandLine
from skyserve_exec.client.completion import complete_clusters, complete_requests
from skyserve_exec.errors import BadInput


class Format(StrEnum):
    """How a list is printed."""

    TABLE = "table"
    JSON = "json"


def line_of(ctx: typer.Context) -> CommandLine:
    """The command line that this command runs for."""
    line: CommandLine = ctx.find_root().obj
    return line


def take_format(ctx: typer.Context, value: Format) -> Format:
    line_of(ctx).wants_json = value is Format.JSON
    return value


Output = Annotated[Format, typer.Option("-o", "--output", help="How to print.", callback=take_format)]
Yes = Annotated[
    bool, typer.Option("-y", "--yes", help="Do not ask for confirmation. Without a terminal nothing is asked.")
]
Follow = Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Go on until it ends.")]
Tail = Annotated[int, typer.Option("--tail", min=0, help="Begin with the last so many lines; 0: all.", metavar="N")]
Cluster = Annotated[str, typer.Argument(metavar="CLUSTER", autocompletion=complete_clusters, show_default=False)]
OptionalCluster = Annotated[
    str | None, typer.Argument(metavar="CLUSTER", autocompletion=complete_clusters, show_default=False)
]
Clusters = Annotated[
    list[str] | None, typer.Argument(metavar="CLUSTERS", autocompletion=complete_clusters, show_default=False)
]
RequestIds = Annotated[
    list[str] | None, typer.Argument(metavar="ID", autocompletion=complete_requests, show_default=False)
]


def confirm(line: CommandLine, question: str, *, yes: bool) -> None:
    """Asks on a terminal, unless the answer was given; without a terminal nobody is asked.

    Raises:
        BadInput: the answer was no.
    """
    if yes or not line.may_ask():
        return
    if not typer.confirm(question, err=True):
        raise BadInput("nothing was changed", hint="Answer y, or pass -y.")


def either(names: Sequence[str] | None, all_of_them: bool, *, what: str, command: str) -> None:
    """Checks that names or --all were given, and not both.

    Raises:
        BadInput: neither, or both.
    """
    if bool(names) == all_of_them:
        both = "not both" if names else "neither was given"
        raise BadInput(f"{what} or -a (--all) is needed, {both}", hint=f"See: {command} --help")
