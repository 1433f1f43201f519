"""A claim settles its task only while it holds it, whether passed as an instance or as a value."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, select

from sqlqueue import Claim, ClaimLostError, IllegalTransitionError, claim_of
from tests.suite import children
from tests.suite.settlements import SETTLINGS, VARIANTS, Settling
from tests.support.harness import Actor, Database
from tests.support.models import Ledger, Spool, Task
from tests.support.processes import Processes
from tests.support.rows import PAST, count, end_leases, load, load_all, row, rows
from tests.support.workers import seen


def claimed(db: Database) -> tuple[Actor, Task]:
    """Return a session that has committed its claim of a new task."""
    db.insert(Task, rows(1))
    actor = db.session()
    task = actor.claim(Task, claimed_by="first")
    actor.commit()
    return actor, task


def everything(db: Database) -> list[Any]:
    with db.engine.connect() as connection:
        return [tuple(each) for model in (Task, Ledger) for each in connection.execute(select(model.__table__))]


def assert_lost(db: Database, actor: Actor, settling: Settling, task: Any) -> None:
    """Assert that the call is rejected, the transaction's writes are rolled back, and no row is changed."""
    lost = task if isinstance(task, Claim) else claim_of(task)
    before = everything(db)
    actor.add(Ledger(task_id=1))
    actor.flush()
    with pytest.raises(ClaimLostError, match="Task") as caught:
        settling(actor, task)
    actor.rollback()
    assert (caught.value.model, caught.value.identity, caught.value.attempt) == (Task, lost.identity, 1)
    assert caught.value.claims == (lost,)
    assert everything(db) == before


# except that of the successor, the attempt is still the claim's, but the status is not
LOSSES: dict[str, Callable[[Actor, list[Task]], Any]] = {
    "taken over": lambda actor, tasks: actor.claim_many(Task, limit=len(tasks), claimed_by="second"),
    "cancelled": lambda actor, tasks: actor.cancel(Task),
    "completed": lambda actor, tasks: actor.complete([claim_of(task) for task in tasks]),
    "released": lambda actor, tasks: actor.release([claim_of(task) for task in tasks]),
    "deleted": lambda actor, tasks: actor.execute(delete(Task)),
}


def expired(actor: Actor, task: Task) -> Task:
    actor.expire(task)  # a reload shows the successor's attempt, which differs from the claim's
    return task


def refreshed(actor: Actor, task: Task) -> Task:
    actor.refresh(task)
    assert (task.attempt, task.claimed_by) == (2, "second")
    assert claim_of(task).attempt == 1
    return task


def of_a_closed_session(actor: Actor, task: Task) -> Task:
    actor.close()
    return task


def pickled(_: Actor, task: Task) -> Any:
    return pickle.loads(pickle.dumps(claim_of(task)))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_claim_by_its_instance(db: Database, loss: str) -> None:
    assert_lost_in_each_way(db, loss, lambda _, task: task)


@pytest.mark.parametrize("passed", [expired, refreshed, of_a_closed_session, pickled])
def test_a_claim_taken_over_by_its_value_or_another_state_of_its_instance(
    db: Database, passed: Callable[[Actor, Task], Any]
) -> None:
    assert_lost_in_each_way(db, "taken over", passed)


def assert_lost_in_each_way(db: Database, loss: str, passed: Callable[[Actor, Task], Any]) -> None:
    """Try to settle a task in each way, with the session that has lost its claim if the instance is still in it."""
    elsewhere = passed in (of_a_closed_session, pickled)
    held = [claimed(db) for _ in VARIANTS]
    end_leases(db)
    with db.begin() as other:
        LOSSES[loss](other, [task for _, task in held])
    for settling, (actor, task) in zip(VARIANTS, held, strict=True):
        assert_lost(db, db.session() if elsewhere else actor, settling, passed(actor, task))


def test_a_held_claim_settles_by_its_value_from_another_process(sync_db: Database, processes: Processes) -> None:
    _, task = claimed(sync_db)
    outcome = processes.spawn(children.settle, sync_db.url, claim_of(task), ["heartbeat", "complete", "fail"]).result()
    assert outcome == {"heartbeat": "done", "complete": "done", "fail": f"lost Task {(task.id,)} 1"}
    assert row(sync_db, task)["status"] == "completed"


