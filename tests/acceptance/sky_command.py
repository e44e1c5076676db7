"""Runs the real command `sky`, as a process with a home of its own: piped, or on a terminal."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pexpect

from tests.processes import kill_all, marked
from tests.server_under_test import Server, environment
from tests.waiting import wait_until

SKY = str(Path(sys.executable).parent / "sky")
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Done:
    """One command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(slots=True)
class Sky:
    """Where the commands of a test run: a home, a state directory, a mark to find what they leave behind."""

    home: Path
    state_dir: Path
    mark: str = field(default_factory=lambda: str(uuid.uuid4()))
    more: Mapping[str, str] = field(default_factory=dict)

    def env(self, **more: str) -> dict[str, str]:
        told = {"SKYSERVE_STATE_DIR": str(self.state_dir), "SKYSERVE_PORT": "0", "TERM": "xterm", **self.more}
        return environment(self.mark, self.home, told | more)

    def run(
        self, *words: str, code: int | None = 0, timeout: float = SECONDS, tracebacks: bool = False, **more: str
    ) -> Done:
        """Runs `sky WORDS` without a terminal; fails when it ends with another exit code.

        `tracebacks` are allowed only where they are what a user's own operation has printed.
        """
        process = self.popen(*words, **more)
        out, err = process.communicate(timeout=timeout)
        done = Done(process.returncode, out.decode(), err.decode())
        assert tracebacks or "Traceback" not in done.out + done.err, done
        assert code is None or done.code == code, done
        return done

    def json(self, *words: str, code: int | None = 0) -> Any:
        """The JSON that `sky WORDS -o json` prints, and nothing else."""
        return self.run(*words, "-o", "json", code=code).json

    def popen(self, *words: str, **more: str) -> subprocess.Popen[bytes]:
        """Starts `sky WORDS` without a terminal."""
        return subprocess.Popen(
            [SKY, *words],
            cwd=self.home,
            env=self.env(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def terminal(self, *words: str, **more: str) -> pexpect.spawn:
        """Starts `sky WORDS` on a terminal of its own."""
        return pexpect.spawn(
            SKY, list(words), cwd=str(self.home), env=self.env(**more), timeout=30, dimensions=(40, 160)
        )


def rest_of(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What a process still prints until its end, after some of it was read by line."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        out, err = process.stdout.read(), process.stderr.read()
    process.wait(SECONDS)
    return out, err


def ended(terminal: pexpect.spawn) -> tuple[int, str]:
    """The exit code of a command on a terminal, and the rest of what it has shown."""
    terminal.expect(pexpect.EOF)
    rest = (terminal.before or b"").decode(errors="replace")
    terminal.close()
    assert "Traceback" not in rest
    return (128 + terminal.signalstatus if terminal.exitstatus is None else terminal.exitstatus), rest


def sky_for(server: Server) -> Sky:
    """Commands for a server that a test has started."""
    return Sky(server.state_dir.parent, server.state_dir, server.mark)


@contextlib.contextmanager
def own_home(directory: Path, **more: str) -> Iterator[Sky]:
    """A home without a server; what its commands started is ended afterwards, and reported."""
    directory.mkdir(exist_ok=True)
    sky = Sky(directory, directory / "state", more=more)
    try:
        yield sky
        sky.run("down", "-a", code=None)
        sky.run("api", "stop", "--timeout", "20")
        wait_until(lambda: not marked(sky.mark), what="every process of the test has ended", seconds=10)
    finally:
        kill_all(marked(sky.mark))
