"""The server's token: made at the first start, readable by its user alone.

Room: serve, at start.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from skyserve_exec.errors import BadInput


def read_or_make(path: Path) -> str:
    """The token in the file; a new one when there is none.

    Raises:
        BadInput: the file is empty, unreadable, or open to others.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(path)
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


def _read(path: Path) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"token: {path} cannot be read: {error}", hint="Make it readable, or remove it.") from None
    if mode & 0o077:
        raise BadInput(
            f"token: {path} can be read by others (mode {mode:04o})",
            hint=f"Make a new one: rm {path}, then start again; or chmod 600 it if nobody has seen it.",
        )
    if not token:
        raise BadInput(f"token: {path} is empty", hint="Remove it; the next start makes a new one.")
    return token
