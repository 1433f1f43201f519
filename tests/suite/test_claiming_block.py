"""with claiming(...): completes the task, or records the failure and continues."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

import sqlqueue
from sqlqueue import ClaimLostError, UnsettledClaimError
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.rows import load, load_all


class Stop(BaseException):
    """Stands in for KeyboardInterrupt, which an event loop would handle itself."""


def outcome(db: Database) -> tuple[str, str | None]:
    task = load(db, Task, 1)
    return task.status, task.error


def written(db: Database) -> list[int]:
    with Session(db.engine) as session:
        return list(session.scalars(select(Ledger.task_id).order_by(Ledger.task_id)))


def test_the_block_completes_its_task(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        with session.claiming(Task, Task.id == 1, claimed_by="me") as task:
            assert task.status == "running"
            session.add(Ledger(task_id=task.id))
        session.refresh(task)
        assert task.status == "completed"
    assert (load(db, Task, 1).status, load(db, Task, 1).claimed_by) == ("completed", "me")
    assert written(db) == [1]


def test_the_block_gets_none_from_an_empty_queue(db: Database) -> None:
    with db.begin() as session, session.claiming(Task) as task:
        assert task is None
        session.add(Ledger(task_id=7))
    assert written(db) == [7]


def test_an_error_with_nothing_claimed_is_raised(db: Database) -> None:
    session = db.session()
    with pytest.raises(ZeroDivisionError), session.claiming(Task):
        raise ZeroDivisionError


def test_the_block_records_a_failure_and_continues(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    db.insert(Task, [{"id": 1}, {"id": 2}])
    with db.begin() as session:
        session.add(Ledger(task_id=100))
        for _ in range(2):
            with session.claiming(Task) as task:
                session.add(Ledger(task_id=task.id))
                session.flush()
                if task.id == 1:
                    raise ValueError("no such address")
        session.add(Ledger(task_id=200))
    assert written(db) == [2, 100, 200]
    assert outcome(db) == ("retryable", "ValueError: no such address")
    assert load(db, Task, 1).attempt == 1
    assert load(db, Task, 2).status == "completed"
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("sqlqueue", logging.WARNING)
    assert record.getMessage() == "task 1: attempt 1 (2 left) failed (ValueError: no such address), retry in 10 s"


@pytest.mark.one_engine
def test_a_dead_letter_is_logged_as_an_error(sync_db: Database, caplog: pytest.LogCaptureFixture) -> None:
    sync_db.insert(Task, [{"attempt": 2}])
    with sync_db.begin() as session, session.claiming(Task):
        raise ValueError("no such address\x1b[2J\nINFO all is well")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().endswith(": attempt 3 (0 left) failed (ValueError: no such address\\x1b[2J), discarded")
    assert "\x1b" not in caplog.text
    assert "\nINFO" not in caplog.text


def test_an_error_of_the_database_is_a_failure_like_any(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        with session.claiming(Task):
            session.add_all([Ledger(task_id=1), Ledger(task_id=1)])
            session.flush()
        session.add(Ledger(task_id=2))
    assert (load(db, Task, 1).status, written(db)) == ("retryable", [2])
    assert load(db, Task, 1).error.startswith("IntegrityError: ")


@pytest.mark.parametrize(
    ("call", "arguments", "status"),
    [("discard", ("no",), "discarded"), ("release", (), "available"), ("complete", (), "completed")],
)
def test_a_task_may_be_settled_in_the_block(db: Database, call: str, arguments: Any, status: str) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session, session.claiming(Task) as task:
        getattr(session, call)(task, *arguments)
    assert load(db, Task, 1).status == status


def test_a_settlement_in_a_block_that_fails_is_rolled_back(db: Database) -> None:
    """The block's writes are rolled back, including its settlement."""
    db.insert(Task, [{"id": 1}])
    with db.begin() as session, session.claiming(Task) as task:
        session.complete(task)
        raise ValueError
    assert outcome(db) == ("retryable", "ValueError")


def test_claim_lost_error_propagates(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    with pytest.raises(ClaimLostError), session.claiming(Task):  # noqa: PT012 - the block is what is tested
        session.cancel(Task)
        session.complete(session.identity_map.values()[0])
    session.rollback()
    assert load(db, Task, 1).status == "available"


def test_base_exceptions_are_not_recorded(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    with pytest.raises(Stop), session.claiming(Task):  # noqa: PT012 - the block is what is tested
        session.add(Ledger(task_id=1))
        raise Stop
    session.commit()
    assert outcome(db) == ("running", None)
    assert written(db) == []


@pytest.mark.one_engine
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_are_not_recorded(sync_db: Database, interrupt: type[BaseException]) -> None:
    sync_db.insert(Task, [{"id": 1}])
    with sync_db.begin() as session, pytest.raises(interrupt), session.claiming(Task):
        raise interrupt
    assert outcome(sync_db) == ("running", None)


@pytest.mark.asyncio_everywhere
def test_cancellation_is_not_recorded(db: Database) -> None:
    if not db.is_async:
        pytest.skip("tasks are cancelled in event loops")
    db.insert(Task, [{"id": 1}])
    variant = db.variant()

    async def work(arrived: asyncio.Event) -> None:
        async with variant.sessions()() as session, session.claiming(Task):
            arrived.set()
            await asyncio.sleep(60)

    async def main() -> None:
        working = asyncio.create_task(work(arrived := asyncio.Event()))
        await arrived.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert isinstance(variant.bind, AsyncEngine)
        await variant.bind.dispose()

    asyncio.run(main())
    assert outcome(db) == ("available", None)


def test_a_block_without_a_lease(db: Database) -> None:
    db.insert(Task, [{"id": 1}, {"id": 2}])
    with db.begin() as session:
        with session.claiming(Task, lease=None):
            pass
        with session.claiming(Task, lease=None):
            raise ValueError("no")
    assert [(task.status, task.attempt) for task in load_all(db, Task)] == [("completed", 1), ("retryable", 1)]


def test_an_interrupted_block_without_a_lease(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    with pytest.raises(Stop), session.claiming(Task, lease=None):
        raise Stop
    with pytest.raises(UnsettledClaimError):
        session.commit()


def test_the_function_on_a_plain_session(db: Database) -> None:
    db.insert(Task, [{"id": 1}])

    def work(session: Session) -> None:
        with sqlqueue.claiming(session, Task) as task:
            assert task is not None
            session.add(Ledger(task_id=task.id))

    with db.begin(class_=db.plain_class) as session:
        session.run(work)
    assert (load(db, Task, 1).status, written(db)) == ("completed", [1])
