"""Where the server's own log lines go: one file, rotated by size by serve, or the terminal in the foreground.

Every process writes lines of one shape to one file. serve alone rotates it; the others notice the new file and reopen
it (WatchedFileHandler). Records carry request_id and slot where they concern one.

Room: every process of the server, once, at its start.
"""

from __future__ import annotations

import logging
import os
from logging.handlers import RotatingFileHandler, WatchedFileHandler
from pathlib import Path

from skyserve_exec.paths import StateDir
from skyserve_exec.settings import Settings

FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s%(about)s"
TERMINAL_MARKER = "SKYSERVE_LOG_TO_TERMINAL"
KEPT = 3


class ServerLog:
    """serve's end of the log: writes it and rotates it, also when only its children write."""

    def __init__(self, settings: Settings, *, to_terminal: bool) -> None:
        self._path = None if to_terminal else StateDir(settings.state_path).server_log
        self._limit = settings.server_log_bytes
        if self._path is None:
            self._handler: logging.Handler = logging.StreamHandler()
        else:
            self._handler = RotatingFileHandler(self._path, maxBytes=self._limit, backupCount=KEPT, encoding="utf-8")
        _install(self._handler)

    def tick(self) -> None:
        """Rotates when the file has grown over the limit, whoever wrote it."""
        if self._path is None or not isinstance(self._handler, RotatingFileHandler):
            return
        try:
            if self._path.stat().st_size > self._limit:
                self._handler.doRollover()
        except OSError:
            return  # gone or unwritable: the next line reports it


def open_for_children(path: Path) -> int:
    """A descriptor for what children print past the logging module, such as a crash of the interpreter."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def configure_child(settings: Settings, environ: dict[str, str] | None = None) -> None:
    """Log lines of http and spawner."""
    if TERMINAL_MARKER in (os.environ if environ is None else environ):
        _install(logging.StreamHandler())
    else:
        _install(WatchedFileHandler(StateDir(settings.state_path).server_log, encoding="utf-8"))


def leave_to_operations() -> None:
    """In an executor: logging as in any script, so what operations log goes to the request's log."""
    for handler in list(logging.root.handlers):
        if isinstance(handler.formatter, _Formatter):
            logging.root.removeHandler(handler)
            handler.close()
    logging.root.setLevel(logging.WARNING)


class _Formatter(logging.Formatter):
    """Adds what a record is about: [request_id slot]."""

    def format(self, record: logging.LogRecord) -> str:
        about = [str(getattr(record, name)) for name in ("request_id", "slot") if getattr(record, name, None)]
        record.about = f" [{' '.join(about)}]" if about else ""
        return super().format(record)


def _install(handler: logging.Handler) -> None:
    handler.setFormatter(_Formatter(FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
