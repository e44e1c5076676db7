"""The command `sky`: its outer wall. Whatever happens below, a terminal sees one clear line, a hint, and an exit code.

Room: the command line, main thread. Imports next to nothing, so that an early Ctrl-C is caught, too.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

from skyserve_exec.client.command_line import CommandLine, Interrupted, ReaderGone, exit_code_of
from skyserve_exec.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE, SkyserveError

EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


def main() -> NoReturn:
    """Runs the command of sys.argv and ends the process."""
    _have_streams()
    line = CommandLine.of(sys.argv)
    code = run(line)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        code = code or EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    _silence_exit()
    sys.exit(code)


def run(line: CommandLine) -> int:
    """Runs one command; its exit code. Nothing is raised."""
    try:
        return _guarded(line)
    except KeyboardInterrupt:  # a second Ctrl-C while the first one is being answered
        return EXIT_INTERRUPTED


def _guarded(line: CommandLine) -> int:
    try:
        dispatch = importlib.import_module("skyserve_exec.client.cli_root").dispatch
        code: int = dispatch(line)
        sys.stdout.flush()
    except (Interrupted, KeyboardInterrupt) as interrupt:
        line.report_interrupt(interrupt.lines if isinstance(interrupt, Interrupted) else ("Nothing was changed.",))
        code = EXIT_INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        code = EXIT_BROKEN_PIPE
    except SkyserveError as error:
        line.report(error)
        code = exit_code_of(error)
    except SystemExit as leaving:  # completion scripts end like this
        code = leaving.code if isinstance(leaving.code, int) else EXIT_USAGE if leaving.code else 0
    except Exception as error:
        line.report(_internal(error))
        code = EXIT_INTERNAL
    return code


def _internal(error: Exception) -> SkyserveError:
    """A fault of this program, or of the machine: one line; the traceback goes to a file."""
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    else:
        what = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
        return SkyserveError(f"cannot write: {what}", hint="Free some space, or write to another place.")
    with contextlib.suppress(OSError):
        descriptor, name = tempfile.mkstemp(prefix="sky-fault-", suffix=".txt")
        os.close(descriptor)
        Path(name).write_text("".join(traceback.format_exception(error)))
        return SkyserveError(f"unexpected: {what}", hint=f"Details are in {name}; please report this.")
    return SkyserveError(f"unexpected: {what}")


def _have_streams() -> None:
    """A process may be started with closed descriptors; then they must not become somebody's socket."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _silence_exit() -> None:
    """The interpreter flushes once more at its exit, and must not complain about a reader that has gone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
