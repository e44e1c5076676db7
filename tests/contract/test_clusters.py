"""The registry of clusters: one row per name, moved by compare-and-set from several processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyserve_exec.store import ClusterRegistry, ClusterRow, ClusterStatus


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[ClusterRegistry]:
    registry = ClusterRegistry.open(tmp_path / "clusters.db")
    yield registry
    registry.close()


def cluster(name: str = "c", **changes: Any) -> ClusterRow:
    fields: dict[str, Any] = {
        "name": name,
        "infra": "local",
        "status": "INIT",
        "user": "ann",
        "directory": f"/clusters/{name}",
        "resources": '{"cpus": 2}',
        "handle": "{}",
        "created_at": 1000.0,
        "updated_at": 1000.0,
    }
    return ClusterRow(**(fields | changes))


def test_the_first_makes_it_and_the_others_get_what_is_there(registry: ClusterRegistry, tmp_path: Path) -> None:
    second = ClusterRegistry.open(tmp_path / "clusters.db")
    assert registry.insert_or_get(cluster(last_task="t")) == (cluster(last_task="t"), True)
    assert second.insert_or_get(cluster(user="bob", created_at=2000.0)) == (cluster(last_task="t"), False)
    second.close()


def test_states(registry: ClusterRegistry) -> None:
    registry.insert_or_get(cluster())
    assert registry.set_status("c", ClusterStatus.UP, now=2.0, expected="INIT") == cluster(status="UP", updated_at=2.0)
    assert registry.set_status("c", "UP", now=3.0, expected="INIT") is None, "it is not INIT any more"
    assert registry.set_status("c", "STOPPED", now=4.0) == cluster(status="STOPPED", updated_at=4.0)
    assert registry.set_status("unknown", "UP", now=5.0) is None
    with pytest.raises(ValueError, match="GONE"):
        registry.set_status("c", "GONE", now=6.0)
    assert registry.get("c") == cluster(status="STOPPED", updated_at=4.0)


def test_facts_that_are_not_given_stay(registry: ClusterRegistry) -> None:
    registry.insert_or_get(cluster())
    assert registry.update("c", now=2.0) == cluster(updated_at=2.0)
    assert registry.update("c", now=3.0, last_task="train") == cluster(updated_at=3.0, last_task="train")
    facts = {"directory": "/d", "resources": "{}", "handle": '{"pid": 1}'}
    assert registry.update("c", now=4.0, **facts) == cluster(updated_at=4.0, last_task="train", **facts)
    assert registry.update("unknown", now=5.0, last_task="t") is None


def test_lists(registry: ClusterRegistry) -> None:
    assert registry.list() == []
    for name in ("b", "a", "C"):
        registry.insert_or_get(cluster(name))
    assert [row.name for row in registry.list()] == ["C", "a", "b"]
    assert [row.name for row in registry.list(["b", "C", "unknown"])] == ["C", "b"]


def test_delete(registry: ClusterRegistry) -> None:
    registry.insert_or_get(cluster())
    assert registry.delete("c")
    assert not registry.delete("c")
    assert registry.get("c") is None
    assert registry.insert_or_get(cluster(created_at=5.0)) == (cluster(created_at=5.0), True)


def test_a_state_that_does_not_exist_never_gets_into_the_table(registry: ClusterRegistry) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        registry.insert_or_get(cluster(status="up"))
    assert registry.list() == []


def test_files_are_private(registry: ClusterRegistry, tmp_path: Path) -> None:
    registry.insert_or_get(cluster())
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
