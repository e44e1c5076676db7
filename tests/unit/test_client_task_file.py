"""Task files and commands: what becomes of them, and what is said about faulty ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from skyserve_exec.client import task_file
from skyserve_exec.errors import BadInput, UnsupportedField


def load(path: Path, text: str | bytes, *env: str, is_local: bool = True, **options: Any) -> dict[str, Any]:
    """What a launch of this file would send."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    fields, lines = task_file.from_yaml(path)
    envs = task_file.environment(env, {"FROM_HERE": "yes"})
    task = task_file.completed(fields, envs, **({"name": None, "resources": {}} | options))
    return task_file.checked(task, source=path.name, lines=lines, is_local=is_local)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "task.yaml"


def test_a_full_task(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    text = """
        name: train
        workdir: ./src
        resources: {cpus: 2+, memory: 4, accelerators: {A100: 1}}
        envs: {EPOCHS: 3, RATE: 0.5, VERBOSE: true, NAME: x}
        secrets: {KEY: null}
        setup: pip list
        run: |
          echo hello
    """
    task = load(file, text, "EPOCHS=4", "KEY=k", "FROM_HERE")
    assert task["workdir"] == str(tmp_path / "src")
    assert task["envs"] == {"EPOCHS": "4", "RATE": "0.5", "VERBOSE": "true", "NAME": "x", "FROM_HERE": "yes"}
    assert task["secrets"] == {"KEY": "k"}
    assert task["run"] == "echo hello\n"
    assert task["resources"] == {"cpus": "2+", "memory": 4, "accelerators": {"A100": 1}}


def test_the_command_line_has_the_last_word(file: Path) -> None:
    task = load(file, "name: a\nrun: x\nresources: {cpus: 1, memory: 2}", name="b", resources={"cpus": "4"})
    assert task["name"] == "b"
    assert task["resources"] == {"cpus": "4", "memory": 2}


def test_words_become_a_command() -> None:
    assert task_file.from_command(["echo $HOME | wc"]) == {"run": "echo $HOME | wc"}
    assert task_file.from_command(["echo", "a b", "$HOME"]) == {"run": "echo 'a b' '$HOME'"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("- a\n- b", "line 1: a task is a mapping, not a list"),
        ("run", "line 1: a task is a mapping, not a text"),
        ("run: a\n  b: c\n", "line 2: mapping values are not allowed here"),
        ("run: 'a\n", "line 2: found unexpected end of stream"),
        ("run: a\n\tb: c", "line 2: found character '\\t' that cannot start any token"),
        ("run: a\nname: b\nrun: c\n", "line 3: run is given twice"),
        ("run: a\n---\nrun: b\n", "line 3: a second task begins here"),
        ("run: !!python/object:os.system x", "line 1: could not determine a constructor for the tag"),
        (b"run: a\nname: \xff", "line 2: not UTF-8 text"),
        ("run: a\nnum_nodes: 2\n", "line 2: num_nodes: "),
        ("run: a\nresources:\n  cpus: many\n", "line 3: resources.cpus: 'many' is not a number"),
        ("run: a\nresources:\n  infra: aws\n", "line 3: resources.infra: 'aws' is not supported; supported: local"),
        ("run: a\nresources:\n  accelerators: {A100: -1}\n", "line 3: resources.accelerators: counts must be above 0"),
        ("run: 3\n", "line 1: run: should be a valid string"),
        ("run: a\nworkdir: nowhere/at/all\n", "line 2: workdir: "),
        ("run: a\nenvs:\n  GOOD: 1\n  BAD:\n", "line 4: envs.BAD has no value"),
        ("run: a\nenvs:\n  bad-name: 1\n", "line 3: envs.bad-name: "),
        ("run: a\nenvs: [A]\n", "line 2: envs: should be a valid dictionary"),
        ("run: a\nname: a/b\n", "line 2: name: "),
    ],
)
def test_faults_name_the_line_and_the_field(file: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(file, text)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "place", "known"),
    [
        ("run: a\nfile_mounts: {}\n", "task.yaml line 2: file_mounts: this field is not supported", "workdir"),
        ("run: a\nresources:\n  use_spot: true\n", "line 3: resources.use_spot: this field is not supported", "cpus"),
    ],
)
def test_unsupported_fields_name_the_supported_ones(file: Path, text: str, place: str, known: str) -> None:
    with pytest.raises(UnsupportedField) as caught:
        load(file, text)
    assert place in caught.value.message
    assert known in caught.value.hint


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        task_file.from_yaml(tmp_path / "none.yaml")
    with pytest.raises(BadInput, match="is a directory"):
        task_file.from_yaml(tmp_path)
    with pytest.raises(BadInput, match="embedded null byte"):
        task_file.from_yaml(Path("a\0b"))
    big = tmp_path / "big.yaml"
    with big.open("wb") as sparse:
        sparse.truncate(task_file.MAX_BYTES + 1)
    with pytest.raises(BadInput, match="larger than"):
        task_file.from_yaml(big)
    if os.getuid() != 0:
        big.chmod(0)
        with pytest.raises(BadInput, match="Permission denied"):
            task_file.from_yaml(big)


def test_deep_and_self_referring_files_end_with_a_line(file: Path) -> None:
    with pytest.raises(BadInput):
        load(file, "[" * 5000)
    with pytest.raises(BadInput):
        load(file, "run: &a [*a]\nenvs: *a")


def test_a_workdir_on_another_machine_is_not_looked_for(file: Path) -> None:
    assert load(file, "run: a\nworkdir: /nowhere/at/all", is_local=False)["workdir"] == "/nowhere/at/all"


@pytest.mark.parametrize(("word", "message"), [("=x", "the name is missing"), ("NOT_HERE", "no such variable")])
def test_variables_without_name_or_value(word: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        task_file.environment([word], {})
