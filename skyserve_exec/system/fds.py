"""Descriptors: which are open, and closing all but the ones meant to stay.

Room: every process, right after a fork or before an exec.
"""

from __future__ import annotations

import os
import sys


def open_descriptors() -> set[int]:
    """The descriptors of this process."""
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    found = {int(name) for name in os.listdir(folder)}
    # The one that listed the folder is closed again.
    return {number for number in found if _is_open(number)}


def close_all_but(keep: set[int]) -> None:
    """Closes every descriptor that is not in `keep`."""
    for number in open_descriptors() - keep:
        try:
            os.close(number)
        except OSError:
            continue


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
