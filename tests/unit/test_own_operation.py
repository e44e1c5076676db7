from __future__ import annotations

from typing import Any

import pytest

from skyserve_exec import operation
from skyserve_exec.errors import BadInput
from skyserve_exec.own_operation import MARK, OwnOperation


def mark_of(function: object) -> OwnOperation:
    found = getattr(function, MARK)
    assert isinstance(found, OwnOperation)
    return found


def test_the_function_stays_a_function() -> None:
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    decorated = operation()(double)
    assert decorated is double
    assert decorated(4) == 8
    assert mark_of(decorated) == OwnOperation("double", "short", restartable=False, deadline=None)


def test_what_the_decorator_is_told() -> None:
    @operation("count_words", schedule_type="long", restartable=True, deadline=60)
    def count(words: list[str]) -> int:
        return len(words)

    assert mark_of(count) == OwnOperation("count_words", "long", restartable=True, deadline=60)


@pytest.mark.parametrize("name", ["Upper", "1st", "with-dash", "a/b", "a b", "_x", "a\n", "", "ä", "x" * 64, "a.b"])
def test_a_name_that_is_no_route_is_refused(name: str) -> None:
    def function() -> None: ...

    function.__name__ = name or "<lambda>"
    with pytest.raises(BadInput, match="operation name"):
        operation(name)(function)
    assert not hasattr(function, MARK)


@pytest.mark.parametrize("name", ["a", "a1_b", "x" * 63])
def test_a_good_name(name: str) -> None:
    def function() -> None: ...

    assert mark_of(operation(name)(function)).name == name


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"schedule_type": "medium"}, "schedule_type must be 'short' or 'long', not 'medium'"),
        ({"schedule_type": None}, "schedule_type"),
        ({"deadline": 0}, "deadline must be a number of seconds above 0"),
        ({"deadline": -1}, "deadline"),
        ({"deadline": float("nan")}, "deadline"),
        ({"deadline": float("inf")}, "deadline"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": True}, "deadline"),
        ({"restartable": "yes"}, "restartable"),
    ],
)
def test_a_wrong_argument_is_named(told: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):

        @operation(**told)
        def some_operation() -> None: ...


def test_the_decorator_without_parentheses_is_explained() -> None:
    def function() -> None: ...

    with pytest.raises(BadInput, match=r"@operation\(\)"):
        operation(function)  # type: ignore[arg-type]
