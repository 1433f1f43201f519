"""Claims with lease=None: only the row lock, nothing written before they are settled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete
from sqlalchemy.orm import Session

from sqlqueue import ClaimLostError, IllegalTransitionError, UnsettledClaimError, claim_of
from sqlqueue.queue.spec import QUEUE_ROLES
from tests.support.harness import Database
from tests.support.models import Ledger, Seat, Spool, Task
from tests.support.rows import PAST, load

SOON = timedelta(minutes=2)


def columns(task: Any) -> dict[str, Any]:
    return {role: getattr(task, role) for role in QUEUE_ROLES}


def test_a_lock_only_claim_writes_nothing(db: Database) -> None:
    db.insert(Task, [{"id": 1, "available_at": PAST}])
    session = db.session()
    task = session.claim(Task, lease=None)
    assert claim_of(task).attempt == 1
    stored = load(db, Task, 1)
    assert columns(task) == columns(stored)
    assert (stored.status, stored.attempt, stored.claimed_by) == ("available", 0, None)


@pytest.mark.parametrize(
    ("call", "arguments", "delay", "changes"),
    [
        ("complete", (), None, {"status": "completed"}),
        ("fail", ("no",), timedelta(seconds=30), {"status": "retryable", "error": "no"}),
        ("fail", ("no", SOON), SOON, {"status": "retryable", "error": "no"}),
        ("discard", ("no",), None, {"status": "discarded", "error": "no"}),
        ("cancel", (), None, {"status": "cancelled"}),
    ],
)
def test_lock_only_claims_are_settled_like_leased_ones(
    db: Database, call: str, arguments: Any, delay: timedelta | None, changes: dict[str, Any]
) -> None:
    db.insert(Task, [{"id": 1, "status": "running", "attempt": 1, "claimed_by": "crashed", "available_at": PAST}])
    before = columns(load(db, Task, 1))
    with db.begin() as session:
        getattr(session, call)(session.claim(Task, lease=None, claimed_by="me"), *arguments)
    after = columns(load(db, Task, 1))
    moment = after.pop("available_at")
    assert abs(moment - after.pop("claimed_at") - (delay or timedelta(0))) <= db.case.time_resolution
    assert after.pop("finished_at") == (None if delay else moment)
    del before["available_at"], before["claimed_at"], before["finished_at"]
    assert after == before | {"attempt": 2, "claimed_by": "me"} | changes


@pytest.mark.parametrize(
    ("call", "arguments", "status"), [("release", (), "available"), ("snooze", (SOON,), "scheduled")]
)
def test_a_lock_only_claim_that_is_handed_back_is_numbered(
    db: Database, call: str, arguments: Any, status: str
) -> None:
    db.insert(Task, [{"id": 1, "status": "retryable", "attempt": 2, "max_attempts": 3, "available_at": PAST}])
    before = columns(load(db, Task, 1))
    with db.begin() as session:
        getattr(session, call)(session.claim(Task, lease=None, claimed_by="me"), *arguments)
    after = columns(load(db, Task, 1))
    assert after.pop("available_at") > before.pop("available_at")
    assert (before.pop("claimed_at"), after.pop("claimed_at") is None) == (None, False)
    assert after == before | {"status": status, "attempt": 3, "max_attempts": 4, "claimed_by": "me"}


def test_the_last_failure_discards(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "retryable", "attempt": 2, "available_at": PAST}])
    with db.begin() as session:
        session.fail(session.claim(Task, lease=None), "third")
    assert (load(db, Task, 1).status, load(db, Task, 1).attempt) == ("discarded", 3)


def test_delete_on_complete(db: Database) -> None:
    db.insert(Spool, [{"id": 1}, {"id": 2}])
    with db.begin() as session:
        first, second = session.claim_many(Spool, limit=2, lease=None)
        session.complete(first)
        session.fail(second, "no")
    assert load(db, Spool, 2).status == "retryable"
    with Session(db.engine) as session:
        assert session.get(Spool, 1) is None


# -- the commit --------------------------------------------------------------------------------------------------------


@pytest.fixture
def unsettled(db: Database) -> tuple[Any, Any]:
    """Return a session whose commit was rejected, and the unsettled task."""
    db.insert(Task, [{"id": 1}, {"id": 2}])
    session = db.session()
    task = session.claim(Task, lease=None)
    session.add(Ledger(task_id=task.id))
    with pytest.raises(UnsettledClaimError, match="lease=None") as refused:
        session.commit()
    assert refused.value.claims == (claim_of(task),)
    with Session(db.engine) as other:
        assert other.query(Ledger).count() == 0
    return session, task


def test_a_rejected_commit_can_be_settled_and_repeated(db: Database, unsettled: tuple[Any, Any]) -> None:
    session, task = unsettled
    session.complete(task)
    session.commit()
    assert load(db, Task, 1).status == "completed"
    with Session(db.engine) as other:
        assert other.query(Ledger).count() == 1


@pytest.mark.requires("locks_rows")
def test_a_rejected_commit_keeps_the_lock(db: Database, unsettled: tuple[Any, Any]) -> None:
    with db.begin() as other:
        assert other.claim(Task).id == 2
        assert other.claim(Task) is None


def test_a_rejected_commit_can_be_rolled_back(db: Database, unsettled: tuple[Any, Any]) -> None:
    session, task = unsettled
    session.rollback()
    with pytest.raises(IllegalTransitionError, match="rolled back"):
        session.complete(task)
    session.commit()
    assert (load(db, Task, 1).status, load(db, Task, 1).attempt) == ("available", 0)


def test_the_block_of_a_sessionmaker_raises_and_rolls_back(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": 1}])
    block = sync_db.sessions().begin()
    session = block.__enter__()
    session.add(Ledger(task_id=1))
    session.claim(Task, lease=None)
    with pytest.raises(UnsettledClaimError):
        block.__exit__(None, None, None)
    assert load(sync_db, Task, 1).status == "available"
    with Session(sync_db.engine) as other:
        assert other.query(Ledger).count() == 0


def test_one_of_several_is_enough_to_refuse(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in (1, 2, 3)])
    session = db.session()
    first, *_ = session.claim_many(Task, limit=3, lease=None)
    session.complete(first)
    with pytest.raises(UnsettledClaimError) as refused:
        session.commit()
    assert sorted(claim.identity for claim in refused.value.claims) == [(2,), (3,)]


def test_releasing_a_savepoint_is_not_a_commit(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    savepoint = session.run(lambda sync: sync.begin_nested())
    task = session.claim(Task, lease=None)
    session.run(lambda _: savepoint.commit())
    with pytest.raises(UnsettledClaimError):
        session.commit()
    session.complete(task)
    session.commit()


def test_claimed_in_a_savepoint_that_is_rolled_back(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        savepoint = session.run(lambda sync: sync.begin_nested())
        session.claim(Task, lease=None)
        session.run(lambda _: savepoint.rollback())
    assert load(db, Task, 1).status == "available"


def test_settled_in_a_savepoint_that_is_rolled_back(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    task = session.claim(Task, lease=None)
    savepoint = session.run(lambda sync: sync.begin_nested())
    session.complete(task)
    session.run(lambda _: savepoint.rollback())
    with pytest.raises(UnsettledClaimError):
        session.commit()


def test_nothing_is_left_over_for_the_next_transaction(db: Database) -> None:
    db.insert(Task, [{"id": 1}, {"id": 2}])
    session = db.session()
    session.claim(Task, lease=None)
    session.rollback()
    session.complete(session.claim(Task, lease=None))
    session.commit()
    session.add(Ledger(task_id=9))
    session.commit()


# -- with others -------------------------------------------------------------------------------------------------------


def test_both_kinds_of_claims_in_one_call(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 5)])
    with db.begin() as session:
        leased = session.claim_many(Task, limit=2, claimed_by="leased")
        locked = session.claim_many(Task, limit=2, lease=None, claimed_by="locked")
        session.complete([leased[0], *locked, leased[1]])
    tasks = [load(db, Task, n) for n in range(1, 5)]
    assert {(task.status, task.attempt) for task in tasks} == {("completed", 1)}
    assert [task.claimed_by for task in tasks] == ["leased"] * 2 + ["locked"] * 2


def test_by_the_value_of_the_claim(db: Database) -> None:
    db.insert(Task, [{"id": 1}, {"id": 2}])
    with db.begin() as session:
        tasks = session.claim_many(Task, limit=2, lease=None)
        session.complete(claim_of(task) for task in tasks)
    assert load(db, Task, 1).status == load(db, Task, 2).status == "completed"


def test_a_deleted_row_raises_claim_lost(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    task = session.claim(Task, lease=None)
    session.execute(delete(Task).execution_options(synchronize_session=False))
    with pytest.raises(ClaimLostError):
        session.complete(task)


def test_any_number_of_keys_may_be_held(sync_db: Database) -> None:
    """SQLite limits the depth of expressions to 1,000."""
    many = 1_500
    sync_db.insert(Seat, [{"line": "x", "number": number} for number in range(many + 1)])
    with sync_db.begin() as actor:
        held = actor.claim_many(Seat, limit=many, lease=None)
        last = actor.claim_many(Seat, limit=many, lease=None)
        assert (len(held), len(last)) == (many, 1)
        actor.complete([*held, *last])


def test_a_row_that_is_only_locked_is_not_claimed_again_in_its_transaction(db: Database) -> None:
    # SKIP LOCKED skips only rows that other transactions have locked
    db.insert(Task, [{"id": 1}, {"id": 2}, {"id": 3}])
    with db.session() as session:
        claimed = [session.claim(Task, lease=None), session.claim(Task, lease=None), session.claim(Task)]
        assert [task.id for task in claimed] == [1, 2, 3]
        assert session.claim(Task) is None
        session.complete(claimed)
        session.commit()


def test_no_commit_drops_a_claim_that_only_locks(sync_db: Database) -> None:
    # the outermost transaction is committed within a savepoint that was left open
    sync_db.insert(Task, [{"id": 1}])
    session = sync_db.session()
    transaction = session.begin()
    session.begin_nested()
    session.claim(Task, lease=None)
    with pytest.raises(UnsettledClaimError):
        transaction.commit()
    session.close()
    # through another pool: this one could return the connection of the rejected commit
    assert sync_db.variant().session().claim(Task).attempt == 1
