"""Waiting for a condition with a deadline: the only place of the tests that sleeps."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

POLL_SECONDS = 0.01
Seen = TypeVar("Seen")


def wait_until(condition: Callable[[], Seen | None], *, seconds: float = 10.0, what: str) -> Seen:
    """The first true value of `condition`; an AssertionError that says `what` and the last value after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        seen = condition()
        if seen:
            return seen
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}; last seen: {seen!r}")
        time.sleep(POLL_SECONDS)


def wait_gone(found: Callable[[], Collection[object]], *, seconds: float = 10.0, what: str) -> None:
    """Waits until nothing is found any more; the failure shows what still was."""
    left: Collection[object] = ()

    def gone() -> bool:
        nonlocal left
        left = found()
        return not left

    try:
        wait_until(gone, seconds=seconds, what=what)
    except AssertionError:
        raise AssertionError(f"not gone within {seconds:g} s: {what}; left: {left}") from None


def stays_so(condition: Callable[[], object], *, seconds: float, what: str) -> None:
    """Asserts that `condition` stays true for `seconds`: for what must *not* happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seen = condition()
        assert seen, f"did not stay so for {seconds:g} s: {what}; seen: {seen!r}"
        time.sleep(POLL_SECONDS)


def pause(seconds: float) -> None:
    """A random gap between two steps of a race; never used to wait for something."""
    if seconds > 0:
        time.sleep(seconds)


def seeded_rounds(rounds: int) -> Iterator[random.Random]:
    """One random generator a round; the seed is printed, and SKYSERVE_TEST_SEED sets it."""
    seed = int(os.environ.get("SKYSERVE_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"SKYSERVE_TEST_SEED={seed}")
    for number in range(rounds):
        yield random.Random(f"{seed}:{number}")
