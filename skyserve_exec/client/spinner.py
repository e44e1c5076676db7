"""Shows on a terminal that something is awaited, and why; prints nothing where nobody looks.

Room: the command line, main thread; the drawing library animates it from a thread of its own.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from skyserve_exec.client.command_line import clean


class Spinner:
    """A line on stderr while waiting. Hide it before anything else is written."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._status: Any = None

    def show(self, text: str) -> None:
        """Draws it, or changes its text."""
        if not self._is_terminal:
            return
        if self._status is None:
            console = importlib.import_module("rich.console").Console(stderr=True)
            self._status = importlib.import_module("rich.status").Status("", console=console)
            self._status.start()
        self._status.update(importlib.import_module("rich.markup").escape(clean(text)))

    def hide(self) -> None:
        """Takes it away without a trace."""
        status, self._status = self._status, None
        if status is not None:
            status.stop()

    def __enter__(self) -> Spinner:
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()
