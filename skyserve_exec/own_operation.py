"""The decorator that makes a user's function an operation.

    from skyserve_exec import operation

    @operation(schedule_type="short", restartable=True, deadline=60)
    def count(words: list[str], least: int = 1) -> dict[str, int]: ...

Room: the user's module, imported by the spawner. No I/O, no registry: the mark stays on the function, where the
spawner finds it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from skyserve_exec.errors import BadInput

MARK = "__skyserve_operation__"
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class OwnOperation:
    """What the decorator was told."""

    name: str
    schedule_type: Literal["short", "long"]
    restartable: bool
    deadline: float | None


def operation(
    name: str | None = None,
    *,
    schedule_type: Literal["short", "long"] = "short",
    restartable: bool = False,
    deadline: float | None = None,
) -> Callable[[Function], Function]:
    """Marks a function as an operation; its parameters are typed by its signature, its result must be JSON.

    Args:
        name: of the operation and its route; the function's own name if not given.
        schedule_type: "short" for seconds, "long" for more: a long one gets a process of its own.
        restartable: run it again when its executor or the server died under it.
        deadline: seconds after which it is interrupted and ends FAILED.

    Raises:
        BadInput: the name or another argument is not valid.
    """

    if callable(name):
        raise BadInput("the operation decorator takes parentheses: @operation()")

    def mark(function: Function) -> Function:
        chosen = name or function.__name__
        if not NAME.fullmatch(chosen):
            raise BadInput(f"operation name {chosen!r}: lower-case letters, digits and _ only, at most 63")
        if schedule_type not in {"short", "long"}:
            raise BadInput(f"operation {chosen}: schedule_type must be 'short' or 'long', not {schedule_type!r}")
        if restartable not in {True, False}:
            raise BadInput(f"operation {chosen}: restartable must be True or False, not {restartable!r}")
        if deadline is not None and not _is_duration(deadline):
            raise BadInput(f"operation {chosen}: deadline must be a number of seconds above 0, not {deadline!r}")
        setattr(function, MARK, OwnOperation(chosen, schedule_type, restartable, deadline))
        return function

    return mark


def _is_duration(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf
