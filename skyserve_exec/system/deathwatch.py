"""Children that do not outlive their parent, and parents that inherit their orphans (Linux prctl(2)).

Room: every process. Elsewhere than on Linux these calls do nothing: the end of file on a channel is the second line.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int) -> None:
    """Ends this process by SIGKILL when the *thread* that created it ends (PR_SET_PDEATHSIG counts threads).

    Checks the parent afterwards, since a parent that died before the call sends nothing. Exits at once in that case.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def outlive_parent(parent: int) -> None:
    """From now on this process has something to clean up when its parent dies; exits when it has died already."""
    _prctl(PR_SET_PDEATHSIG, 0)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process instead of pid 1's (PR_SET_CHILD_SUBREAPER)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def flush_c_streams() -> None:
    """Writes out what C code of this process left in stdio buffers (fflush(3) with NULL)."""
    _libc().fflush(None)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc().prctl(option, value, 0, 0, 0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
