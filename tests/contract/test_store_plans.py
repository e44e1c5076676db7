"""On SQLite no statement walks over the rows: lists of 200,000 rows stay fast, and so does the queue."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyserve_exec.store import ListQuery, RequestReader, RequestStore, statements

NAMED = {
    name: value for name, value in vars(statements).items() if name.isupper() and name not in ("FILTERS", "SUMMARY")
}
ON_REQUESTS = {name: text for name, text in NAMED.items() if "requests" in text and not name.startswith("INSERT")}
FILL = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO requests (request_id, name, status, schedule_type, "user", restartable, created_at, attempts, payload)
SELECT ? || printf('%08x', n), 'noop', 'SUCCEEDED', 'short', 'ann', 0, n, 1, '{"x": 1}' FROM numbers
"""
ROWS = 200_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file with 200,000 rows that have ended."""
    path = tmp_path_factory.mktemp("large") / "requests.db"
    store = RequestStore.open(path)
    with store.transaction():
        store.database.write(FILL, (ROWS, str(uuid.uuid4())[:28]))
    store.close()
    yield path
    path.unlink()


def steps_of(store: RequestStore, text: str) -> list[str]:
    """What SQLite plans to do with each table."""
    rows = store.database.rows(f"EXPLAIN QUERY PLAN {text}", (None,) * text.count("?"))
    return [row[3] for row in rows]


@pytest.mark.parametrize("name", ON_REQUESTS)
def test_every_statement_goes_through_an_index(large: Path, name: str) -> None:
    store = RequestStore.open(large)
    try:
        steps = steps_of(store, ON_REQUESTS[name])
    finally:
        store.close()
    of_table = [step for step in steps if re.match(r"(SCAN|SEARCH) (requests|r)\b", step)]
    assert of_table
    by_index = r"(SEARCH (requests|r) USING|SCAN requests USING (COVERING )?INDEX requests_(pending|running))"
    walks = [step for step in of_table if not re.match(by_index, step)]
    # The newest row is the first one of a walk that ends there.
    assert walks == (["SCAN requests"] if name == "SELECT_LATEST" else [])


def test_a_list_reads_one_index_and_only_then_the_rows_of_its_page(large: Path) -> None:
    store = RequestStore.open(large)
    try:
        steps = [step for step in steps_of(store, statements.SELECT_PAGE) if "requests" in step]
        assert steps == [
            "SEARCH requests USING INTEGER PRIMARY KEY (rowid=?)",
            "SEARCH requests USING COVERING INDEX requests_list (seq<?)",
        ]
    finally:
        store.close()


def test_lists_of_200_000_rows(large: Path) -> None:
    reader = RequestReader(large)
    try:
        newest = reader.list(ListQuery(limit=1000))
        assert [row.seq for row in newest.rows] == list(range(ROWS, ROWS - 1000, -1))
        assert newest.next_cursor == ROWS - 999
        oldest = reader.list(ListQuery(limit=1000, cursor=501))
        assert ([row.seq for row in oldest.rows], oldest.next_cursor) == (list(range(500, 0, -1)), None)
        for nothing in (
            ListQuery(statuses=("FAILED",)),
            ListQuery(name="unknown"),
            ListQuery(user="bob", statuses=("SUCCEEDED",)),
            ListQuery(cluster="c"),
            ListQuery(since=ROWS + 1.0),
        ):
            assert reader.list(nothing).rows == []
    finally:
        reader.close()
