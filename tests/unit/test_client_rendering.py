"""How things look in a list."""

from __future__ import annotations

import pytest

from skyserve_exec.client import rendering
from skyserve_exec.client.cli_api import seconds_since
from skyserve_exec.client.command_line import CommandLine, clean, exit_code_of
from skyserve_exec.errors import (
    BadInput,
    NotFound,
    RequestFailed,
    RequestWasCancelled,
    SkyserveError,
)


def test_columns_are_aligned_and_nothing_is_cut() -> None:
    text = rendering.plain_table(("A", "LONGER"), [["x" * 30, "1"], ["y", "22"]])
    assert text == f"{'A':30}  LONGER\n{'x' * 30}  1\n{'y':30}  22\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (9.94, "9.9s"), (59, "59s"), (60, "1m"), (95, "1m 35s"), (7265, "2h 1m"), (90000, "1d 1h")],
)
def test_spans(seconds: float, text: str) -> None:
    assert rendering.span(seconds) == text


def test_missing_values_are_dashes_and_control_characters_are_visible() -> None:
    assert [rendering.shown(value) for value in (None, "", 0, False, "a\x1b[31mb")] == [
        "-",
        "-",
        "0",
        "no",
        "a\\x1b[31mb",
    ]


def test_amounts() -> None:
    resources = {"cpus": 2.0, "memory": 1.5, "accelerators": {"A100": 0.5}}
    assert rendering.amounts(resources) == "2 CPUs, 1.5 GB, 0.5 A100"
    assert rendering.amounts({"cpus": 1.0, "H100": 8}) == "1 CPU, 8 H100"
    assert rendering.amounts(None) is None


def test_clean_makes_one_line() -> None:
    assert clean("a\n  b\tc") == "a b c"
    assert clean("\x1b]0;title\x07ü") == "\\x1b]0;title\\x07ü"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 8200.0), ("1.5h", 4600.0), ("2d", 0.0), ("100000", 100000.0), ("1970-01-02T00:00:00+00:00", 86400.0)],
)
def test_since(text: str, seconds: float) -> None:
    assert seconds_since(text, 10_000.0) == seconds


@pytest.mark.parametrize("text", ["yesterday", "-1h", "1y", "", "2026-13-01"])
def test_since_that_is_no_time(text: str) -> None:
    with pytest.raises(BadInput, match="not a time"):
        seconds_since(text, 0.0)


def test_the_words_after_two_dashes() -> None:
    assert CommandLine.of(["/x/sky", "launch", "--", "a", "--", "b"]).after_dashes == ("a", "--", "b")
    assert CommandLine.of(["__main__.py", "launch"]).after_dashes is None
    assert CommandLine.of(["__main__.py"]).program == "sky"
    assert CommandLine.of(["/x/skyserve-exec"]).program == "skyserve-exec"


def test_exit_codes_of_failed_requests_tell_refusals_from_failures() -> None:
    def failed(kind: str) -> RequestFailed:
        return RequestFailed("m", record={"error": {"type": kind}})

    assert exit_code_of(failed("NotFound")) == NotFound.exit_code
    assert exit_code_of(failed("UnsupportedField")) == BadInput.exit_code
    assert exit_code_of(failed("ValueError")) == RequestFailed.exit_code
    assert exit_code_of(failed("annotations")) == RequestFailed.exit_code
    assert exit_code_of(RequestWasCancelled("m", record={})) == RequestWasCancelled.exit_code
    assert exit_code_of(SkyserveError("m")) == SkyserveError.exit_code
