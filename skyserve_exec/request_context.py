"""Which request this code runs for, and how an operation hands its request off to a tail session.

Room: executor, inside a running operation. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyserve_exec.paths import StateDir


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The request at hand. `resume` is what the operation gave with its HandOff, once that tail has ended."""

    request_id: str
    operation: str
    attempt: int
    user: str
    state_dir: StateDir
    resume: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TailHandOff:
    """Return this from an operation to free the executor: `argv` then writes the request's log until it ends.

    When it has ended the operation is called again with the same arguments and `context.resume == resume`; it decides
    whether the request is over (returns or raises) or goes on (another TailHandOff). EOF alone is never success.
    """

    argv: tuple[str, ...]
    resume: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)  # added to the environment of the server
    cwd: Path = Path("/")
    reason: str = "following"


@dataclass(frozen=True, slots=True)
class ExitCode:
    """Return this from an operation whose request has an exit code of its own, such as a job's."""

    code: int
    result: Any = None


CURRENT: ContextVar[RequestContext] = ContextVar("skyserve_exec_request")


def current_request() -> RequestContext:
    """The request this code runs for.

    Raises:
        LookupError: not called from a running operation.
    """
    return CURRENT.get()
