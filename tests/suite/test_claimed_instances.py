"""The state of claims in instances and sessions."""

from __future__ import annotations

import pickle

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sqlqueue
from sqlqueue import Claim, ClaimLostError, IllegalTransitionError, claim_of
from sqlqueue.operations.claiming import ClaimQuery, claim_matching
from sqlqueue.queue.spec import spec_of
from tests.suite.claiming import PAST, claimed, ids
from tests.support.harness import Actor, Database
from tests.support.models import Task
from tests.support.rows import load


def test_claim_of_is_a_value_that_settles_anywhere(db: Database) -> None:
    db.insert(Task, [{"id": 7}])
    with db.begin() as session:
        held = claim_of(session.claim(Task))
    assert held == Claim(Task, (7,), 1, load(db, Task, 7).claim_token)
    with db.begin() as session:
        session.complete(pickle.loads(pickle.dumps(held)))
    assert load(db, Task, 7).status == "completed"


def test_a_claim_outlives_its_instance(db: Database) -> None:
    """The session holds its instances by weak references."""
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        session.complete(claim_of(session.claim(Task)))
    assert load(db, Task, 1).status == "completed"


def _take_over(db: Database, key: int) -> None:
    with db.engine.begin() as connection:
        connection.execute(text(f"UPDATE task SET available_at = '2020-01-01 00:00:00.000000' WHERE id = {key}"))
    assert claimed(db, claimed_by="successor") == [key]


@pytest.mark.parametrize("reload", ["expire", "refresh", "detach"])
def test_a_reload_does_not_let_a_zombie_pass_the_fence(db: Database, reload: str) -> None:
    db.insert(Task, [{"id": 1}])
    zombie = db.session(expire_on_commit=reload == "expire")
    task = zombie.claim(Task)
    zombie.commit()
    _take_over(db, 1)
    if reload == "detach":
        zombie.close()
    elif reload == "refresh":
        zombie.refresh(task)
        assert task.attempt == 2
    with pytest.raises(ClaimLostError) as lost:
        zombie.complete(task)
    assert (lost.value.model, lost.value.identity, lost.value.attempt) == (Task, (1,), 1)
    zombie.rollback()
    assert (load(db, Task, 1).status, load(db, Task, 1).claimed_by) == ("running", "successor")


def test_a_rollback_leaves_no_trace(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    task = session.claim(Task)
    session.rollback()
    assert (load(db, Task, 1).status, load(db, Task, 1).attempt) == ("available", 0)
    with pytest.raises(IllegalTransitionError, match="rolled back"):
        claim_of(task)


def test_a_savepoint_rolled_back_takes_its_claims_along(db: Database) -> None:
    db.insert(Task, [{"id": 1}, {"id": 2}])
    with db.begin() as session:
        kept = session.claim(Task)
        savepoint = session.run(lambda sync: sync.begin_nested())
        undone = session.claim(Task)
        session.run(lambda _: savepoint.rollback())
        with pytest.raises(IllegalTransitionError):
            claim_of(undone)
        session.complete(kept)
    assert (load(db, Task, 1).status, load(db, Task, 2).status) == ("completed", "available")


def _plain(db: Database) -> Actor:
    return db.session(class_=AsyncSession if db.is_async else Session)


def test_functions_on_a_plain_session(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in (1, 2, 3)])
    session = _plain(db)
    task = session.run(sqlqueue.claim, Task, Task.id == 2, claimed_by="me")
    session.run(sqlqueue.complete, task)
    rest = session.run(sqlqueue.claim_many, Task, limit=5)
    session.run(sqlqueue.release, rest)
    session.commit()
    assert [load(db, Task, n).status for n in (1, 2, 3)] == ["available", "completed", "available"]


def test_a_claim_takes_two_steps_at_most(db: Database) -> None:
    """A claim that finds nothing queries ready rows and due rows, and sends nothing else."""
    statements: list[str] = []
    with db.begin() as session:
        assert session.claim(Task) is None  # statements that are sent only once per engine
        event.listen(db.session_engine, "before_cursor_execute", record := lambda *args: statements.append(args[2]))
        try:
            session.claim(Task)
        finally:
            event.remove(db.session_engine, "before_cursor_execute", record)
    assert len(statements) == 2


def test_ready_rows_can_be_requested_alone(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "scheduled", "available_at": PAST}])
    db.insert(Task, [{"id": 2}, {"id": 3}])
    wanted = ClaimQuery(spec_of(Task))
    with db.begin() as actor:
        assert ids(actor.run(claim_matching, wanted.ready, 3)) == [2, 3]
        assert ids(actor.run(claim_matching, wanted.ready, 3)) == []
        assert ids(actor.run(claim_matching, wanted, 3)) == [1]
