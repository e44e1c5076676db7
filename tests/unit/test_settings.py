from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from skyserve_exec import settings
from skyserve_exec.errors import BadInput


def load(options: dict[str, Any] | None = None, **environ: str) -> settings.Settings:
    return settings.load(options, environ)


def test_defaults_are_the_table() -> None:
    loaded = load()
    for row in settings.TABLE:
        if row.name != "state_dir":
            assert getattr(loaded, row.name) == row.default, row.name
    assert loaded.state_path == Path("~/.sky/api_server").expanduser()


def test_defaults_lie_within_their_bounds() -> None:
    for row in settings.TABLE:
        if isinstance(row.default, int | float) and not isinstance(row.default, bool):
            assert row.low is not None, row.name
            assert row.high is not None, row.name
            assert row.low <= row.default <= row.high, row.name


def test_an_option_wins_over_the_environment_over_the_default() -> None:
    assert load(None, SKYSERVE_PORT="47000").port == 47000
    assert load({"port": 48000}, SKYSERVE_PORT="47000").port == 48000
    assert load({"port": None}, SKYSERVE_PORT="47000").port == 47000


def test_an_option_of_zero_or_false_is_given() -> None:
    assert load({"port": 0, "token": False}, SKYSERVE_PORT="47000", SKYSERVE_REQUIRE_TOKEN="1").port == 0
    assert load({"token": False}).token is False


@pytest.mark.parametrize("row", settings.TABLE, ids=lambda row: row.name)
def test_every_setting_is_read_from_its_variable(row: settings.Setting) -> None:
    text, value = {
        bool: ("off", False),
        int: ("2048", 2048),
        float: ("2.5", 2.5),
        str: ("/some/where", "/some/where"),
    }[row.type]
    if row.high is not None and row.type is int:
        text, value = str(int(row.high)), int(row.high)
    assert getattr(load(None, **{row.env: text}), row.name) == value


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("yes", True), ("0", False), ("Off", False)])
def test_words_for_yes_and_no(text: str, value: bool) -> None:
    assert load(None, SKYSERVE_REQUIRE_TOKEN=text).token is value


def test_a_client_token_in_the_environment_is_no_server_setting() -> None:
    assert load(None, SKYSERVE_TOKEN="s3cret").token is True
    assert settings.token_of({"SKYSERVE_TOKEN": "s3cret"}) == "s3cret"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "http"),
        ("port", "80.5"),
        ("port", 80.5),
        ("port", ""),
        ("port", -1),
        ("port", 65536),
        ("port", math.inf),
        ("token", "perhaps"),
        ("cancel_grace_seconds", "nan"),
        ("cancel_grace_seconds", "inf"),
        ("cancel_grace_seconds", -0.1),
        ("cancel_grace_seconds", "soon"),
        ("http_processes", 0),
        ("long_executors", 10**30),
        ("host", "127.0.0.1\n"),
        ("state_dir", "/tmp/a\x00b"),
        ("operations", "a\x7f"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_setting_and_remedy(name: str, value: object) -> None:
    row = next(row for row in settings.TABLE if row.name == name)
    with pytest.raises(BadInput) as caught:
        load({name: value})
    assert str(caught.value).startswith(f"{name}: ")
    assert "\n" not in str(caught.value)
    assert row.option in caught.value.hint
    assert row.env in caught.value.hint
    if isinstance(value, str) and "\x00" not in value:
        with pytest.raises(BadInput, match=f"^{name}: "):
            load(None, **{row.env: value})


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(BadInput, match=r"^prot: no such setting"):
        load({"prot": 1})


@pytest.mark.parametrize("given", ["relative/place", "~/place", "/absolute/../place"])
def test_the_state_directory_is_absolute(given: str) -> None:
    assert load({"state_dir": given}).state_path.is_absolute()
    assert "~" not in load({"state_dir": given}).state_dir


def test_settings_pass_to_another_process_unchanged() -> None:
    loaded = load({"port": 0, "operations": "a, b.c ,,"}, SKYSERVE_STALL_SECONDS="0.5")
    assert settings.from_json(loaded.to_json()) == loaded
    assert loaded.operation_modules == ("a", "b.c")


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, None),
        ({"SKYSERVE_ENDPOINT": ""}, None),
        ({"SKYPILOT_API_SERVER_ENDPOINT": "http://b"}, "http://b"),
        ({"SKYSERVE_ENDPOINT": "http://a", "SKYPILOT_API_SERVER_ENDPOINT": "http://b"}, "http://a"),
    ],
)
def test_the_endpoint_of_a_client(environ: dict[str, str], endpoint: str | None) -> None:
    assert settings.endpoint_of(environ) == endpoint
