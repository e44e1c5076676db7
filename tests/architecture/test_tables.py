"""One table each for operations, settings and exit codes: code, command line and documents agree with it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import keyword
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from skyserve_exec import errors, protocol, settings
from skyserve_exec.client import aio, cli_root, sdk
from skyserve_exec.operation_table import BUILTIN, Operation, from_description
from skyserve_exec.own_operation import NAME
from tests.server_under_test import REPOSITORY

DOCS = REPOSITORY / "docs"
ROW = re.compile(r"^\| (\d+) \| `(\w+)` \| ([^|]*) \| ([^|]*)\|$", re.MULTILINE)
each_operation = pytest.mark.parametrize("row", BUILTIN, ids=lambda row: row.name)


def payload_of(row: Operation) -> type[BaseModel]:
    model = getattr(protocol, row.payload)
    assert issubclass(model, protocol.Payload)
    return model  # type: ignore[no-any-return]


def function_of(row: Operation) -> Callable[..., object]:
    module, _, name = row.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    assert callable(function)
    return function  # type: ignore[no-any-return]


def test_operations_have_names_of_their_own() -> None:
    names = [row.name for row in BUILTIN]
    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) for name in names)


@each_operation
def test_an_operation_passes_to_another_process_unchanged(row: Operation) -> None:
    assert from_description(row.describe()) == row
    assert row.help.endswith(".")


@each_operation
def test_payload_fields_are_the_parameters_of_the_function(row: Operation) -> None:
    parameters = inspect.signature(function_of(row)).parameters
    fields = payload_of(row).model_fields
    assert set(parameters) == set(fields)
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values())


def test_every_payload_model_belongs_to_an_operation() -> None:
    models = {name for name in vars(protocol) if name.endswith("Payload") and name != "Payload"}
    assert models == {row.payload for row in BUILTIN}


def test_settings_are_the_table() -> None:
    assert [row.name for row in settings.TABLE] == [field.name for field in dataclasses.fields(settings.Settings)]
    assert [row.type.__name__ for row in settings.TABLE] == [
        field.type for field in dataclasses.fields(settings.Settings)
    ]
    assert len({row.env for row in settings.TABLE}) == len(settings.TABLE)


def test_settings_and_what_clients_read_do_not_share_a_variable() -> None:
    source = Path(settings.__file__).read_text()
    client_variables = set(re.findall(r"environ\.get\(\"(\w+)\"\)", source))
    assert client_variables
    assert not client_variables & {row.env for row in settings.TABLE}


def test_the_page_of_settings_is_up_to_date() -> None:
    check = [sys.executable, str(DOCS / "make_settings.py"), "--check"]
    done = subprocess.run(check, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_exit_codes_and_errors_are_documented() -> None:
    documented = {name: int(code) for code, name, _, _ in ROW.findall((DOCS / "exit-codes.md").read_text())}
    assert documented == {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    by_code = {
        int(code): set(re.findall(r"`(\w+)`", kinds))
        for code, _, _, kinds in ROW.findall((DOCS / "exit-codes.md").read_text())
    }
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.SkyserveError):
            assert name in by_code[kind.exit_code], f"{name} has exit code {kind.exit_code}"


def test_every_error_is_in_the_drawing_and_says_what_it_means() -> None:
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.SkyserveError | errors.RequestInterrupted):
            assert kind.__doc__, name
            assert name in (errors.__doc__ or "") or issubclass(kind, errors.RequestInterrupted), name


def test_settings_are_the_options_of_start() -> None:
    start = cli_root.load(next(row for row in cli_root.API_COMMANDS if row.name == "start"))
    names = {name for option in start.params for name in (*option.opts, *option.secondary_opts)}
    switches = {f"--no-{row.option[2:]}" for row in settings.TABLE if row.type is bool}
    assert names - {"--foreground", "--endpoint"} == {row.option for row in settings.TABLE} | switches


def test_every_command_can_be_loaded_and_has_help() -> None:
    for row in (*cli_root.COMMANDS, *cli_root.API_COMMANDS):
        command = cli_root.load(row)
        assert command.name == row.name
        assert command.help
        assert all(option.help for option in command.params if option.param_type_name == "option"), row.name


@each_operation
def test_an_operation_has_a_command_and_methods_with_its_fields(row: Operation) -> None:
    assert row.name in {command.name for command in cli_root.COMMANDS}
    method = f"{row.name}_" if keyword.iskeyword(row.name) or row.name == "exec" else row.name
    for client in (sdk.Client, aio.AsyncClient):
        parameters = set(inspect.signature(getattr(client, method)).parameters) - {"self", "idempotency_key"}
        assert parameters == {"all_jobs" if name == "all" else name for name in payload_of(row).model_fields}
