"""Deadlock victims: the handler is called again at once, and its effects are committed once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, select, update
from sqlalchemy.exc import DBAPIError

from sqlqueue import Worker, claim_of
from sqlqueue.dialects import adapter_for
from tests.support.harness import Database
from tests.support.models import Account, Ledger, Task
from tests.support.rows import rows
from tests.support.workers import Running, all_are, eventually, nothing, with_session

Part = Callable[[Any, Any], None]
pytestmark = [pytest.mark.asyncio_everywhere, pytest.mark.requires("locks_rows")]


def meeting_halfway(db: Database, first: Part, second: Part, calls: list[int]) -> Any:
    """A handler whose two tasks are both done with `first`, at their first calls, before either begins `second`."""

    def meet(task: Any) -> None:
        calls.append(task.id)
        while len(set(calls)) < 2:
            time.sleep(0.01)

    return with_session(db, second, before=first, during=meet)


def book(session: Any, account: int) -> None:
    session.execute(update(Account).where(Account.id == account).values(name=Account.name + "x"))


def book_own(session: Any, task: Any) -> None:
    session.add(Ledger(task_id=task.id))
    book(session, task.number)


def book_other(session: Any, task: Any) -> None:
    book(session, 3 - task.number)


def book_other_in_savepoint(session: Any, task: Any) -> None:
    with session.begin_nested():
        book(session, 3 - task.number)


def look(session: Any, task: Any) -> None:
    session.add(Ledger(task_id=task.id))
    task.seen = session.scalars(select(Account.name).order_by(Account.id)).all()


def write_what_was_seen(session: Any, task: Any) -> None:
    for number, name in enumerate(task.seen, 1):
        session.execute(update(Account).where(Account.id == number).values(name=name + "x"))


@pytest.mark.parametrize(
    ("first", "second", "options", "mode"),
    [
        pytest.param(book_own, book_other, {}, "lease", id="deadlock"),
        pytest.param(book_own, book_other, {}, "lock", id="deadlock-locked"),
        pytest.param(book_own, book_other_in_savepoint, {}, "lease", id="deadlock-savepoint"),
        pytest.param(book_own, book_other_in_savepoint, {}, "lock", id="deadlock-savepoint-locked"),
        pytest.param(look, write_what_was_seen, {"isolation_level": "SERIALIZABLE"}, "lease", id="serialization"),
    ],
)
def test_a_victim_is_called_again(db: Database, first: Part, second: Part, options: Any, mode: Any) -> None:
    db.insert(Account, [{"id": 1, "name": ""}, {"id": 2, "name": ""}])
    db.insert(Task, [{**row, "number": number} for number, row in enumerate(rows(2), 1)])
    calls: list[int] = []
    worker = Worker(db.variant(pool_size=20, **options).sessions(), poll=timedelta(seconds=0.3))
    worker.handler(Task, concurrency=2, mode=mode)(meeting_halfway(db, first, second, calls))
    with Running(worker):
        eventually(all_are(db, "completed"))
    with db.engine.connect() as connection:
        assert connection.scalars(select(Account.name)).all() == ["xx", "xx"]
        assert sorted(connection.scalars(select(Ledger.task_id))) == sorted(set(calls))
        assert connection.scalars(select(Task.attempt)).all() == [1, 1]
    assert worker._reports.counts["retries"] >= max(1, len(calls) - 2)
    assert worker._reports.counts["failed"] == 0


def test_a_failure_with_any_text_raises_the_deadlock(sync_db: Database) -> None:
    """It is raised as such, and not as the lack of the savepoint that it removed."""
    sync_db.insert(Account, [{"id": 1, "name": ""}])
    sync_db.insert(Task, rows(1))
    with sync_db.begin() as session:
        claim = claim_of(session.claim(Task))
    connections, raised = adapter_for(sync_db.engine.dialect).connections, list[DBAPIError]()
    with ThreadPoolExecutor(1) as pool, sync_db.engine.connect() as other:
        other.execute(insert(Account), [{"id": number, "name": ""} for number in range(2, 100)])  # not the victim then
        other.execute(update(Task).values(number=5))
        try:
            with sync_db.begin() as session:
                session.run(book, 1)
                booked = pool.submit(book, other, 1)
                session.fail(claim, "costs 5 \N{POUND SIGN}")
        except DBAPIError as error:
            raised.append(error)
        with suppress(DBAPIError):
            booked.result()
    assert all(connections.reason(error) is error and connections.is_transient(error) for error in raised)


@pytest.mark.requires("conflict_sql")
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_a_claim_chosen_as_a_victim_pauses_briefly_and_is_not_an_outage(
    db: Database, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    engine, left = db.variant(pool_size=20), [12]  # with pauses that double up to 10 s, these would take a minute

    def fail(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        if "SKIP LOCKED" not in statement or not left[0]:
            return statement, parameters
        left[0] -= 1
        return db.case.conflict_sql, ()

    event.listen(engine.session_engine, "before_cursor_execute", fail, retval=True)
    db.insert(Task, rows(1))
    worker = Worker(engine.sessions(), poll=timedelta(seconds=0.3))
    worker.handler(Task, concurrency=1, mode=mode)(with_session(db, nothing))
    with Running(worker):
        eventually(all_are(db, "completed"))
    assert left == [0]
    assert worker._reports.counts["retries"] == 12
    assert worker._reports.counts["database_errors"] == 0
    own = [record for record in caplog.records if record.name.startswith("sqlqueue")]
    assert not [record for record in own if record.levelno >= logging.WARNING]
