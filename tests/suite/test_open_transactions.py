"""Claims concurrent with open transactions: inserts, foreign-key children, and other isolation levels."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from sqlqueue import SQLQueueWarning, UnsupportedIsolationError
from tests.support.harness import Actor, Database
from tests.support.models import Account, Attachment, Mail, Task
from tests.support.rows import TOMORROW, contenders, count, ids, row, rows, waited, without_waiting

pytestmark = pytest.mark.asyncio_everywhere

locks_rows = pytest.mark.requires("locks_rows")
one_writer = pytest.mark.requires("one_writer")

# -- enqueueing is an insert, and waits for no other transaction -----------------------------------------------------

QUEUES = {
    "empty": [],
    "short": rows(3),
    "long": rows(50),
    "due": rows(3, "retryable"),
    "finished": [{**row, "status": "completed"} for row in rows(3)],
}


@locks_rows
@pytest.mark.parametrize("queue", QUEUES)
def test_enqueueing_does_not_wait_for_an_open_claim(sync_db: Database, queue: str) -> None:
    sync_db.insert(Task, QUEUES[queue])
    a, b = contenders(sync_db)
    a.claim_many(Task, limit=10)
    without_waiting(a, lambda: b.enqueue(Task, [{}, {"priority": -5}, {"priority": 5}]))
    without_waiting(a, lambda: b.enqueue([Task(), Task(available_at=TOMORROW)]))
    b.add(Task())
    without_waiting(a, b.flush)


@locks_rows
@pytest.mark.parametrize("lease", ["default", None])
def test_enqueueing_into_a_topic_that_is_being_claimed(sync_db: Database, lease: Any) -> None:
    sync_db.insert(Mail, [{**row, "topic": "news"} for row in QUEUES["short"]])
    a, b = contenders(sync_db)
    a.claim_many(Mail, Mail.topic == "news", limit=10, lease=lease)
    without_waiting(a, lambda: b.enqueue(Mail, [{"topic": "news"}]))


# -- children -------------------------------------------------------------------------------------------------------


@locks_rows
def test_an_open_insert_of_a_child_makes_no_claim_wait(db: Database) -> None:
    db.insert(Mail, [{**row, "id": n} for n, row in enumerate(rows(3), start=1)])
    claimer, other = contenders(db)
    other.add(Attachment(mail_id=1))
    other.flush()
    got = ids(without_waiting(other, lambda: claimer.claim_many(Mail, limit=3)))
    # where the insert locks the parent's row, a claim skips that row until then
    assert got == ({1, 2, 3} if db.case.children_never_wait else {2, 3})
    other.commit()
    assert got | ids(claimer.claim_many(Mail, limit=3)) == {1, 2, 3}


@locks_rows
@pytest.mark.parametrize("lease", ["default", None])
def test_a_child_of_a_claimed_row(db: Database, lease: Any) -> None:
    db.insert(Mail, [{**row, "id": n} for n, row in enumerate(rows(3), start=1)])
    claimer, other = contenders(db)
    task = claimer.claim(Mail, lease=lease)
    claimer.complete(task)

    def insert() -> None:
        other.add(Attachment(mail_id=1))
        other.commit()

    late, _ = waited(claimer, insert)
    # where the insert locks the parent's row, it waits for the claimer's transaction only
    assert late is not db.case.children_never_wait
    assert count(db, Attachment) == 1


@locks_rows
def test_the_parent_of_a_claimed_row_is_free(db: Database) -> None:
    db.insert(Account, [{"id": 1, "name": "Ada"}])
    db.insert(Mail, rows(2, account_id=1))
    claimer, other = contenders(db)
    claimer.claim(Mail)

    def rename() -> None:
        other.get(Account, 1).name = "Grace"
        other.commit()

    without_waiting(claimer, rename)


# -- isolation levels -----------------------------------------------------------------------------------------------

above = pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])


def level_of(actor: Actor) -> str:
    """The isolation level that the server, or the driver, reports."""
    return actor.run(lambda session: session.connection().get_isolation_level())


@locks_rows
@above
def test_a_claim_that_begins_the_transaction_runs_at_read_committed(db: Database, level: str) -> None:
    db.insert(Task, rows(20))
    a, b = contenders(db.variant(isolation_level=level))
    mine = ids(a.claim_many(Task, limit=5))
    assert level_of(a) == "READ COMMITTED"
    theirs = b.claim_many(Task, limit=5)
    a.commit()
    b.complete(theirs)
    b.commit()
    assert not mine & ids(theirs)
    assert level_of(a) == level, "the next transaction is the application's own"
    a.rollback()
    assert a.claim(Task).id not in mine | ids(theirs)
    assert level_of(a) == "READ COMMITTED", "each transaction chooses again"


@locks_rows
@above
def test_changes_by_criteria_run_at_read_committed(db: Database, level: str) -> None:
    db.insert(Task, rows(2))
    actor, other = contenders(db.variant(isolation_level=level))
    claimed = other.claim(Task)
    other.commit()
    assert actor.cancel(Task, Task.id != claimed.id) == 1
    assert level_of(actor) == "READ COMMITTED"
    other.heartbeat(claimed)
    other.commit()
    assert actor.cancel(Task, Task.id == claimed.id) == 1


@locks_rows
@above
def test_a_claim_later_in_a_transaction_works_and_warns_once(db: Database, level: str) -> None:
    db.insert(Task, rows(5))
    actor = db.variant(isolation_level=level).session()
    actor.scalars(select(Account)).all()
    with pytest.warns(SQLQueueWarning, match="isolation_level"):
        tasks = [actor.claim(Task)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tasks += actor.claim_many(Task, limit=2)
    assert level_of(actor) == level
    actor.complete(tasks)
    actor.commit()
    actor.scalars(select(Account)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert actor.claim(Task) is not None
    assert [row(db, task)["status"] for task in tasks] == ["completed"] * 3


@locks_rows
def test_a_stale_snapshot_hides_no_claimed_row(db: Database) -> None:
    actor = db.variant(isolation_level="REPEATABLE READ").session()
    assert actor.scalars(select(Task)).all() == []  # takes the snapshot
    db.insert(Task, rows(3))
    with pytest.warns(SQLQueueWarning):
        tasks = claimed_or_refused(actor)
    # the others do not see it, or see it as claimed
    assert [task.status for task in tasks] == ["running"] * len(tasks)


def claimed_or_refused(actor: Actor) -> list[Task]:
    try:
        return actor.claim_many(Task, limit=3)
    except DBAPIError:  # some engines cannot lock rows newer than the snapshot: nothing is claimed and nothing is lost
        return []


@locks_rows
def test_a_claim_in_autocommit_is_rejected(db: Database) -> None:
    db.insert(Task, rows(1))
    actor = db.variant(isolation_level="AUTOCOMMIT").session()
    actor.scalars(select(Account)).all()
    with pytest.raises(UnsupportedIsolationError) as caught:
        actor.claim(Task)
    assert caught.value.level == "AUTOCOMMIT"
    assert count(db, Task, Task.status == "available") == 1


def test_a_claim_begins_a_transaction_if_there_is_none(db: Database) -> None:
    db.insert(Task, rows(1))
    (actor,) = contenders(db.variant(isolation_level="AUTOCOMMIT"), 1)
    task = actor.claim(Task)
    assert task is not None
    actor.rollback()
    assert row(db, task)["status"] == "available"
    actor.complete(actor.claim(Task))
    actor.commit()
    assert row(db, task)["status"] == "completed"


@one_writer
def test_one_writer_claims_at_serializable(db: Database) -> None:
    db.insert(Task, rows(2))
    actor = db.variant(isolation_level="SERIALIZABLE").session()
    actor.scalars(select(Account)).all()
    assert len(actor.claim_many(Task, limit=2, lease=timedelta(seconds=9))) == 2
    actor.commit()
