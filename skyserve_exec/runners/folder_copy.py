"""Copies a folder into another one on the same machine, writing only what differs.

The target may hold links that lead out of it, made by jobs: nothing is ever written or removed through a link.

Room: executor. Blocks on the disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from skyserve_exec.errors import BadInput, Conflict, DiskFull
from skyserve_exec.runners.command_runner import Copied
from skyserve_exec.runners.ignore_rules import Rule, is_ignored, parse

IGNORE_FILES = (".skyignore", ".gitignore")
PART = ".part-of-copy"
LIST_SEPARATOR = b"\0"


class FolderCopy:
    """One copy. `list_path` is where it remembers what it has written, so that a later copy removes only that."""

    def __init__(self, source: Path, target: Path, list_path: Path, keep_out: Path) -> None:
        self.source = source
        self.target = target
        self.list_path = list_path
        self.keep_out = _identity(keep_out)
        self.names = tuple(name for name in IGNORE_FILES if (source / name).is_file())[:1] or IGNORE_FILES[1:]
        self.counts = Copied()
        self.present: set[str] = set()

    def run(self) -> Copied:
        """Does it.

        Raises:
            BadInput, Conflict, DiskFull: as copy_folder of the runner says.
        """
        if not self.source.is_dir():
            raise BadInput(f"workdir: {self.source} is not a directory", hint="Give the path of a directory.")
        if self.keep_out is not None and self.keep_out in map(_identity, (self.source, *self.source.parents)):
            raise BadInput(f"workdir: {self.source} is inside the server's state directory", hint="Copy another one.")
        before = self._listed()
        try:
            self.target.mkdir(mode=0o700, exist_ok=True)
            for path, entry in self._walk("", ()):
                self._copy(path, entry)
            self._remove(before - self.present)
        except OSError as error:
            raise _named(error, self.source) from None
        finally:
            # Also half-way: what was written must be known to the next copy.
            self._remember(before)
        return self.counts

    def _walk(self, folder: str, rules: tuple[Rule, ...]) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """What is to be copied, folders before what is in them. `folder` is relative and empty or ends with a slash."""
        rules += tuple(self._rules_in(folder))
        try:
            entries = sorted(os.scandir(self.source / folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return  # removed while we copy
        for entry in entries:
            path = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_ignored(path, is_folder, rules):
                self._count(ignored=1)
            elif not is_folder:
                yield path, entry
            elif _identity(Path(entry.path)) != self.keep_out or self.keep_out is None:
                yield path, entry
                yield from self._walk(path + "/", rules)

    def _rules_in(self, folder: str) -> Iterator[Rule]:
        for name in self.names:
            try:
                text = (self.source / folder / name).read_text(errors="surrogateescape")
            except (FileNotFoundError, IsADirectoryError):
                continue
            yield from parse(text, folder)

    def _copy(self, path: str, entry: os.DirEntry[str]) -> None:
        target = self.target / path
        try:
            wanted = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(wanted.st_mode):
                _make_folder(target, wanted)
            elif stat.S_ISLNK(wanted.st_mode):
                self._copy_link(Path(entry.path), target)
            elif stat.S_ISREG(wanted.st_mode):
                self._copy_file(Path(entry.path), target, wanted)
            else:
                self._count(skipped=1)
                return
        except FileNotFoundError:
            if os.path.lexists(entry.path):
                raise
            return  # removed while we copy
        self.present.add(path)

    def _copy_link(self, source: Path, target: Path) -> None:
        goal = source.readlink()
        if target.is_symlink() and target.readlink() == goal:
            self._count(unchanged=1)
            return
        _make_way(target)
        target.symlink_to(goal)
        self._count(files=1)

    def _copy_file(self, source: Path, target: Path, wanted: os.stat_result) -> None:
        if _is_same(target, wanted):
            self._count(unchanged=1)
            return
        _make_way(target, but_file=True)
        part = target.with_name(f".{target.name[:200]}{PART}")
        try:
            shutil.copyfile(source, part)
            part.chmod(stat.S_IMODE(wanted.st_mode))
            os.utime(part, ns=(wanted.st_atime_ns, wanted.st_mtime_ns))
            # A job that has the old file open keeps it whole.
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        self._count(files=1, bytes=wanted.st_size)

    def _remove(self, paths: set[str]) -> None:
        """Removes what an earlier copy wrote, deepest first; folders only when nothing of others is in them."""
        top = self.target.resolve()
        for path in sorted(paths, reverse=True):
            target = self.target / path
            if target.parent.resolve() != top / Path(path).parent or not os.path.lexists(target):
                continue  # a link is in between by now, or somebody removed it
            if target.is_dir() and not target.is_symlink():
                try:
                    target.rmdir()
                except OSError:
                    continue
            else:
                target.unlink()
            self._count(removed=1)

    def _listed(self) -> set[str]:
        try:
            return {os.fsdecode(name) for name in self.list_path.read_bytes().split(LIST_SEPARATOR) if name}
        except FileNotFoundError:
            return set()

    def _remember(self, before: set[str]) -> None:
        there = self.present | {path for path in before if os.path.lexists(self.target / path)}
        part = self.list_path.with_name(self.list_path.name + PART)
        try:
            part.write_bytes(LIST_SEPARATOR.join(map(os.fsencode, sorted(there))))
            part.replace(self.list_path)
        except OSError as error:
            raise _named(error, self.source) from None

    def _count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + count for name, count in more.items()})


def _make_folder(target: Path, wanted: os.stat_result) -> None:
    if target.is_symlink() or not target.is_dir():
        _make_way(target)
        target.mkdir()
    # Ours to write in, whatever the source says.
    target.chmod(stat.S_IMODE(wanted.st_mode) | stat.S_IRWXU)


def _make_way(target: Path, *, but_file: bool = False) -> None:
    """Removes what is where something of another kind shall be; a folder only when it is empty."""
    if not os.path.lexists(target) or (but_file and target.is_file() and not target.is_symlink()):
        return
    if target.is_symlink() or not target.is_dir():
        target.unlink()
        return
    try:
        target.rmdir()
    except OSError:
        raise Conflict(
            f"workdir: the cluster has a folder {target}, with files in it, where the source has none",
            hint="Remove it there, or take the cluster down and launch it anew.",
        ) from None


def _is_same(target: Path, wanted: os.stat_result) -> bool:
    try:
        found = target.lstat()
    except FileNotFoundError:
        return False
    return (found.st_mode, found.st_size, found.st_mtime_ns) == (wanted.st_mode, wanted.st_size, wanted.st_mtime_ns)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _named(error: OSError, source: Path) -> Exception:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFull(f"workdir: the disk became full while {source} was copied")
    return BadInput(
        f"workdir: {error.filename or source} cannot be copied: {error.strerror}",
        hint="Make it readable, or name it in .skyignore.",
    )
