"""What once went wrong, and no other test would notice."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import String, select
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import DuplicateTaskError, QueueMixin, UnsettledClaimError, claim_of
from tests.harness import Database
from tests.models import Task


class Other(DeclarativeBase):
    pass


class Member(QueueMixin, Other):
    """Has a second key."""

    __tablename__ = "member"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    email: Mapped[str] = mapped_column(String(50), unique=True)


def test_a_row_that_is_only_locked_is_not_claimed_again_in_its_transaction(db: Database) -> None:
    # SKIP LOCKED passes over the locks of others alone
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
    # through another pool: this one could hand out the very connection that was refused
    assert sync_db.variant().session().claim(Task).attempt == 1


@pytest.mark.parametrize("on_conflict", ["ignore", "replace", "rerun"])
def test_another_unique_key_names_no_task(sync_db: Database, on_conflict: str) -> None:
    Other.metadata.create_all(sync_db.engine)
    try:
        with sync_db.begin() as session:
            session.enqueue(Member(id=1, email="a"))
        with sync_db.session() as session:
            with pytest.raises(DuplicateTaskError):
                session.enqueue(Member(id=2, email="a", priority=7), on_conflict=on_conflict)
            session.rollback()
            assert session.execute(select(Member.id, Member.priority)).all() == [(1, 0)]
            session.rollback()
    finally:
        Other.metadata.drop_all(sync_db.engine)


def test_claimers_with_a_criterion_do_not_disturb_each_other(sync_db: Database) -> None:
    sync_db.insert(Task, [{"number": n % 2} for n in range(400)])

    def drain(_: int) -> list[int]:
        done: list[int] = []
        while True:
            with sync_db.sessions()() as session:
                tasks = session.claim_many(Task, Task.number == 1, limit=5)
                done += [task.id for task in tasks]
                session.complete(tasks)
                session.commit()
            if not tasks:
                return done

    with ThreadPoolExecutor(4) as threads:
        done = [key for keys in threads.map(drain, range(4)) for key in keys]
    assert (len(done), len(set(done))) == (200, 200)


def test_a_claim_is_settled_by_its_value_after_the_commit(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.session() as session:
        task = session.claim(Task)
        session.commit()
        session.complete(claim_of(task))
        session.commit()
        session.refresh(task)
        assert task.status == "completed"


def test_settling_leaves_at_hand_what_it_did_not_write(db: Database) -> None:
    # through asyncio, an expired attribute cannot be looked at
    db.insert(Task, [{"id": 1}])
    with db.session() as session:
        task = session.claim(Task)
        session.heartbeat(task)
        assert (task.status, task.attempt, task.name) == ("running", 1, "")
        session.complete(task)
        assert (task.attempt, task.priority) == (1, 0)


def test_the_type_of_a_moment_can_be_pickled() -> None:
    kind = Task.__table__.c.available_at.type
    copy = pickle.loads(pickle.dumps(kind))
    for dialect in (mysql.dialect(), postgresql.dialect()):
        assert copy.compile(dialect) == kind.compile(dialect)
