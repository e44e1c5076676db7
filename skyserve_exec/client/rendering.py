"""How lists look: aligned columns, with colours and the terminal's width on a terminal, plain text elsewhere.

Room: the command line, main thread.
"""

from __future__ import annotations

import datetime
import importlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from skyserve_exec.client.command_line import clean, takes_colour, write

STYLES: Mapping[str, str] = {
    "PENDING": "yellow",
    "RUNNING": "cyan",
    "SETTING_UP": "cyan",
    "INIT": "yellow",
    "UP": "green",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "magenta",
    "healthy": "green",
    "draining": "yellow",
    "unhealthy": "red",
}
FOLDED = {"REASON", "ERROR", "RESOURCES"}  # long text: wraps, while ids and names stay whole
Row = Sequence[object]


def print_table(headers: Sequence[str], rows: Sequence[Row]) -> None:
    """Prints rows under headers on stdout; None is shown as -."""
    cells = [[shown(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        console = importlib.import_module("rich.console").Console(no_color=not takes_colour(sys.stdout))
        console.print(rich_table(headers, cells))
    else:
        write(sys.stdout, plain_table(headers, cells))


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to the same width, two spaces apart; nothing is cut."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "".join(f"{line.rstrip()}\n" for line in padded)


def rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """The same for a terminal."""
    text = importlib.import_module("rich.text").Text
    table = importlib.import_module("rich.table").Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        folded = header in FOLDED
        table.add_column(text(header, style="bold"), no_wrap=not folded, overflow="fold" if folded else "ellipsis")
    for row in rows:
        table.add_row(*(text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table


def print_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Prints names and values, one a line."""
    width = max((len(name) for name, _ in pairs), default=0)
    colour = takes_colour(sys.stdout)
    for name, value in pairs:
        label = f"{name}:".ljust(width + 2)
        write(sys.stdout, (f"\x1b[1m{label}\x1b[0m" if colour else label) + shown(value) + "\n")


def shown(value: object) -> str:
    """A value as one cell."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return clean(str(value))


def ago(then: float | None, now: float | None = None) -> str:
    """How long ago a wall-clock time was."""
    if then is None:
        return "-"
    seconds = (time.time() if now is None else now) - then
    return "now" if seconds < 1 else f"{span(seconds)} ago"


def span(seconds: float | None) -> str:
    """A duration in its two largest units."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit} {rest}{name}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def clock(then: float | None) -> str:
    """A wall-clock time in the user's time zone."""
    if then is None:
        return "-"
    return datetime.datetime.fromtimestamp(then).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def amounts(resources: Any) -> str | None:
    """What a cluster has or a job takes, such as '4 CPUs, 16 GB, 1 A100'."""
    if not isinstance(resources, Mapping):
        return None
    flat: dict[str, Any] = {}
    for name, value in resources.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    words = [_amount(name, value) for name, value in flat.items() if isinstance(value, int | float) and value]
    return ", ".join(words) or None


def _amount(name: str, value: float) -> str:
    if name == "cpus":
        return f"{value:g} CPU" if value == 1 else f"{value:g} CPUs"
    return f"{value:g} GB" if name == "memory" else f"{value:g} {name}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def now() -> float:
    return time.time()


def terminal_lines() -> int:
    return shutil.get_terminal_size().lines
