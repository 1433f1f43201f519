"""Claims with lease=None: only the row lock, nothing written before they are settled."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete

from sqlqueue import ClaimLostError, IllegalTransitionError, UnsettledClaimError, claim_of
from sqlqueue.model.declaration import COLUMNS
from tests.suite.settlements import VARIANTS
from tests.support.harness import Database
from tests.support.models import Ledger, Seat, Spool, Task
from tests.support.rows import PAST, count, load, load_all


def columns(task: Any) -> dict[str, Any]:
    return {role: getattr(task, role) for role in COLUMNS}


def test_a_lock_only_claim_writes_nothing(db: Database) -> None:
    db.insert(Task, [{"id": 1, "available_at": PAST}])
    session = db.session()
    task = session.claim(Task, lease=None)
    assert claim_of(task).attempt == 1
    stored = load(db, Task, 1)
    assert columns(task) == columns(stored)
    assert (stored.status, stored.attempt, stored.claimed_by) == ("available", 0, None)


CRASHED = {"status": "running", "claimed_at": PAST, "claimed_by": "crashed"}


@pytest.mark.parametrize("state", [{}, CRASHED], ids=["ready", "crashed"])
def test_lock_only_claims_are_settled_like_leased_ones(db: Database, state: dict[str, Any]) -> None:
    """But the row shows the claimer of a task that is handed back, too."""
    for number, settling in enumerate((each for each in VARIANTS if each.name != "heartbeat"), start=1):
        db.insert(Task, [{"id": number, "available_at": PAST, **state}])
        before = columns(load(db, Task, number))
        with db.begin() as session:
            settling(session, session.claim(Task, Task.id == number, lease=None, claimed_by="me"))
        after = columns(load(db, Task, number))
        moment = after.pop("available_at")
        assert abs(moment - after.pop("claimed_at") - settling.after) <= db.case.time_resolution, settling
        assert after.pop("finished_at") == (moment if settling.final else None), settling
        expected = before | settling.changes | {"attempt": 1, "claimed_by": "me"}
        assert after == {role: expected[role] for role in after}, settling


def test_delete_on_complete(db: Database) -> None:
    db.insert(Spool, [{"id": 1}, {"id": 2}])
    with db.begin() as session:
        first, second = session.claim_many(Spool, limit=2, lease=None)
        session.complete(first)
        session.fail(second, "no")
    assert [(task.id, task.status) for task in load_all(db, Spool)] == [(2, "retryable")]


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
    assert count(db, Ledger) == 0
    return session, task


def test_a_rejected_commit_can_be_settled_and_repeated(db: Database, unsettled: tuple[Any, Any]) -> None:
    session, task = unsettled
    session.complete(task)
    session.commit()
    assert load(db, Task, 1).status == "completed"
    assert count(db, Ledger) == 1
    session.add(Ledger(task_id=9))
    session.commit()  # nothing is left over for the next transaction


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
    with pytest.raises(UnsettledClaimError), sync_db.sessions().begin() as session:  # noqa: PT012 - as applications do
        session.add(Ledger(task_id=1))
        session.claim(Task, lease=None)
    assert load(sync_db, Task, 1).status == "available"
    assert count(sync_db, Ledger) == 0


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
    with session.begin_nested():
        task = session.claim(Task, lease=None)
    with pytest.raises(UnsettledClaimError):
        session.commit()
    session.complete(task)
    session.commit()


def test_settled_in_a_savepoint_that_is_rolled_back(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    task = session.claim(Task, lease=None)
    savepoint = session.run(lambda sync: sync.begin_nested())
    session.complete(task)
    session.run(lambda _: savepoint.rollback())
    with pytest.raises(UnsettledClaimError):
        session.commit()


# -- with others -------------------------------------------------------------------------------------------------------


def test_both_kinds_of_claims_in_one_call(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 6)])
    with db.begin() as session:
        leased = session.claim_many(Task, limit=2, claimed_by="leased")
        *locked, last = session.claim_many(Task, limit=3, lease=None, claimed_by="locked")
        session.complete([leased[0], *locked, leased[1], claim_of(last)])
    tasks = load_all(db, Task)
    assert {(task.status, task.attempt) for task in tasks} == {("completed", 1)}
    assert [task.claimed_by for task in tasks] == ["leased"] * 2 + ["locked"] * 3


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
