from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from typing import Any

import pytest

from skyserve_exec import messages
from skyserve_exec.messages import Message, decode, encode

ALL = sorted(messages.KINDS.values(), key=lambda kind: kind.__name__)
TEXT = 'line\nquote" back\\slash \x00 \u2028 é 😀'


def example(wanted: Any) -> Any:
    """Some value of a field's type."""
    origin = typing.get_origin(wanted)
    if origin is types.UnionType:
        return example(typing.get_args(wanted)[0])
    if origin is list:
        return [example(typing.get_args(wanted)[0])]
    if origin is dict:
        key, value = typing.get_args(wanted)
        return {example(key): {"any": [1, 2.5, None, True]} if value is Any else example(value)}
    return {int: 7, str: TEXT, float: 1.5, bool: True}[wanted]


def filled(kind: type[Message]) -> Message:
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: example(hints[field.name]) for field in dataclasses.fields(kind)})


def test_every_message_of_the_module_has_its_kind() -> None:
    classes = {
        name
        for name, item in inspect.getmembers(messages, inspect.isclass)
        if issubclass(item, Message) and item is not Message
    }
    assert classes == set(messages.KINDS)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_message_survives_the_way(kind: type[Message]) -> None:
    message = filled(kind)
    assert decode(encode(message)) == message
    assert decode(memoryview(encode(message))) == message


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_message_is_a_frozen_slotted_value(kind: type[Message]) -> None:
    message = filled(kind)
    assert not hasattr(message, "__dict__")
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, field.name, None)
    assert "kind" not in {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_message_says_what_it_means(kind: type[Message]) -> None:
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"kind":"Nonsense"}', b'{"kind":"Leave","more":1}', b"\xff"])
def test_a_frame_of_another_release_raises(data: bytes) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        decode(data)


def test_payload_and_result_are_not_parsed_on_the_way() -> None:
    text = '{"a":  1.0, "b": NaN}'
    submit = messages.Submit(ticket=1, request_id="r", name="n", payload=text, schedule_type="short", user="u")
    passed = decode(encode(submit))
    assert isinstance(passed, messages.Submit)
    assert passed.payload == text
