"""A lock on a file that the kernel frees when its holder dies (flock(2)): the file's existence means nothing.

Room: serve holds one for life; clients look.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class LockHeld(Exception):
    """Another process holds the lock."""


class Lock:
    """An exclusive lock, held from `take` to `release` or the process's death; not inherited by children."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> None:
        """Takes the lock without waiting.

        Raises:
            LockHeld: somebody else has it.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LockHeld(str(self.path)) from None
        self._descriptor = descriptor

    def release(self) -> None:
        # The file stays: unlinking a lock file lets two processes hold two locks of one name.
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock now.

    Looks with a shared lock for an instant: a taker that meets it must try again.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
