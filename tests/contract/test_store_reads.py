"""What readers see: single records, prefixes, lists with every filter and page by page, and why a request waits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from skyserve_exec.errors import BadInput
from skyserve_exec.record import RequestRow
from skyserve_exec.store import ListQuery, RequestReader, RequestStore
from skyserve_exec.store.request_reader import MAX_HOLDERS, MAX_POSITION
from tests.contract.backends import claim, finish, run, submission, submit

ALPHA = "aaaa0000-0000-4000-8000-000000000001"
ALPINE = "aaaa0000-0000-4000-8000-000000000002"
BETA = "bbbb0000-0000-4000-8000-000000000003"


def mixed_rows(store: RequestStore) -> list[RequestRow]:
    """Forty requests of all states, names, users, clusters and queues; oldest first."""
    kinds = itertools.cycle(
        itertools.product(["noop", "launch"], ["ann", "bob"], [None, "c1", "c2"], ["short", "long"])
    )
    with store.transaction():
        for number in range(40):
            name, user, cluster, queue = next(kinds)
            store.insert(
                submission(name=name, user=user, cluster=cluster, schedule_type=queue, created_at=1000.0 + number)
            )
        taken = store.claim("short", ["s"] * 12, "boot", 2000.0) + store.claim("long", ["l"] * 12, "boot", 2000.0)
        for row, status in zip(taken, itertools.cycle(["SUCCEEDED", "FAILED", "CANCELLED", None]), strict=False):
            if status is not None:
                store.settle(row.request_id, status, now=3000.0, result='"large"', error='{"also":"large"}')
    return [RequestRow(*row) for row in store.database.rows("SELECT * FROM requests ORDER BY seq")]


def as_summary(row: RequestRow) -> RequestRow:
    return replace(row, payload="", result=None, error=None, resume=None)


def test_an_empty_table(reader: RequestReader) -> None:
    assert reader.latest() is None
    assert reader.get(ALPHA) is None
    assert reader.get_many([ALPHA]) == []
    assert reader.resolve("a") == []
    page = reader.list(ListQuery())
    assert (page.rows, page.next_cursor) == ([], None)


def test_a_reader_sees_what_is_committed_and_nothing_else(store: RequestStore, reader: RequestReader) -> None:
    with store.transaction():
        request_id, _ = store.insert(submission())
        assert reader.get(request_id) is None
        assert store.status_of(request_id) == "PENDING"
    assert reader.latest() == request_id


def test_many_come_in_the_order_asked_for(store: RequestStore, reader: RequestReader) -> None:
    ids = [submit(store) for _ in range(3)]
    rows = reader.get_many([ids[2], "unknown", ids[0], ids[2]])
    assert [row.request_id for row in rows] == [ids[2], ids[0], ids[2]]
    claim(store)
    assert reader.statuses([*ids, "unknown"]) == {ids[0]: "RUNNING", ids[1]: "PENDING", ids[2]: "PENDING"}


def test_prefixes(store: RequestStore, reader: RequestReader) -> None:
    for request_id in (ALPHA, BETA, ALPINE):
        submit(store, request_id=request_id)
    assert reader.resolve(ALPHA) == [ALPHA]
    assert reader.resolve("b") == [BETA]
    assert reader.resolve("aaaa") == [ALPHA, ALPINE], "ambiguous"
    assert reader.resolve("aaaa", limit=1) == [ALPHA]
    assert reader.resolve("c") == []
    assert reader.resolve("") == []
    assert reader.resolve("%") == [], "no pattern"
    assert reader.resolve("AAAA") == []
    assert reader.resolve(ALPHA + "0") == []


def test_the_writer_reads_its_own_table(store: RequestStore) -> None:
    assert (store.active(), store.running(), store.pending_counts()) == ([], [], {})
    first, long = run(store, cluster="c"), submit(store, schedule_type="long", user="bob")
    second, third = submit(store, lock_key="k"), submit(store, cluster="c")
    done = submit(store)
    with store.transaction():
        store.cancel_pending(done, now=1.0, error="{}")
    assert store.active() == [(first, "RUNNING"), (long, "PENDING"), (second, "PENDING"), (third, "PENDING")]
    assert store.active(cluster="c") == [(first, "RUNNING"), (third, "PENDING")]
    assert store.active(user="bob") == [(long, "PENDING")]
    assert store.active(user="bob", cluster="c") == []
    assert [row.request_id for row in store.running()] == [first]
    assert store.pending_counts() == {"short": 2, "long": 1}
    assert store.status_of(done) == "CANCELLED"
    assert store.status_of(ALPHA) is None


FILTERS: dict[str, list[Any]] = {
    "statuses": [(), ("FAILED",), ("PENDING", "RUNNING"), ("FAILED", "FAILED", "CANCELLED", "SUCCEEDED", "RUNNING")],
    "name": [None, "noop", "unknown"],
    "user": [None, "bob"],
    "cluster": [None, "c1"],
    "schedule_type": [None, "long"],
    "since": [None, 1020.0],
}


def fits(row: RequestRow, query: ListQuery) -> bool:
    return (
        (not query.statuses or row.status in query.statuses)
        and query.name in (None, row.name)
        and query.user in (None, row.user)
        and query.cluster in (None, row.cluster)
        and query.schedule_type in (None, row.schedule_type)
        and (query.since is None or row.created_at >= query.since)
        and (not query.id_prefixes or row.request_id.startswith(query.id_prefixes))
    )


@pytest.mark.parametrize("prefixes", [(), ("0", "1", "2", "3", "4", "5", "6", "7", "30")], ids=["all", "by_prefix"])
def test_every_combination_of_filters(store: RequestStore, reader: RequestReader, prefixes: tuple[str, ...]) -> None:
    rows = mixed_rows(store)
    assert {row.status for row in rows} == {"PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"}
    for values in itertools.product(*FILTERS.values()):
        query = replace(ListQuery(id_prefixes=prefixes), **dict(zip(FILTERS, values, strict=True)))
        page = reader.list(query)
        assert page.rows == [as_summary(row) for row in reversed(rows) if fits(row, query)], query
        assert page.next_cursor is None


@pytest.mark.parametrize("prefixes", [(), tuple("0123456789abcdef")], ids=["all", "by_prefix"])
@pytest.mark.parametrize("limit", [1, 7, 20, 40, 41])
def test_pages_follow_each_other_without_gap_or_overlap_while_rows_come(
    store: RequestStore, reader: RequestReader, limit: int, prefixes: tuple[str, ...]
) -> None:
    rows = mixed_rows(store)
    query, seen, pages = ListQuery(limit=limit, id_prefixes=prefixes), list[str](), 0
    while True:
        page = reader.list(query)
        assert len(page.rows) <= limit
        seen += [row.request_id for row in page.rows]
        pages += 1
        submit(store)
        if page.next_cursor is None:
            break
        query = replace(query, cursor=page.next_cursor)
    assert seen == [row.request_id for row in reversed(rows)]
    assert pages == -(-len(rows) // limit)


def test_queries_that_cannot_be(reader: RequestReader) -> None:
    for query, field in (
        (ListQuery(limit=0), "limit"),
        (ListQuery(limit=1001), "limit"),
        (ListQuery(statuses=("DONE",)), "status: 'DONE'"),
        (ListQuery(cursor=-1), "cursor"),
        (ListQuery(cursor=1 << 63), "cursor"),
    ):
        with pytest.raises(BadInput, match=field):
            reader.list(query)


def row_of(reader: RequestReader, request_id: str) -> RequestRow:
    row = reader.get(request_id)
    assert row is not None
    return row


def test_waiting_says_position_holders_and_lock(store: RequestStore, reader: RequestReader) -> None:
    holder = run(store, name="sleep")
    tail = run(store)
    with store.transaction():
        store.hand_off(tail, resume="{}", reason="following")
    run(store, schedule_type="long")
    ids = [submit(store, lock_key=key) for key in (None, "k", None, "k")]
    submit(store, schedule_type="long", lock_key="k")
    found = reader.explain([row_of(reader, request_id) for request_id in ids])
    assert [found[request_id].position for request_id in ids] == [0, 1, 2, 3]
    assert [found[request_id].locked_by for request_id in ids] == [None, None, None, ids[1]]
    waiting = reader.waiting(row_of(reader, ids[0]))
    assert waiting == found[ids[0]]
    assert waiting.holders == [(holder, "sleep", 2000.0)], "a tail occupies no executor"


def test_waiting_names_who_runs_with_the_lock_rather_than_who_waits_for_it(
    store: RequestStore, reader: RequestReader
) -> None:
    runs = run(store, lock_key="k", schedule_type="long")
    first, second = submit(store, lock_key="k"), submit(store, lock_key="k")
    for request_id in (first, second):
        assert reader.waiting(row_of(reader, request_id)).locked_by == runs
    assert finish(store, runs) is not None
    assert reader.waiting(row_of(reader, first)).locked_by is None
    assert reader.waiting(row_of(reader, second)).locked_by == first


def test_waiting_is_counted_up_to_a_limit(store: RequestStore, reader: RequestReader) -> None:
    with store.transaction():
        for _ in range(MAX_HOLDERS + 5):
            store.insert(submission())
        store.claim("short", ["s"] * (MAX_HOLDERS + 5), "boot", 1.0)
        for number in range(MAX_POSITION + 10):
            last, _ = store.insert(submission(lock_key=["k", None][number % 2]))
    waiting = reader.waiting(row_of(reader, last))
    assert (waiting.position, len(waiting.holders)) == (MAX_POSITION, MAX_HOLDERS)
