"""What every test may rely on: a clean environment and, for process tests, one server per module or per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_under_test import Server, running_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A small server with the tests' own operations, for this test alone."""
    with running_server(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same for all tests of a module that leave it as they found it."""
    with running_server(tmp_path_factory.mktemp("shared")) as running:
        yield running
