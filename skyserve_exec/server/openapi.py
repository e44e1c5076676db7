"""The OpenAPI document: FastAPI's own, with the payloads of the operations put where a strict reader looks for them.

Room: http process. Pure.
"""

from __future__ import annotations

from typing import Any

from skyserve_exec.operation_table import Operation
from skyserve_exec.protocol import ErrorAnswer, Record, Submitted
from skyserve_exec.server.payloads import schema_of

COMPONENTS = "#/components/schemas/"
BEARER = {"type": "http", "scheme": "bearer", "description": "The token in the file 'token' of the state directory."}
PREFER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "wait=SECONDS: answer 200 with the record when the request ends in time.",
}
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 255},
    "description": "The same POST with the same key is the same request.",
}
REQUEST_ID = {"X-Skypilot-Request-ID": {"description": "Id of the request.", "schema": {"type": "string"}}}
OPEN_PATHS = ("/livez", "/readyz")


def operation_responses() -> dict[int | str, dict[str, Any]]:
    """The answers of POST /<operation>."""
    return {
        200: {"model": Record, "description": "It has ended within the time to wait.", "headers": REQUEST_ID},
        202: {"model": Submitted, "description": "It is committed.", "headers": REQUEST_ID},
        "default": {"model": ErrorAnswer, "description": "Nothing was started."},
    }


def body_of(schema_name: str) -> dict[str, Any]:
    """The description of a JSON body."""
    content = {"application/json": {"schema": {"$ref": COMPONENTS + schema_name}}}
    return {"requestBody": {"required": True, "content": content}}


def payload_name(operation: Operation) -> str:
    """The name of an operation's payload among the components."""
    return operation.payload or f"own.{operation.name}"


def hoisted(name: str, schema: dict[str, Any], *, prefix: str) -> dict[str, Any]:
    """The schema and its definitions as components; `prefix` keeps the definitions of own operations apart."""
    inner = schema.get("$defs", {})
    names = {f"#/$defs/{each}": f"{COMPONENTS}{prefix}{each}" for each in inner}
    outer = {key: value for key, value in schema.items() if key != "$defs"}
    return {name: _renamed(outer, names)} | {f"{prefix}{each}": _renamed(inner[each], names) for each in inner}


def completed(document: dict[str, Any], operations: dict[str, Operation], more: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's document with payload schemas and the token; `more`: further schemas by name."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for operation in operations.values():
        name = payload_name(operation)
        schemas |= hoisted(name, schema_of(operation), prefix=f"{name}." if operation.is_own else "")
    for name, schema in more.items():
        schemas |= hoisted(name, schema, prefix="")
    document["components"]["securitySchemes"] = {"token": BEARER}
    document["security"] = [{"token": []}]
    for path in OPEN_PATHS:
        for described in document["paths"][path].values():
            described["security"] = []
    return document


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: names.get(inner, inner) if key == "$ref" and isinstance(inner, str) else _renamed(inner, names)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return value
