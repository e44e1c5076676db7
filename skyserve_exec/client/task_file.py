"""Reads a task: a YAML file, or the words of a command. Faults name the file, the line and the field.

Room: the command line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from skyserve_exec import protocol
from skyserve_exec.errors import BadInput, UnsupportedField

MAX_BYTES = 4 * 1024 * 1024
Lines = dict[tuple[str, ...], int]  # where a field is, by its path


def from_command(words: Sequence[str]) -> dict[str, Any]:
    """The task that runs these words; a single word is a shell line of its own."""
    return {"run": words[0] if len(words) == 1 else shlex.join(words)}


def from_yaml(path: Path) -> tuple[dict[str, Any], Lines]:
    """The fields of a task file, and the line each is on.

    Raises:
        BadInput: the file cannot be read, or is not one YAML mapping.
    """
    text = _read(path)
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        if len(nodes) > 1:
            line = nodes[1].start_mark.line + 1
            raise BadInput(f"{path} line {line}: a second task begins here", hint="One file holds one task.")
        lines: Lines = {}
        if nodes:
            _collect(nodes[0], (), lines, path)
        fields = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}" if mark else ""
        raise BadInput(f"{path}{where}: {error.problem or error.context or 'not YAML'}", hint=_YAML_HINT) from None
    except yaml.YAMLError as error:
        raise BadInput(f"{path}: {' '.join(str(error).split())}", hint=_YAML_HINT) from None
    except (RecursionError, ValueError) as error:
        raise BadInput(f"{path}: {error}", hint=_YAML_HINT) from None
    if fields is None:
        raise BadInput(f"{path}: the file is empty", hint="A task needs at least: run: COMMAND")
    if not isinstance(fields, dict):
        raise BadInput(f"{path} line 1: a task is a mapping, not a {_kind(fields)}", hint="Such as: run: echo hello")
    return {str(name): value for name, value in fields.items()}, lines


_YAML_HINT = "A task file is YAML, such as:  run: echo hello"


def environment(words: Sequence[str], own: Mapping[str, str]) -> dict[str, str]:
    """The variables of --env: NAME=VALUE, or NAME for its value in this environment.

    Raises:
        BadInput: a word is neither.
    """
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name not in own:
            raise BadInput(f"--env {word}: no such variable in this environment", hint="Write --env NAME=VALUE.")
        if not name:
            raise BadInput(f"--env {word}: the name is missing", hint="Write --env NAME=VALUE.")
        values[name] = value if equals else own[name]
    return values


def completed(
    fields: Mapping[str, Any], envs: Mapping[str, str], *, name: str | None, resources: Mapping[str, Any]
) -> dict[str, Any]:
    """The task with the command line's additions. Scalars in envs and secrets become text, as in a shell.

    Raises:
        BadInput: a variable has no value.
    """
    task = dict(fields)
    for section in ("envs", "secrets"):
        if isinstance(task.get(section), dict):
            task[section] = {str(key): _text(value) for key, value in task[section].items()}
    if envs:
        known = task.get("secrets")
        secret = {key: value for key, value in envs.items() if isinstance(known, dict) and key in known}
        if secret:
            task["secrets"] = {**task["secrets"], **secret}
        plain = {key: value for key, value in envs.items() if key not in secret}
        task["envs"] = {**(task.get("envs") or {}), **plain} if plain else task.get("envs")
    if name is not None:
        task["name"] = name
    given = {key: value for key, value in resources.items() if value is not None}
    if given:
        task["resources"] = {**(task.get("resources") or {}), **given}
    return {key: value for key, value in task.items() if value is not None}


def checked(task: dict[str, Any], *, source: str, lines: Lines, is_local: bool) -> dict[str, Any]:
    """The task with an absolute workdir, if a server would take it.

    Args:
        is_local: the server is on this machine, so the workdir can be looked at.

    Raises:
        BadInput: it would not; the message names the file, the line and the field.
    """
    for section in ("envs", "secrets"):
        for key, value in (task.get(section) or {}).items() if isinstance(task.get(section), dict) else ():
            if value is None:
                where = _place(source, lines, (section, key))
                raise BadInput(f"{where}{section}.{key} has no value", hint=f"Give it one: --env {key}=VALUE")
    workdir = task.get("workdir")
    if isinstance(workdir, str) and workdir:
        task = task | {"workdir": str(Path(workdir).expanduser().absolute())}
    try:
        protocol.Task.model_validate(task)
    except ValidationError as error:
        raise _fault(error, source, lines) from None
    if is_local and "workdir" in task and not Path(task["workdir"]).is_dir():
        what = "is not a directory" if Path(task["workdir"]).exists() else "does not exist"
        raise BadInput(
            f"{_place(source, lines, ('workdir',))}workdir: {task['workdir']} {what}",
            hint="It is copied to the cluster before the task runs; a relative path starts in the current directory.",
        )
    return task


def check_cluster(name: str | None) -> None:
    """Checks a cluster's name before anything is started for it.

    Raises:
        BadInput: no cluster can have this name.
    """
    if name is not None and not re.fullmatch(protocol.NAME_PATTERN, name):
        raise BadInput(
            f"cluster: {name!a} cannot be a cluster's name",
            hint="A letter, then letters, digits, '.', '_' and '-'; at most 60; a letter or digit at the end.",
        )


def _fault(error: ValidationError, source: str, lines: Lines) -> BadInput:
    first = error.errors(include_url=False, include_input=False)[0]
    path = tuple(str(part) for part in first["loc"] if part != "[key]")
    where, name = _place(source, lines, path), ".".join(path) or "task"
    if first["type"] == "extra_forbidden":
        model = protocol.Resources if path[0] == "resources" else protocol.Task
        return UnsupportedField(
            f"{where}{name}: this field is not supported", hint=f"Supported: {', '.join(model.model_fields)}."
        )
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return BadInput(f"{where}{name}: {message[:1].lower()}{message[1:]}", hint="See the task file's documentation.")


def _place(source: str, lines: Lines, path: tuple[str, ...]) -> str:
    if not source:
        return ""
    while path and path not in lines:
        path = path[:-1]
    return f"{source} line {lines[path]}: " if path else f"{source}: "


def _collect(node: yaml.Node, path: tuple[str, ...], lines: Lines, file: Path) -> None:
    """Notes the line of every field, and refuses a field that is given twice: the first would silently be lost."""
    if not isinstance(node, yaml.MappingNode) or len(path) > 8:
        return
    seen: set[str] = set()
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            raise BadInput(f"{file} line {line}: {'.'.join((*path, name))} is given twice", hint="Remove one of them.")
        seen.add(name)
        lines[(*path, name)] = line
        _collect(value, (*path, name), lines, file)


def _read(path: Path) -> str:
    try:
        if path.is_dir():
            raise BadInput(f"{path}: is a directory", hint="Pass a task file, or a command: sky launch -- COMMAND")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(
            f"{path}: no such file", hint="Pass a task file, or a command after two dashes: sky launch -- COMMAND"
        ) from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}", hint="Pass a task file.") from None
    if len(data) > MAX_BYTES:
        raise BadInput(f"{path}: larger than {MAX_BYTES} bytes", hint="Pass a task file.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadInput(f"{path} line {line}: not UTF-8 text", hint="Save the file as UTF-8.") from None


def _text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _kind(value: object) -> str:
    return {list: "list", str: "text", int: "number", float: "number", bool: "truth value"}.get(type(value), "scalar")
