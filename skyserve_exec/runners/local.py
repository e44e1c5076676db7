"""This machine as a place where commands run.

Room: executor, inside a running operation.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from skyserve_exec.runners.child_process import run_child
from skyserve_exec.runners.command_runner import CommandRunner, Copied, Finished, Probe
from skyserve_exec.runners.folder_copy import FolderCopy
from skyserve_exec.system.cgroup import read_limits
from skyserve_exec.system.proctree import DETACHED_MARKER, RUN_MARKER

GIB = 1 << 30
REMOVED_PREFIX = ".removed-"


class LocalRunner(CommandRunner):
    """Commands of this machine, as the server's user."""

    def __init__(self, python: str = sys.executable) -> None:
        self.python = python

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
        # Files and no pipes: nobody waits for a pipe that a survivor holds open, and none can be full.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            descriptors = (given.fileno(), out.fileno(), err.fileno())
            code = run_child(argv, env=_environment(env, detached), cwd=cwd, descriptors=descriptors, timeout=timeout)
            return Finished(code, _content(out), _content(err))

    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        with open(os.devnull, "rb") as null:
            descriptors = (null.fileno(), 1, 2)
            return run_child(argv, env=_environment(env, False), cwd=cwd, descriptors=descriptors, timeout=timeout)

    def start_detached(self, argv: Sequence[str], *, log: str, env: Mapping[str, str] | None = None) -> int:
        # The shell ends at once, which leaves the command to pid 1 or to the nearest subreaper.
        shell = ["/bin/sh", "-c", 'exec 3>&1; exec >>"$0" 2>&1 </dev/null; "$@" 3>&- & echo $! >&3', log, *argv]
        return int(self.run(shell, env=env, detached=True).stdout)

    def follow_argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        return tuple(argv)

    def write_files(self, folder: str, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            path = Path(folder, name)
            if path.is_file() and path.read_bytes() == content:
                continue
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = path.with_name(path.name + ".new")
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            part.replace(path)

    def copy_folder(self, source: Path, target: str, *, keep_out: Path) -> Copied:
        return FolderCopy(source, Path(target), Path(target + ".copied"), keep_out).run()

    def remove_folder(self, folder: str) -> None:
        path = Path(folder)
        # What a killed removal left.
        for old in path.parent.glob(f"{REMOVED_PREFIX}{path.name}"):
            _remove_tree(old)
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            # The name is free at once, and nobody finds half a folder under it.
            _remove_tree(path.rename(path.with_name(REMOVED_PREFIX + path.name)))

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def probe(self) -> Probe:
        limits = read_limits()
        return Probe(limits.cpus, limits.memory / GIB, shutil.which("bash") or "/bin/sh")


def _environment(more: Mapping[str, str] | None, detached: bool) -> dict[str, str]:
    """The server's environment without what the server's processes are told."""
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SKYSERVE_")
        and name != "SPT_NOENV"
        # The bound on an executor's numeric libraries (one thread) is none for what users run.
        and not (name.endswith("_THREADS") and value == "1")
    }
    if detached:
        given[DETACHED_MARKER] = "1"
    elif RUN_MARKER in os.environ:
        given[RUN_MARKER] = os.environ[RUN_MARKER]
    return given | dict(more or {})


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _remove_tree(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except PermissionError:
        # Folders that their owner may not write in, such as a module cache.
        folder.chmod(stat.S_IRWXU)
        for place, names, _files in os.walk(folder):
            for name in names:
                path = Path(place, name)
                if not path.is_symlink():
                    path.chmod(stat.S_IRWXU)
        shutil.rmtree(folder)
