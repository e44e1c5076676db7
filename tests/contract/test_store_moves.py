"""Every arrow of states.py is a compare-and-set: it happens from the state it names, and from no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skyserve_exec.errors import Conflict
from skyserve_exec.record import RequestRow
from skyserve_exec.states import Status
from skyserve_exec.store import RequestReader, RequestStore
from tests.contract.backends import BOOT, claim, finish, run, submission, submit

ERROR = '{"type":"Boom","message":"it broke","hint":""}'


def bring_to(store: RequestStore, status: str) -> str:
    """A request in that state; its id."""
    if status == "PENDING":
        return submit(store)
    request_id = run(store)
    if status != "RUNNING":
        assert finish(store, request_id, status) is not None
    return request_id


def row_of(reader: RequestReader, request_id: str) -> RequestRow:
    row = reader.get(request_id)
    assert row is not None
    return row


def test_submit_makes_a_pending_row_that_holds_all_that_was_given(store: RequestStore, reader: RequestReader) -> None:
    given = submission(
        name="launch",
        payload='{"task": "ü\\u0000"}',
        schedule_type="long",
        cluster="c",
        lock_key="cluster:c",
        restartable=True,
        deadline=2.5,
        idempotency_key="key",
        fingerprint="print",
        created_at=12.25,
    )
    with store.transaction():
        assert store.insert(given) == (given.request_id, False)
    assert reader.get(given.request_id) == RequestRow(
        seq=1,
        request_id=given.request_id,
        name="launch",
        status="PENDING",
        schedule_type="long",
        user="ann",
        cluster="c",
        lock_key="cluster:c",
        restartable=1,
        deadline=2.5,
        idempotency_key="key",
        fingerprint="print",
        created_at=12.25,
        started_at=None,
        finished_at=None,
        attempts=0,
        boot_id=None,
        slot=None,
        cancel_requested_at=None,
        reason=None,
        exit_code=None,
        peak_rss=None,
        payload='{"task": "ü\\u0000"}',
        result=None,
        error=None,
        resume=None,
    )


def test_claim_makes_it_running_in_the_slot(store: RequestStore, reader: RequestReader) -> None:
    request_id = submit(store)
    with store.transaction():
        (row,) = store.claim("short", ["short-7"], "boot-9", 2000.5)
    assert row == row_of(reader, request_id)
    assert (row.status, row.slot, row.boot_id, row.started_at, row.attempts) == (
        "RUNNING",
        "short-7",
        "boot-9",
        2000.5,
        1,
    )


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "CANCELLED"])
def test_settle_ends_a_running_request(store: RequestStore, reader: RequestReader, status: str) -> None:
    request_id = run(store)
    with store.transaction():
        row = store.settle(
            request_id, status, now=3000.5, result='"r"', error=ERROR, exit_code=3, peak_rss=1 << 40, reason="why"
        )
    assert row == row_of(reader, request_id)
    assert row is not None
    assert row.is_terminal
    assert (row.status, row.finished_at, row.result, row.error) == (status, 3000.5, '"r"', ERROR)
    assert (row.exit_code, row.peak_rss, row.reason) == (3, 1 << 40, "why")


def test_settle_takes_only_terminal_states(store: RequestStore) -> None:
    request_id = run(store)
    for status in ("PENDING", "RUNNING", "DONE"):
        with store.transaction(), pytest.raises(ValueError, match=status):
            store.settle(request_id, status, now=1.0)
    assert store.status_of(request_id) == "RUNNING"


def test_cancel_pending_ends_it_before_it_ran(store: RequestStore, reader: RequestReader) -> None:
    request_id = submit(store)
    with store.transaction():
        row = store.cancel_pending(request_id, now=1500.0, error=ERROR)
    assert row == row_of(reader, request_id)
    assert row is not None
    assert (row.status, row.finished_at, row.error, row.attempts) == ("CANCELLED", 1500.0, ERROR, 0)
    assert claim(store) == []


def test_mark_cancel_leaves_it_running_and_keeps_the_first_time_and_reason(
    store: RequestStore, reader: RequestReader
) -> None:
    request_id = run(store)
    for now, reason in ((2100.0, "cancelled by ann"), (2200.0, "cancelled by bob")):
        with store.transaction():
            assert store.mark_cancel(request_id, now=now, reason=reason)
    row = row_of(reader, request_id)
    assert (row.status, row.cancel_requested_at, row.reason) == ("RUNNING", 2100.0, "cancelled by ann")
    ended = finish(store, request_id, "CANCELLED")
    assert ended is not None
    assert ended.reason == "cancelled by ann"


def test_hand_off_frees_the_slot_and_requeue_goes_on_with_its_state(store: RequestStore, reader: RequestReader) -> None:
    request_id = run(store)
    with store.transaction():
        assert store.hand_off(request_id, resume='{"job": 1}', reason="following job 1")
    row = row_of(reader, request_id)
    assert (row.status, row.slot, row.resume, row.reason) == ("RUNNING", None, '{"job": 1}', "following job 1")
    with store.transaction():
        assert store.requeue(request_id, reason="the tail ended")
    assert row_of(reader, request_id).reason == "the tail ended"
    (again,) = claim(store, now=2600.0)
    # It is the same run that goes on: its time counts from the first start.
    assert (again.request_id, again.resume, again.started_at, again.attempts) == (request_id, '{"job": 1}', 2000.0, 2)
    ended = finish(store, request_id)
    assert ended is not None
    assert ended.reason is None


def test_requeue_of_a_lost_request_starts_its_time_again(store: RequestStore, reader: RequestReader) -> None:
    request_id = run(store)
    with store.transaction():
        assert store.requeue(request_id, reason="its executor died")
    row = row_of(reader, request_id)
    assert (row.status, row.slot, row.started_at, row.attempts) == ("PENDING", None, None, 1)
    assert (row.boot_id, row.reason) == (BOOT, "its executor died")
    (again,) = claim(store, now=2600.0)
    assert (again.started_at, again.attempts, again.reason) == (2600.0, 2, None)


def test_what_is_cancelled_is_not_requeued(store: RequestStore) -> None:
    request_id = run(store)
    with store.transaction():
        assert store.mark_cancel(request_id, now=2100.0, reason="cancelled by ann")
        assert not store.requeue(request_id, reason="its executor died")
    assert store.status_of(request_id) == "RUNNING"
    assert claim(store) == []


MOVES: dict[str, tuple[set[str], Callable[[RequestStore, str], object]]] = {
    "settle": ({"RUNNING"}, lambda store, request_id: store.settle(request_id, "FAILED", now=9.0, error=ERROR)),
    "requeue": ({"RUNNING"}, lambda store, request_id: store.requeue(request_id, reason="again")),
    "hand_off": ({"RUNNING"}, lambda store, request_id: store.hand_off(request_id, resume="{}", reason="tail")),
    "mark_cancel": ({"RUNNING"}, lambda store, request_id: store.mark_cancel(request_id, now=9.0, reason="by ann")),
    "cancel_pending": ({"PENDING"}, lambda store, request_id: store.cancel_pending(request_id, now=9.0, error=ERROR)),
    "claim": ({"PENDING"}, lambda store, request_id: store.claim("short", ["short-9"], BOOT, 9.0)),
}


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("move", MOVES)
def test_a_move_happens_only_from_the_state_it_names(
    store: RequestStore, reader: RequestReader, move: str, status: Status
) -> None:
    allowed, act = MOVES[move]
    request_id = bring_to(store, status)
    before = reader.get(request_id)
    with store.transaction():
        moved = act(store, request_id)
    assert bool(moved) == (status in allowed)
    assert (reader.get(request_id) == before) != bool(moved)


@pytest.mark.parametrize("move", [move for move in MOVES if move != "claim"])
def test_a_move_of_an_unknown_request_does_nothing(store: RequestStore, move: str) -> None:
    with store.transaction():
        assert not MOVES[move][1](store, "00000000-0000-4000-8000-000000000000")


def test_cancel_and_claim_never_both_get_a_request(store: RequestStore) -> None:
    first, second = submit(store), submit(store)
    with store.transaction():
        assert store.cancel_pending(first, now=1.0, error=ERROR) is not None
        assert [row.request_id for row in store.claim("short", ["a", "b"], BOOT, 2.0)] == [second]
        assert store.cancel_pending(second, now=3.0, error=ERROR) is None
        assert store.mark_cancel(second, now=3.0, reason="by ann")


def test_the_same_key_gives_the_older_request_and_writes_nothing(store: RequestStore, reader: RequestReader) -> None:
    keyed = {"idempotency_key": "k", "fingerprint": "f"}
    first = submit(store, **keyed)
    with store.transaction():
        assert store.insert(submission(**keyed)) == (first, True)
    run_of_it = claim(store)
    assert finish(store, run_of_it[0].request_id) is not None
    with store.transaction():
        assert store.insert(submission(**keyed)) == (first, True), "also when it has ended"
        assert store.insert(submission(user="bob", **keyed))[1] is False, "keys belong to a user"
        assert store.insert(submission())[1] is False, "without a key each is new"
        assert store.insert(submission())[1] is False
    assert reader.latest() != first


def test_a_key_used_for_something_else_is_a_conflict_and_the_rest_of_the_turn_goes_on(store: RequestStore) -> None:
    first = submit(store, idempotency_key="k", fingerprint="f")
    other = submission()
    with store.transaction():
        with pytest.raises(Conflict, match="Idempotency-Key: 'k'") as caught:
            store.insert(submission(idempotency_key="k", fingerprint="g"))
        store.insert(other)
    assert caught.value.request_id == first
    assert caught.value.hint
    assert [request_id for request_id, _ in store.active()] == [first, other.request_id]


def test_the_same_request_again_is_a_duplicate_and_another_with_its_id_a_conflict(store: RequestStore) -> None:
    given = submission()
    with store.transaction():
        assert store.insert(given) == (given.request_id, False)
        assert store.insert(given) == (given.request_id, True)
        with pytest.raises(Conflict, match=given.request_id):
            store.insert(submission(request_id=given.request_id, payload='{"x": 2}'))
    assert store.active() == [(given.request_id, "PENDING")]


def test_a_transaction_that_raises_leaves_nothing(store: RequestStore) -> None:
    kept = run(store)

    def interrupted_turn() -> None:
        with store.transaction():
            store.insert(submission())
            store.settle(kept, "FAILED", now=1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_turn()
    assert store.active() == [(kept, "RUNNING")]
    assert submit(store), "and the next one works"


def test_writes_outside_a_transaction_and_nested_ones_are_refused(store: RequestStore) -> None:
    with pytest.raises(RuntimeError, match="need a transaction"):
        store.insert(submission())
    with pytest.raises(RuntimeError, match="do not nest"), store.transaction(), store.transaction():
        pass
    assert store.active() == []
