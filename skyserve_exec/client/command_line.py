"""One command's surroundings: what was asked for, the client for it, and where its words go.

Results go to stdout; everything else goes to stderr. With `-o json` stdout has JSON and nothing else.

Room: the command line, main thread.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from skyserve_exec import errors, settings
from skyserve_exec.errors import RequestFailed, RequestWasCancelled, SkyserveError

if TYPE_CHECKING:
    from skyserve_exec.client.sdk import Client

BOLD, RED, YELLOW, DIM = "1", "1;31", "33", "2"


class Interrupted(BaseException):
    """Ctrl-C, with what the user should know now."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self.lines = tuple(lines)


class ReaderGone(BaseException):
    """Whoever read our output has gone: nothing is left to say, and nobody to say it to."""


@dataclass(slots=True)
class CommandLine:
    """What this call of `sky` was told. `after_dashes` are the words after the first `--`, if there is one."""

    program: str
    arguments: tuple[str, ...]
    after_dashes: tuple[str, ...] | None
    endpoint: str | None = None
    state_dir: str | None = None
    wants_json: bool = False

    @classmethod
    def of(cls, argv: Sequence[str]) -> CommandLine:
        arguments = tuple(argv[1:])
        dashes = arguments.index("--") if "--" in arguments else None
        name = Path(argv[0]).name if argv else "sky"
        program = name if name in {"sky", "skyserve-exec"} else "sky"
        return cls(program, arguments, None if dashes is None else arguments[dashes + 1 :])

    def client(self) -> Client:
        """The SDK's client for the server this command is about.

        Raises:
            ServerNotRunning, BadInput: there is none to talk to.
        """
        sdk = importlib.import_module("skyserve_exec.client.sdk")  # help and usage errors do without HTTP
        client: Client = sdk.Client(self.endpoint, state_dir=self.state_dir, notify=self.note)
        return client

    def note(self, text: str) -> None:
        """Something to know, for people: on stderr."""
        write(sys.stderr, paint(clean(text), DIM, sys.stderr) + "\n")

    def warn(self, text: str) -> None:
        write(sys.stderr, paint("Warning: ", YELLOW, sys.stderr) + clean(text) + "\n")

    def say(self, text: str) -> None:
        """The outcome, for people: on stdout, or on stderr when stdout is for JSON."""
        write(sys.stderr if self.wants_json else sys.stdout, clean(text) + "\n")

    def print_json(self, value: Any) -> None:
        is_unicode = (sys.stdout.encoding or "").lower() in {"utf-8", "utf8"}
        write(sys.stdout, json.dumps(value, indent=2, ensure_ascii=not is_unicode) + "\n")

    def report(self, error: SkyserveError) -> None:
        """An error: one line and a hint on stderr, and its JSON on stdout where JSON was asked for."""
        if self.wants_json:
            with contextlib.suppress(OSError):
                self.print_json(error_json(error))
        with contextlib.suppress(OSError):
            write(sys.stderr, paint("Error: ", RED, sys.stderr) + clean(error.message) + "\n")
            if error.hint:
                write(sys.stderr, paint("Hint: ", BOLD, sys.stderr) + clean(error.hint) + "\n")

    def report_interrupt(self, lines: Sequence[str]) -> None:
        """What Ctrl-C means here. A second Ctrl-C must not cut it short."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            write(sys.stderr, "\n" + "".join(f"{clean(line)}\n" for line in lines))

    def may_ask(self) -> bool:
        """Whether there is a person who could answer."""
        return sys.stdin.isatty() and sys.stderr.isatty()


@contextlib.contextmanager
def on_interrupt(lines: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Turns Ctrl-C into an explanation, made when it happens."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(lines()) from None


def exit_code_of(error: SkyserveError) -> int:
    """The process's exit code for an error.

    A request that failed with an error of ours, such as NotFound, counts as if the server had answered so at once.
    """
    kind = _kind_of(error)
    is_own = kind is type(error) or kind.exit_code == errors.EXIT_INTERNAL
    return error.exit_code if is_own else kind.exit_code


def error_json(error: SkyserveError) -> dict[str, Any]:
    """The JSON of an error; of a failed request with its record."""
    body = error.to_json()
    if isinstance(error, RequestFailed):
        body["error"] |= {"type": _kind_of(error).__name__, "record": error.record}
    return body


def _kind_of(error: SkyserveError) -> type[SkyserveError]:
    if isinstance(error, RequestFailed) and not isinstance(error, RequestWasCancelled):
        kind = getattr(errors, str(error.error.get("type")), None)
        if isinstance(kind, type) and issubclass(kind, SkyserveError):
            return kind
    return type(error)


def paint(text: str, style: str, stream: TextIO) -> str:
    """The text in a colour where the stream is a terminal that takes it."""
    return f"\x1b[{style}m{text}\x1b[0m" if takes_colour(stream) else text


def takes_colour(stream: TextIO) -> bool:
    return stream.isatty() and settings.wants_colour()


def clean(text: str) -> str:
    """One line without control characters: what others wrote must not drive the terminal."""
    line = " ".join(text.split()) if "\n" in text or "\r" in text else text
    return "".join(char if char.isprintable() or char == " " else ascii(char)[1:-1] for char in line)


def write(stream: TextIO, text: str) -> None:
    """Writes and flushes; what the stream's encoding cannot show is replaced."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def write_bytes(descriptor: int, data: bytes) -> None:
    """Writes all of it at once and unbuffered, also to a descriptor that somebody has made non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
