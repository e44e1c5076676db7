"""Spares commands the library's conversion of values that need none.

typer (since 0.28) converts with pydantic, whose import costs every command 100 ms: also for options that were not given
and for text. What does need a conversion still gets it.

Room: the command line, main thread.
"""

from __future__ import annotations

from typing import Any


def make_quick(command: Any) -> None:
    """Lets the parameters of a command, its help among them, take absent values, defaults and text as they are."""
    get_params, done = command.get_params, set[int]()

    def quick_params(ctx: Any) -> Any:
        params = get_params(ctx)
        for param in params:
            if id(param) not in done:
                done.add(id(param))
                _quicken(param)
        return params

    command.get_params = quick_params


def _quicken(param: Any) -> None:
    descriptor = getattr(param, "type_descriptor", None)
    if descriptor is None:
        return  # an older release: it converts by itself
    convert, is_text = param.process_value, _holds_text(descriptor.annotation)
    is_list = bool(getattr(param, "multiple", False)) or getattr(param, "nargs", 1) != 1

    def process(ctx: Any, value: Any) -> Any:
        given = not (value is None or value == () or value is param.default)
        if param.required and not given:
            return convert(ctx, value)
        if given and not (is_text and _is_text(value)):
            return convert(ctx, value)
        quick = () if value is None and is_list else value
        return quick if param.callback is None else param.callback(ctx, param, quick)

    param.process_value = process


def _holds_text(annotation: Any) -> bool:
    return annotation is str or annotation == list[str]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(each, str) for each in value))
