"""One store and one reader per test, on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skyserve_exec.store import RequestReader, RequestStore
from tests.contract.backends import BACKENDS, Backend


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made = BACKENDS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def store(backend: Backend) -> RequestStore:
    return backend.store()


@pytest.fixture
def reader(backend: Backend, store: RequestStore) -> RequestReader:
    return backend.reader()
