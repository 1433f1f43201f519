"""A claim is settled once, and only while it holds its task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from sqlqueue import ClaimLostError, IllegalTransitionError, claim_of
from tests.suite.settlements import PAST, SETTLINGS, Settling, claim
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.rows import load

pytestmark = pytest.mark.asyncio_everywhere


def _taken_over(db: Database) -> None:
    with db.engine.begin() as connection:
        connection.execute(update(Task).values(available_at=PAST))
    assert claim(db, Task, claimed_by="successor") is not None


def _cancelled(db: Database) -> None:
    with db.begin() as session:
        assert session.cancel(Task) == 1


def _deleted(db: Database) -> None:
    with db.engine.begin() as connection:
        connection.execute(delete(Task))


@pytest.mark.parametrize("settling", SETTLINGS, ids=str)
@pytest.mark.parametrize("lose", [_taken_over, _cancelled, _deleted])
def test_a_lost_claim_settles_nothing(sync_db: Database, lose: Callable[[Database], None], settling: Settling) -> None:
    db = sync_db
    db.insert(Task, [{"id": 1}])
    task = claim(db, Task)
    lose(db)
    before = _all_rows(db)
    session = db.session()
    session.add(Ledger(task_id=1))
    with pytest.raises(ClaimLostError, match="Task") as lost:
        getattr(session, settling.name)(task, *settling.arguments)
    assert (lost.value.model, lost.value.identity, lost.value.attempt) == (Task, (1,), 1)
    assert lost.value.claims == (claim_of(task),)
    session.rollback()
    assert _all_rows(db) == before


def _all_rows(db: Database) -> list[Any]:
    with db.engine.connect() as connection:
        return [tuple(each) for model in (Task, Ledger) for each in connection.execute(select(model.__table__))]


def test_a_lost_claim_in_asyncio(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    task = claim(db, Task)
    _taken_over(db)
    with pytest.raises(ClaimLostError):
        db.session().complete(task)


def test_settled_elsewhere_is_lost(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    held = claim_of(claim(db, Task))
    with db.begin() as session:
        session.complete(held)
    with pytest.raises(ClaimLostError):
        db.session().fail(held, "no")
    assert load(db, Task, 1).error is None


def test_the_lost_claims_of_several_are_named(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 5)])
    with db.begin() as session:
        tasks = session.claim_many(Task, limit=4)
    with db.begin() as session:
        session.cancel(Task, Task.id.in_([2, 3]))
    session = db.session()
    with pytest.raises(ClaimLostError, match="and 1 more") as lost:
        session.complete(tasks)
    assert sorted(claim.identity for claim in lost.value.claims) == [(2,), (3,)]
    session.rollback()
    with db.begin() as session:
        session.complete([tasks[0], tasks[3]])


def test_a_claim_settles_after_its_lease_if_not_taken_over(db: Database) -> None:
    """The row has not changed otherwise, so the claim is not lost."""
    db.insert(Task, [{"id": 1}])
    task = claim(db, Task)
    with db.engine.begin() as connection:
        connection.execute(update(Task).values(available_at=PAST))
    with db.begin() as session:
        session.complete(task)
    assert load(db, Task, 1).status == "completed"


@pytest.mark.parametrize("settling", SETTLINGS, ids=str)
def test_an_unclaimed_or_settled_task_is_rejected(sync_db: Database, settling: Settling) -> None:
    sync_db.insert(Task, [{"id": 1}, {"id": 2}])
    with sync_db.begin() as session:
        task, unclaimed = session.claim(Task), session.get(Task, 2)
        session.complete(task)
        with pytest.raises(IllegalTransitionError, match="already settled: completed") as settled:
            getattr(session, settling.name)(task, *settling.arguments)
        assert settled.value.task is task
        with pytest.raises(IllegalTransitionError, match="was not claimed"):
            getattr(session, settling.name)(unclaimed, *settling.arguments)
        with pytest.raises(IllegalTransitionError):
            claim_of(task)


def test_heartbeat_settles_nothing(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.claim(Task)
        session.heartbeat(task)
        session.heartbeat(task)
        session.complete(task)


def test_a_rolled_back_settlement_can_be_repeated(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    task = claim(db, Task)
    session = db.session()
    session.complete(task)
    session.rollback()
    assert claim_of(task).attempt == 1
    session.fail(task, "second thoughts")
    session.commit()
    assert load(db, Task, 1).status == "retryable"


def test_settled_in_a_savepoint_that_is_rolled_back(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.claim(Task)
        savepoint = session.run(lambda sync: sync.begin_nested())
        session.complete(task)
        session.run(lambda _: savepoint.rollback())
        session.discard(task, "no")
    assert load(db, Task, 1).status == "discarded"


def test_settled_in_a_savepoint_that_is_kept(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.claim(Task)
        savepoint = session.run(lambda sync: sync.begin_nested())
        session.complete(task)
        session.run(lambda _: savepoint.commit())
        with pytest.raises(IllegalTransitionError):
            session.complete(task)
    assert load(db, Task, 1).status == "completed"


def test_business_writes_commit_with_the_completion(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    task = session.claim(Task)
    session.add(Ledger(task_id=task.id))
    session.add(Task(id=2, name="the next"))
    session.complete(task)
    session.rollback()
    assert [each[0] for each in _all_rows(db)] == [1]
    assert load(db, Task, 1).status == "available"
    with db.begin() as session:
        task = session.claim(Task)
        session.add_all([Ledger(task_id=task.id), Task(id=2, name="the next")])
        session.complete(task)
    assert len(_all_rows(db)) == 3


def test_a_claim_is_settled_by_its_value_after_the_commit(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.session() as session:
        task = session.claim(Task)
        session.commit()
        session.complete(claim_of(task))
        session.commit()
        session.refresh(task)
        assert task.status == "completed"


def test_settling_keeps_unwritten_attributes_loaded(db: Database) -> None:
    # with asyncio, an expired attribute cannot be read
    db.insert(Task, [{"id": 1}])
    with db.session() as session:
        task = session.claim(Task)
        session.heartbeat(task)
        assert (task.status, task.attempt, task.name) == ("running", 1, "")
        session.complete(task)
        assert (task.attempt, task.priority) == (1, 0)
