"""Everything the request and its children print, into its log file.

Room: executor process. Works on descriptors 1 and 2, so children that inherit them are caught as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO, TextIOWrapper

from skyserve_exec.system.deathwatch import flush_c_streams


@contextmanager
def captured_output(log_path: str) -> Iterator[None]:
    """Sends descriptors 1 and 2 to the log until the block ends."""
    saved = os.dup(1), os.dup(2)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    stdin = sys.stdin
    set_up_streams()  # a former request may have closed or replaced them, or kept them
    stdout, stderr = sys.stdout, sys.stderr
    try:
        yield
    finally:
        _flush(getattr(sys, "stdout", None), getattr(sys, "stderr", None), stdout, stderr)
        flush_c_streams()
        sys.stdin, sys.stdout, sys.stderr = stdin, stdout, stderr
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        os.close(log)


def set_up_streams() -> None:
    """New text streams over descriptors 1 and 2.

    Whatever is printed is in the log at once, as with python -u: also the part behind the last newline.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = FileIO(number, "w", closefd=False)
        stream = TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def drop_empty_log(log_path: str) -> None:
    """Removes the log of a request that has ended without a word.

    Not before its end: followers have the file open, and what a tail then wrote would go to another one.
    """
    with suppress(FileNotFoundError):
        if os.stat(log_path).st_size == 0:  # noqa: PTH116 (for every request: pathlib costs ten times as much)
            os.unlink(log_path)  # noqa: PTH108


def _flush(*streams: object) -> None:
    for stream in streams:
        # A stream that the operation put there may be closed or broken in its own ways.
        with suppress(Exception):
            stream.flush()  # type: ignore[attr-defined]
