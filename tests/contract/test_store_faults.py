"""Full disks, damaged files and killed processes: a clear error, nothing half written, and on it goes afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyserve_exec.errors import DiskFull, StoreFailed
from skyserve_exec.store import ListQuery, RequestReader, RequestStore
from tests.contract.backends import claim, finish, submission, submit
from tests.contract.store_processes import other
from tests.waiting import pause, seeded_rounds

LARGE = '"' + "x" * 20_000 + '"'


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, where this may be made."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> Path:
    """A file that takes all space there is."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 65536
        while size >= 1:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    return filler


def insert_large_until_full(store: RequestStore) -> list[str]:
    """The ids of one transaction that is larger than the disk."""
    ids: list[str] = []

    def too_much() -> None:
        with store.transaction():
            for _ in range(1000):
                ids.append(store.insert(submission(payload=LARGE))[0])

    with pytest.raises(DiskFull, match="full") as caught:
        too_much()
    assert caught.value.http_status == 507
    return ids


def test_a_full_disk_refuses_the_transaction_and_recovers_when_there_is_space(small_disk: Path) -> None:
    store = RequestStore.open(small_disk / "requests.db")
    kept = submit(store)
    filler = fill(small_disk)
    lost = insert_large_until_full(store)
    assert store.active() == [(kept, "PENDING")]
    assert {store.status_of(request_id) for request_id in lost} == {None}
    reader = RequestReader(small_disk / "requests.db")
    assert [row.request_id for row in reader.list(ListQuery()).rows] == [kept], "reading goes on"
    lost = insert_large_until_full(store)
    assert store.active() == [(kept, "PENDING")]

    filler.unlink()
    later = submit(store, payload=LARGE)
    assert [row.request_id for row in claim(store, 2)] == [kept, later]
    assert finish(store, kept) is not None
    assert [row.request_id for row in reader.list(ListQuery()).rows] == [later, kept]
    reader.close()
    store.close()
    store = RequestStore.open(small_disk / "requests.db")
    assert store.active() == [(later, "RUNNING")]
    assert store.database.row("PRAGMA integrity_check") == ("ok",)
    store.close()


def test_a_full_disk_refuses_a_new_file_and_later_takes_it(small_disk: Path) -> None:
    filler = fill(small_disk)
    with pytest.raises(DiskFull):
        RequestStore.open(small_disk / "requests.db")
    filler.unlink()
    store = RequestStore.open(small_disk / "requests.db")
    assert submit(store)
    store.close()


def test_an_old_file_on_a_full_disk_is_not_harmed(small_disk: Path) -> None:
    store = RequestStore.open(small_disk / "requests.db")
    kept = submit(store)
    store.close()
    filler = fill(small_disk)
    with pytest.raises(DiskFull):
        RequestStore.open(small_disk / "requests.db")
    filler.unlink()
    store = RequestStore.open(small_disk / "requests.db")
    assert store.active() == [(kept, "PENDING")]
    store.close()


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    with other("fill_under_limit", tmp_path / "requests.db", 1_000_000) as limited:
        limited.begin()
        told = limited.says()
    assert told["error"] == "DiskFull"
    assert told["after"] == ["PENDING", None]
    assert told["active"] == 1
    store = RequestStore.open(tmp_path / "requests.db")
    assert [request_id for request_id, _ in store.active()][1:] == [told["later"]]
    store.close()


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    RequestStore.open(path).close()
    for chance in seeded_rounds(3):
        with other("submit_for_ever", path) as writer:
            writer.begin()
            told = [writer.says()]
            pause(chance.random() * 0.2)
            writer.kill()
            assert writer.process.stdout is not None
            told += [line.strip().strip('"') for line in writer.process.stdout if line.endswith("\n")]
        store = RequestStore.open(path)
        assert [request_id for request_id in told if store.status_of(request_id) != "PENDING"] == []
        assert store.database.row("PRAGMA integrity_check") == ("ok",)
        store.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    path.write_bytes(b"something else entirely " * 100)
    before = path.read_bytes()
    with pytest.raises(StoreFailed, match="not a database") as caught:
        RequestStore.open(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert path.read_bytes() == before
    with pytest.raises(StoreFailed, match="not a database"):
        RequestReader(path)


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    store = RequestStore.open(path)
    for _ in range(20):
        submit(store, payload=LARGE)
    store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    store = RequestStore.open(path)
    with pytest.raises(StoreFailed, match="malformed"), store.transaction():
        store.insert(submission())
    store.close()


@pytest.mark.parametrize("place", ["missing/requests.db", "."])
def test_a_place_that_cannot_be_a_file_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(StoreFailed):
        RequestStore.open(tmp_path / place)


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    store = RequestStore.open(tmp_path / "requests.db")
    submit(store)
    reader = RequestReader(tmp_path / "requests.db")
    with pytest.raises(StoreFailed, match="readonly"):
        reader.database.execute("DELETE FROM requests")
    assert len(store.active()) == 1
    reader.close()
    store.close()
