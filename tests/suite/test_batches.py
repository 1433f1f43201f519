"""Sets of tasks are changed in batches, with a limit for each transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy.orm import Session

from sqlqueue import ClaimLostError, Every, cancel, claim_of, retry
from sqlqueue.dialects import adapter_for
from sqlqueue.operations import bulk
from sqlqueue.operations.bulk import Batch, in_batches, limited
from sqlqueue.queue.options import DUE, FINAL
from sqlqueue.queue.spec import spec_of
from sqlqueue.sql import is_final
from tests.support.harness import Actor, Database
from tests.support.models import Listing, Parcel, Report, Seat, Slot, Task, Visit
from tests.support.rows import PAST, TOMORROW, count, rows

CRASHED = {"status": "running", "available_at": PAST, "claimed_at": PAST, "attempt": 3, "max_attempts": 3}
DEAD = {"status": "discarded", "finished_at": PAST, "available_at": PAST, "attempt": 3}
LATER = {"status": "scheduled", "available_at": TOMORROW}

Call = Callable[[Actor, int], int]
CALLS: dict[str, Call] = {
    "cancel": lambda session, limit: session.cancel(Task, Task.number == 1, limit=limit),
    "discard": lambda session, limit: session.discard(Task, Task.number == 1, error="no", limit=limit),
    "retry": lambda session, limit: session.retry(Task, Task.number == 1, limit=limit),
    "rescue": lambda session, limit: session.rescue(Task, limit=limit),
    "rerun": lambda session, limit: session.rerun(Task, Task.number == 1, limit=limit),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_transaction_changes_at_most_the_limit_and_the_loop_ends(db: Database, name: str) -> None:
    """The table has five rows in each state that the call changes, and others."""
    unfinished = [*rows(2, "ready", number=1), *rows(3, "scheduled", "retryable", "expired", number=1)]
    failed = [{**DEAD, "number": 1}] * 3 + rows(2, "retryable", "expired", number=1)
    final = [{**DEAD, "number": 1, "status": status} for status in (*FINAL, "completed", "cancelled")]
    mine = {"retry": failed, "rescue": [{**CRASHED, "number": 1}] * 5, "rerun": final}.get(name, unfinished)
    for each in [*mine, *({**row, "number": 2} for row in mine if name != "rescue"), LATER]:
        db.insert(Task, [each])
    changed = []
    with db.session() as session:
        while number := CALLS[name](session, 2):
            session.commit()
            changed.append(number)
    assert changed == [2, 2, 1]
    if name != "rescue":
        assert count(db, Task, Task.number == 2, Task.status.in_({row["status"] for row in mine})) == 5


def test_the_first_in_the_order_of_claims_are_changed_first(db: Database) -> None:
    db.insert(Task, [{"id": n, "priority": -n, "available_at": PAST} for n in range(1, 5)])
    assert db.committed.cancel(Task, limit=2) == 2
    assert count(db, Task, Task.id > 2, Task.status == "cancelled") == 2


def test_rows_that_cannot_be_changed_end_the_loop(db: Database) -> None:
    db.insert(Task, rows(5, "scheduled"))
    spec, asked = spec_of(Task), list[Any]()

    def change_nothing(chosen: Any) -> int:
        asked.append(chosen)
        return 0

    assert db.committed.run(limited, spec, ~is_final(spec), 2, change_nothing, among=DUE) == 0
    assert len(asked) == 1


def test_slots_are_given_up_in_parts(db: Database) -> None:
    db.insert(Visit, [{"id": n, "limit_key": key, "available_at": PAST} for n, key in enumerate("aabbcc", 1)])
    assert len(db.committed.claim_many(Visit, limit=5)) == 5
    ended = []
    with db.session() as session:
        while number := session.cancel(Visit, limit=4):
            session.commit()
            ended.append(number)
    assert ended == [4, 2]
    assert count(db, Slot, Slot.status == "running") == 0


def test_all_recurring_tasks_are_rescued_a_statement_at_a_time(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_for(db.session_engine.dialect).rows, "batch", 2)
    crashed = {**CRASHED, "schedule": str(Every(timedelta(hours=1))), "scheduled_for": PAST}
    db.insert(Report, [crashed] * 7)
    with db.begin() as session:
        assert session.rescue(Report, limit=3) == 3
        assert session.rescue(Report) == 4
        assert session.rescue(Report) == 0
    assert count(db, Report, Report.status == "scheduled", Report.error.is_not(None)) == 7


# -- a transaction each ------------------------------------------------------------------------------------------------


def cancelling(session: Any, entity: Any, size: int) -> Iterator[Batch]:
    spec = spec_of(entity)
    return in_batches(session, spec, ~is_final(spec), partial(cancel, session, entity), size=size)


@pytest.mark.parametrize(("entity", "keys"), [(Parcel, {}), (Seat, {"line": "A"})])
def test_each_batch_is_committed(db: Database, entity: Any, keys: dict[str, Any], monkeypatch: Any) -> None:
    """There are keys of every kind, and more of them than are read at a time."""
    monkeypatch.setattr(bulk, "PAGE", 4)
    db.committed.add_all([entity(**keys, **({"number": n} if keys else {})) for n in range(7)])
    with db.session() as session:
        found = session.run(lambda inner: list(cancelling(inner, entity, 3)))
        session.rollback()
    assert sorted(found) == [Batch(1), Batch(3), Batch(3)]
    assert count(db, entity, entity.status == "cancelled") == 7


@pytest.mark.parametrize("end", ["claimed", "completed"])
def test_tasks_that_others_change_between_batches(sync_db: Database, end: str) -> None:
    """Claimed ones are changed too, finished ones are not."""
    sync_db.insert(Task, rows(4, "ready"))
    with sync_db.session() as session:
        going = cancelling(session.session, Task, 2)
        assert next(going) == Batch(2)
        task = sync_db.committed.claim(Task)
        if end == "completed":
            sync_db.committed.complete(claim_of(task))
        assert list(going) == [Batch(1 if end == "completed" else 2)]
        if end == "claimed":
            with pytest.raises(ClaimLostError):
                sync_db.committed.complete(claim_of(task))
    assert count(sync_db, Task, Task.status == "completed") == (end == "completed")


@pytest.mark.parametrize("taken", ["bg", "abcdef"], ids=["some", "more than are read at a time"])
def test_tasks_without_a_free_slot_do_not_block_others(
    db: Database, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 5)
    db.insert(Listing, [{**DEAD, "former_key": key} for key in "abcdefgh"])
    db.insert(Listing, [{"unique_key": key} for key in taken])
    spec = spec_of(Listing)

    def retried(session: Session) -> list[Batch]:
        dead = spec["status"].in_(FINAL)
        return list(in_batches(session, spec, dead, partial(retry, session, Listing), size=4))

    with db.session() as session:
        found = session.run(retried)
    assert sum(batch.changed for batch in found) == 8 - len(taken)
    assert sum(batch.taken for batch in found) == len(taken)
    assert count(db, Listing, Listing.status == "available") == 8
