"""From the bytes of a POST to a checked payload: models for what is built in, JSON schemas for own operations.

Room: http process, event loop. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import jsonschema_rs
import orjson
from pydantic import BaseModel, ValidationError

from skyserve_exec import protocol
from skyserve_exec.errors import BadInput, TooLarge, UnsupportedField
from skyserve_exec.operation_table import Operation

MOST_SHOWN = 3
LONGEST_NAME = 80
LONGEST_REASON = 300
FEW_BYTES = 256 * 1024
MOST_VALUES = 250_000
Check = Callable[[bytes], dict[str, Any]]
Place = Sequence[str | int]
Model = TypeVar("Model", bound=BaseModel)


def check_of(operation: Operation) -> Check:
    """What turns a body into this operation's payload; it raises BadInput or UnsupportedField naming the field."""
    if operation.is_own:
        return _schema_check(operation)
    model = model_of(operation)
    return lambda body: checked(model, body).model_dump()


def model_of(operation: Operation) -> type[BaseModel]:
    """The model that the table names."""
    model: type[BaseModel] = getattr(protocol, operation.payload)
    return model


def schema_of(operation: Operation) -> dict[str, Any]:
    """The JSON schema of the payload."""
    return operation.schema if operation.is_own else model_of(operation).model_json_schema()


def checked(model: type[Model], body: bytes) -> Model:
    """The body as this model; an empty body is an empty object.

    Raises:
        BadInput: it does not fit; the message names the field.
        TooLarge: it has more values than any sensible one.
    """
    # Every value costs about a microsecond of the event loop, also those of fields that are unknown.
    if len(body) > FEW_BYTES and sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise TooLarge(f"body: more than {MOST_VALUES} values", hint="/openapi.json describes what it may have.")
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise bad_input(error.errors(include_url=False, include_input=False), model) from None


def bad_input(details: Sequence[Mapping[str, Any]], model: type[BaseModel] | None, where: str = "body") -> BadInput:
    """One error for what pydantic found; `where` names what has no field."""
    lines = [f"{place_name(detail['loc'], where)}: {_reason(detail)}" for detail in details[:MOST_SHOWN]]
    if len(details) > MOST_SHOWN:
        lines.append(f"and {len(details) - MOST_SHOWN} more")
    first = details[0]
    if first["type"] == "extra_forbidden" and model is not None:
        return UnsupportedField("; ".join(lines), hint=_known(first["loc"], model))
    return BadInput("; ".join(lines), hint=f"/openapi.json describes the {where}.")


def place_name(place: Place, where: str = "body") -> str:
    """A field's name as a user writes it: task.resources.cpus, job_ids[2]."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{_printable(part)}" if text else _printable(part)
    return text or where


def _schema_check(operation: Operation) -> Check:
    validator = jsonschema_rs.validator_for(operation.schema)
    known = sorted(operation.schema.get("properties", {}))

    def check(body: bytes) -> dict[str, Any]:
        try:
            payload = orjson.loads(body or b"{}")
        except orjson.JSONDecodeError as error:
            raise BadInput(f"body: not valid JSON: {error}") from None
        if not isinstance(payload, dict):
            raise BadInput("body: a JSON object with the parameters is needed")
        try:
            validator.validate(payload)
        except jsonschema_rs.ValidationError as error:
            raise _schema_error(error, operation, known) from None
        return payload

    return check


def _schema_error(error: jsonschema_rs.ValidationError, operation: Operation, known: list[str]) -> BadInput:
    place, kind = list(error.instance_path), error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        return BadInput(
            f"{place_name([*place, str(kind.property)])}: is required", hint=f"Parameters: {_listed(known)}."
        )
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        name = str(kind.unexpected[0])
        fields = known if not place else []
        return UnsupportedField(
            f"{place_name([*place, name])}: not a parameter of {operation.name}", hint=_suggest(name, fields)
        )
    reason = error.message if len(error.message) <= LONGEST_REASON else f"{error.message[:LONGEST_REASON]}…"
    return BadInput(f"{place_name(place)}: {_printable(reason, LONGEST_REASON + 1)}")


def _reason(detail: Mapping[str, Any]) -> str:
    if detail["type"] == "extra_forbidden":
        return "not a known field"
    if detail["type"] == "missing":
        return "is required"
    message = detail["msg"].removeprefix("Value error, ")
    return _printable(message[:1].lower() + message[1:], LONGEST_REASON)


def _known(place: Place, model: type[BaseModel]) -> str:
    fields: Iterable[str] = model.model_fields
    for part in place[:-1]:
        inner = _model_in(model.model_fields[part].annotation) if part in model.model_fields else None
        if inner is None:
            break
        model, fields = inner, inner.model_fields
    return _suggest(str(place[-1]), sorted(fields))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _suggest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name[:LONGEST_NAME], known, n=1)
    return (f"Did you mean {near[0]}? " if near else "") + f"Known: {_listed(known)}."


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _printable(text: str, longest: int = LONGEST_NAME) -> str:
    """On one line, without control characters, not endless."""
    shown = text if len(text) <= longest else f"{text[:longest]}…"
    return shown if shown.isprintable() else ascii(shown)[1:-1]