def test_lost_claims_among_many_refuse_them_all(db: Database) -> None:
    for settling in SETTLINGS.values():
        db.insert(Task, rows(4))
        tasks = db.committed.claim_many(Task, limit=4)
        db.committed.cancel(Task, Task.id.in_([tasks[1].id, tasks[2].id]))
        before = everything(db)
        actor = db.session()
        for given in (tasks, [claim_of(task) for task in tasks]):
            with pytest.raises(ClaimLostError, match="and 1 more") as caught:
                settling(actor, given)
            actor.rollback()
            assert {*caught.value.claims} == {claim_of(tasks[1]), claim_of(tasks[2])}
            assert everything(db) == before
        settling(actor, [tasks[0], claim_of(tasks[3])])
        actor.commit()
        assert everything(db) != before


def test_a_deleting_queue_deletes_nothing_for_a_zombie(db: Database) -> None:
    db.insert(Spool, rows(1))
    task = db.committed.claim(Spool)
    end_leases(db, Spool)
    assert db.committed.claim(Spool) is not None
    with db.session() as actor, pytest.raises(ClaimLostError):
        actor.complete(claim_of(task))
    assert count(db, Spool) == 1


def test_an_ended_lease_that_was_not_taken_over_still_holds(db: Database) -> None:
    held = [claimed(db) for _ in SETTLINGS]
    end_leases(db)
    for settling, (actor, task) in zip(SETTLINGS.values(), held, strict=True):
        settling(actor, task)
        actor.commit()
        assert row(db, task)["available_at"] > PAST
        assert row(db, task)["status"] == settling.changes.get("status", "running")


# -- what holds a claim ------------------------------------------------------------------------------------------------


def test_an_unclaimed_or_settled_task_is_rejected(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": 1}, {"id": 2}, {"id": 3}])
    with sync_db.begin() as session:
        task, other = session.claim_many(Task, limit=2)
        unclaimed = session.get(Task, 3)
        session.complete(task)
        with seen(sync_db, "before_cursor_execute") as statements:
            for settling in VARIANTS:
                for given in (task, [other, task]):
                    with pytest.raises(IllegalTransitionError, match="already settled: completed") as settled:
                        settling(session, given)
                    assert settled.value.task is task
                for given, words in ((unclaimed, "^Task 3"), ([unclaimed], "^Task 3"), (Task(), "^a new Task")):
                    with pytest.raises(IllegalTransitionError, match=f"{words} was not claimed"):
                        settling(session, given)
            with pytest.raises(IllegalTransitionError):
                claim_of(task)
        assert statements == []


def test_a_claim_outlives_its_instance(db: Database) -> None:
    """The session holds its instances by weak references."""
    db.insert(Task, [{"id": 1}, {"id": 2}])
    with db.begin() as session:
        session.complete(claim_of(session.claim(Task)))
        session.complete(claim_of(session.claim(Task, lease=None)))
    assert [(task.status, task.attempt) for task in load_all(db, Task)] == [("completed", 1)] * 2


def test_a_merged_copy_has_no_claim_but_its_instance_still_has(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": 1}])
    with sync_db.session() as session:
        task = session.claim(Task)
        session.commit()
    with sync_db.session() as session:
        copy = session.merge(task)
        copy.priority = 5
        with pytest.raises(IllegalTransitionError):
            session.complete(copy)
        session.complete(task)
        session.commit()
        session.refresh(copy)
        assert (copy.status, copy.priority) == ("completed", 5)


def test_business_writes_commit_with_the_completion(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    before = everything(db)
    for commits in (False, True):
        with db.session() as session:
            task = session.claim(Task)
            session.add_all([Ledger(task_id=task.id), Task(id=2, name="the next")])
            session.complete(task)
            if not commits:
                session.rollback()
                assert everything(db) == before
            session.commit()
    assert (len(everything(db)), load(db, Task, 1).status) == (3, "completed")
