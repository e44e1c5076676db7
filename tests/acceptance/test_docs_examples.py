"""The examples in the documents do what they say: blocks whose info string ends with `run` are run, in order.

Each document gets a home and a server of its own. The port it names, the default one, is replaced by a free one.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from skyserve_exec.settings import TABLE
from tests.acceptance.sky_command import Sky
from tests.processes import kill_all, marked
from tests.server_under_test import REPOSITORY
from tests.waiting import wait_until

BLOCK = re.compile(r"^```(\w+) run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNNERS = {"bash": ["bash", "-euo", "pipefail"], "python": [sys.executable, "-W", "error"]}
DEFAULT_PORT = str(next(row.default for row in TABLE if row.name == "port"))
BLOCK_SECONDS = 120
DOCUMENTS = sorted([*REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("*.md")])


@dataclass(frozen=True, slots=True)
class Example:
    """One block, and where it stands."""

    place: str
    language: str
    text: str


def examples(document: Path) -> list[Example]:
    text = document.read_text()
    found = BLOCK.finditer(text)
    name = document.relative_to(REPOSITORY)
    return [Example(f"{name}:{text.count(chr(10), 0, each.start()) + 1}", each[1], each[2]) for each in found]


@pytest.fixture
def sky(tmp_path: Path) -> Iterator[Sky]:
    """A home whose server is where the documents expect it; the current directory has the repository's examples."""
    sky = Sky(tmp_path, tmp_path / ".sky/api_server")
    for name in ("examples", "docs"):
        if (REPOSITORY / name).is_dir():
            (tmp_path / name).symlink_to(REPOSITORY / name)
    try:
        yield sky
        sky.run("down", "-a", code=None)
        sky.run("api", "stop")
        wait_until(lambda: not marked(sky.mark), what="every process of the document's examples has ended")
    finally:
        kill_all(marked(sky.mark))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", [each for each in DOCUMENTS if examples(each)], ids=lambda path: path.name)
def test_examples_run(sky: Sky, document: Path) -> None:
    port = free_port()
    env = sky.env(SKYSERVE_PORT=port)
    del env["SKYSERVE_STATE_DIR"]
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    texts = [example.text for example in examples(document)]
    if "sky launch" not in texts[0] and not any("sky api start" in text for text in texts):
        sky.run("api", "start", SKYSERVE_PORT=port)
    for example in examples(document):
        path = sky.home / f"example.{example.language}"
        path.write_text(example.text.replace(DEFAULT_PORT, port))
        done = subprocess.run(
            [*RUNNERS[example.language], path.name],
            cwd=sky.home,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_SECONDS,
            check=False,
        )
        report = f"{example.place} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, report
        print(report)


def test_every_marked_block_can_be_run() -> None:
    for document in DOCUMENTS:
        marked_blocks = re.findall(r"^```.* run$", document.read_text(), re.MULTILINE)
        assert len(marked_blocks) == len(examples(document)), document
        assert {each.language for each in examples(document)} <= set(RUNNERS), document


def free_port() -> str:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])
