"""Which users' functions become operations, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyserve_exec.errors import BadInput
from skyserve_exec.executor import own_operations

HEADER = "from __future__ import annotations\nfrom skyserve_exec import operation\n"


def test_the_signature_becomes_the_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, monkeypatch, "words_ok", "@operation(deadline=3)\ndef count(words: list[str], least: int = 1): ...")
    loaded = own_operations.load(("words_ok",), frozenset())
    row = loaded["count"].operation
    assert (row.deadline, row.schema["required"]) == (3, ["words"])
    with pytest.raises(BadInput, match=r"words\.0"):
        loaded["count"].call({"words": [1]})


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("op_async", "@operation()\nasync def slow(): ...", "slow: it is asynchronous"),
        ("op_star", "@operation()\ndef star(*args): ...", "parameter args must be a plain named one"),
        ("op_type", "@operation()\ndef odd(x: Nowhere): ...", "odd: its signature cannot be used"),
        ("op_none", "def plain(): ...", "has no operation"),
        ("op_twice", "@operation()\ndef taken(): ...", "taken of module op_twice is there already"),
        ("op_broken", "raise RuntimeError('no')", "cannot be imported: RuntimeError: no"),
    ],
)
def test_what_cannot_be_an_operation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str, message: str
) -> None:
    write(tmp_path, monkeypatch, name, body)
    with pytest.raises(BadInput, match=message):
        own_operations.load((name,), frozenset({"taken"}))


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> None:
    (folder / f"{name}.py").write_text(f"{HEADER}\n\n{body}\n")
    monkeypatch.syspath_prepend(str(folder))
