from __future__ import annotations

import re

import pytest

from skyserve_exec import states
from skyserve_exec.states import ACTIVE, TERMINAL, Cause, Outcome, ScheduleType, Status

ARROW = re.compile(r"^ {4}([A-Z]+|\(submit\)) +-> ([A-Z]+(?: \| [A-Z]+)*)", re.MULTILINE)


def arrows() -> dict[str, set[str]]:
    """The arrows as states.py draws them."""
    found: dict[str, set[str]] = {}
    for old, new in ARROW.findall(states.__doc__ or ""):
        found.setdefault(old, set()).update(new.split(" | "))
    return found


def test_a_status_is_active_or_terminal() -> None:
    assert set(Status) == ACTIVE | TERMINAL
    assert not ACTIVE & TERMINAL
    assert {status for status in Status if status.is_terminal} == TERMINAL


def test_the_drawing_has_every_state_and_no_other() -> None:
    drawn = arrows()
    assert drawn.pop("(submit)") == {Status.PENDING}
    assert set(drawn) == ACTIVE, "arrows leave the active states only: terminal is terminal"
    assert set.union(*drawn.values()) == set(Status)


def test_every_active_state_leads_to_an_end() -> None:
    assert arrows()["RUNNING"] >= TERMINAL
    assert arrows()["PENDING"] == {"RUNNING", "CANCELLED"}


@pytest.mark.parametrize("kind", [Status, ScheduleType, Outcome, Cause])
def test_the_value_is_the_text(kind: type[Status]) -> None:
    for member in kind:
        assert str(member) == member.value
        assert kind(member.value) is member


def test_what_rows_hold() -> None:
    assert [str(status) for status in Status] == ["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]
    assert [str(kind) for kind in ScheduleType] == ["long", "short"]
