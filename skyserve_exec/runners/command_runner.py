"""The interface of a place where commands run.

Commands are argument vectors, never shell text; they get no terminal and nothing to read but `stdin`, so none prompts.

Room: executor, inside a running operation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended. `code` is its exit code, 128+N when signal N ended it."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """The last line of its stderr, for an error message."""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Probe:
    """What a place has. `cpus` may be a fraction; `memory` is in GB."""

    cpus: float
    memory: float
    shell: str


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did. `files` and `bytes` were written; `skipped` are sockets, devices and the like."""

    files: int = 0
    bytes: int = 0
    unchanged: int = 0
    removed: int = 0
    ignored: int = 0
    skipped: int = 0


class CommandRunner(ABC):
    """One place. `python` is its interpreter, 3.8 or newer."""

    python: str

    @abstractmethod
    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        detached: bool = False,
    ) -> Finished:
        """Runs a command to its end and captures its output; `timeout` is in seconds.

        When this is interrupted or takes too long, the command's whole process tree is ended. `detached`: what the
        command leaves behind on purpose outlives the server.

        Raises:
            Unavailable: it took longer than `timeout`.
            NotFound: there is no such program.
        """

    @abstractmethod
    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """As `run`, but the output goes where this process's own goes, live; returns the exit code."""

    @abstractmethod
    def start_detached(self, argv: Sequence[str], *, log: str, env: Mapping[str, str] | None = None) -> int:
        """Starts a command that outlives this process and the server; its output is appended to the file `log`.

        Returns its pid at that place.
        """

    @abstractmethod
    def follow_argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The vector that runs a command there for a tail session, which has no runner at hand."""

    @abstractmethod
    def write_files(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Makes the files (paths relative to the folder, mode 0600) be there with this content, each in one step."""

    @abstractmethod
    def copy_folder(self, source: Path, target: str, *, keep_out: Path) -> Copied:
        """Makes `target` hold what `source`, on this machine, holds, writing only what differs.

        What is named in .skyignore (if the source has one, else .gitignore) is left out, and so is the folder
        `keep_out`. Symbolic links are copied as links. What an earlier copy wrote and the source no longer has is
        removed; what others wrote into `target` stays.

        Raises:
            BadInput: the source cannot be read; the message names the path.
            Conflict: something of others in `target` is in the way.
            DiskFull: no space; a later copy goes on from there.
        """

    @abstractmethod
    def remove_folder(self, folder: str) -> None:
        """Removes it with all that is in it; links are removed, not followed. No error when it is not there."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether something is there."""

    @abstractmethod
    def probe(self) -> Probe:
        """What the place has."""
