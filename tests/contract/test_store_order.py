"""Who is next: first come first served per queue, and one at a time per lock key, in order, across the queues."""

from __future__ import annotations

import pytest

from skyserve_exec.store import RequestReader, RequestStore
from tests.contract.backends import BOOT, claim, finish, run, submission, submit
from tests.waiting import seeded_rounds


def ids_of_claim(store: RequestStore, slots: int = 10, *, schedule_type: str = "short") -> list[str]:
    return [row.request_id for row in claim(store, slots, schedule_type=schedule_type)]


def test_oldest_first_and_no_more_than_slots(store: RequestStore) -> None:
    # By order of arrival, whatever the clocks of the submitters say.
    ids = [submit(store, created_at=1000.0 - number) for number in range(5)]
    first = claim(store, 2)
    assert [(row.request_id, row.slot) for row in first] == [(ids[0], "short-0"), (ids[1], "short-1")]
    assert ids_of_claim(store) == ids[2:]
    assert ids_of_claim(store) == []


def test_no_slots_no_claim(store: RequestStore) -> None:
    submit(store)
    assert claim(store, 0) == []


def test_the_queues_are_apart(store: RequestStore) -> None:
    long, short = submit(store, schedule_type="long"), submit(store)
    assert ids_of_claim(store) == [short]
    assert ids_of_claim(store, schedule_type="long") == [long]


def test_requeue_keeps_the_place(store: RequestStore) -> None:
    ids = [submit(store) for _ in range(3)]
    assert ids_of_claim(store, 1) == ids[:1]
    with store.transaction():
        assert store.requeue(ids[0], reason="its executor died")
    assert ids_of_claim(store) == ids


@pytest.mark.parametrize("first_queue", ["short", "long"])
def test_one_lock_key_runs_in_order_across_the_queues(store: RequestStore, first_queue: str) -> None:
    second_queue = {"short": "long", "long": "short"}[first_queue]
    first = submit(store, lock_key="c", schedule_type=first_queue)
    second = submit(store, lock_key="c", schedule_type=second_queue)
    third = submit(store, lock_key="c", schedule_type=first_queue)
    free = submit(store, schedule_type=second_queue)

    assert ids_of_claim(store, schedule_type=second_queue) == [free], "an earlier one of the key waits"
    assert ids_of_claim(store, schedule_type=first_queue) == [first], "one at a time"
    assert ids_of_claim(store, schedule_type=second_queue) == [], "one of the key runs"
    assert finish(store, first) is not None
    assert ids_of_claim(store, schedule_type=first_queue) == [], "its turn is after the second"
    assert ids_of_claim(store, schedule_type=second_queue) == [second]
    with store.transaction():
        assert store.hand_off(second, resume="{}", reason="following")
    assert ids_of_claim(store, schedule_type=first_queue) == [], "a tail holds the lock as well"
    assert finish(store, second, "FAILED") is not None
    assert ids_of_claim(store, schedule_type=first_queue) == [third]


def test_one_claim_takes_one_of_each_lock_key_and_the_free_ones_by_age(store: RequestStore) -> None:
    keys = ["b", None, "a", "b", None, "a", "c", None]
    ids = [submit(store, lock_key=key) for key in keys]
    assert ids_of_claim(store, 4) == [ids[0], ids[1], ids[2], ids[4]]
    assert ids_of_claim(store) == [ids[6], ids[7]]


def test_a_cancelled_one_does_not_hold_the_others(store: RequestStore) -> None:
    first, second = submit(store, lock_key="c", schedule_type="long"), submit(store, lock_key="c")
    with store.transaction():
        assert store.cancel_pending(first, now=1.0, error="{}") is not None
    assert ids_of_claim(store) == [second]


def test_a_requeued_one_comes_before_later_ones_of_its_key(store: RequestStore) -> None:
    first = run(store, lock_key="c")
    later = submit(store, lock_key="c")
    with store.transaction():
        assert store.requeue(first, reason="its executor died")
    assert ids_of_claim(store) == [first]
    assert finish(store, first) is not None
    assert ids_of_claim(store) == [later]


def test_an_empty_lock_key_is_none(store: RequestStore) -> None:
    ids = [submit(store, lock_key="") for _ in range(2)]
    assert ids_of_claim(store) == ids


def claimable_by_the_rules(
    store: RequestStore, schedule_type: str, slots: int, model: dict[str, list[object]]
) -> list[str]:
    """The same answer from the words of the contract, one row at a time."""
    chosen: list[str] = []
    for request_id, (queue, key, status) in model.items():
        if status != "PENDING" or queue != schedule_type or len(chosen) == slots:
            continue
        others = [other for other in model.items() if other[1][1] == key and other[0] != request_id]
        earlier = [other for other in others if list(model).index(other[0]) < list(model).index(request_id)]
        locked = any(other[1][2] == "RUNNING" for other in others) or any(o[1][2] == "PENDING" for o in earlier)
        if key is None or not locked:
            chosen.append(request_id)
    return chosen


def test_any_history_claims_what_the_rules_say(store: RequestStore, reader: RequestReader) -> None:
    for chance in seeded_rounds(12):
        model: dict[str, list[object]] = {}
        for _ in range(40):
            with store.transaction():
                for _ in range(chance.randrange(4)):
                    given = submission(
                        schedule_type=chance.choice(["short", "long"]), lock_key=chance.choice([None, "a", "b", "c"])
                    )
                    store.insert(given)
                    model[given.request_id] = [given.schedule_type, given.lock_key, "PENDING"]
                running = [request_id for request_id, entry in model.items() if entry[2] == "RUNNING"]
                for request_id in chance.sample(running, chance.randrange(len(running) + 1)):
                    if chance.random() < 0.3:
                        assert store.requeue(request_id, reason="again")
                        model[request_id][2] = "PENDING"
                    else:
                        assert store.settle(request_id, "SUCCEEDED", now=1.0) is not None
                        model[request_id][2] = "SUCCEEDED"
                queue, slots = chance.choice(["short", "long"]), chance.randrange(4)
                expected = claimable_by_the_rules(store, queue, slots, model)
                claimed = store.claim(queue, ["slot"] * slots, BOOT, 1.0)
                assert [row.request_id for row in claimed] == expected
                for row in claimed:
                    model[row.request_id][2] = "RUNNING"
        with store.transaction():
            for request_id, status in store.active():
                if status == "PENDING":
                    assert store.cancel_pending(request_id, now=1.0, error="{}") is not None
                else:
                    assert store.settle(request_id, "CANCELLED", now=1.0) is not None
        assert reader.statuses(list(model)).keys() == model.keys()
