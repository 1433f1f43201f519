"""A row that cannot be read stops nothing: it is postponed without counting an attempt, and finally a dead letter."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, func, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import joinedload, selectinload

from sqlqueue.operations import recording
from sqlqueue.outbox import claim_messages
from sqlqueue.sql import representable
from tests.outbox.messages import fill
from tests.support.harness import Database
from tests.support.models import (
    Account,
    CreditNote,
    Invoice,
    Listing,
    Mail,
    Notice,
    Outgoing,
    Report,
    Sign,
    Spool,
    Task,
    Visit,
)
from tests.support.rows import PAST, clock, make_due
from tests.support.workers import statuses

pytestmark = pytest.mark.sync_only

PREFIX = "cannot be read: "


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    recording._said.clear()


class Riddle(Exception):
    pass


@contextmanager
def riddles(model: Any, *keys: Any) -> Iterator[None]:
    """The instances of these rows cannot be loaded."""

    def load(task: Any, _: Any) -> None:
        if task.id in keys:
            raise Riddle("?")

    event.listen(model, "load", load)
    try:
        yield
    finally:
        event.remove(model, "load", load)


def signs(db: Database, *symbols: str, **columns: Any) -> None:
    """Insert a row for each symbol, with ascending keys from 1 on."""
    db.insert(Sign, [{"id": n, **columns} for n in range(1, len(symbols) + 1)])
    with db.engine.begin() as connection:
        for n, symbol in enumerate(symbols, 1):
            connection.execute(text(f"UPDATE sign SET symbol = '{symbol}' WHERE id = {n}"))


def seen(db: Database, model: Any = Sign) -> dict[int, Any]:
    """The state of each row, read without its own columns."""
    table = model.__table__
    roles = ("status", "attempt", "max_attempts", "error", "claimed_by", "finished_at")
    with db.engine.connect() as connection:
        moment = representable(table.c.available_at).label("available_at")
        read = select(table.c.id, moment, *(table.c[role] for role in roles)).order_by(table.c.id)
        return {row.id: row for row in connection.execute(read)}


def waits(db: Database, row: Any, number: int = 1, delay: timedelta = timedelta(minutes=10)) -> bool:
    """Whether a row was postponed for the `number`th time, without counting an attempt."""
    assert row.error.startswith(PREFIX)
    assert row.error.endswith(f" ({number} of 10)")
    assert row.claimed_by is None
    assert row.finished_at is None
    left = row.available_at - clock(db)
    return bool(row.status == "scheduled" and delay - timedelta(minutes=1) < left <= delay)


METHODS = {
    "claim_many": lambda actor: actor.claim_many(Sign, limit=10),
    "lock": lambda actor: actor.claim_many(Sign, limit=10, lease=None),
    "consume_many": lambda actor: actor.consume_many(Sign, limit=10),
    "one by one": lambda actor: [actor.claim(Sign), actor.claim(Sign), actor.claim(Sign)],
}


@pytest.mark.parametrize("method", METHODS)
def test_claims_return_all_other_rows(db: Database, method: str) -> None:
    signs(db, "rose", "dove", "rose", "lion", "rose")
    with db.begin() as actor:
        tasks = METHODS[method](actor)
        assert [task.id for task in tasks] == [1, 3, 5]
        actor.complete(tasks) if method != "consume_many" else None
    rows = seen(db)
    assert [rows[n].status for n in (1, 3, 5)] == ["completed"] * 3
    for n in (2, 4):
        assert waits(db, rows[n])
        assert rows[n].max_attempts - rows[n].attempt == 5
        assert "LookupError" in rows[n].error


def test_others_are_claimed_instead(db: Database) -> None:
    signs(db, "dove", "dove", "rose", "rose", "rose")
    assert [task.id for task in db.committed.claim_many(Sign, limit=2)] == [3, 4]


def test_ready_and_due_rows_of_one_claim(db: Database) -> None:
    signs(db, "rose", "dove")
    db.insert(Sign, [{"id": n, "status": "scheduled", "available_at": PAST} for n in (3, 4, 5)])
    with db.engine.begin() as connection:
        connection.execute(text("UPDATE sign SET symbol = 'lion' WHERE id = 4"))
    assert [task.id for task in db.committed.claim_many(Sign, limit=10)] == [1, 3, 5]
    rows = seen(db)
    assert waits(db, rows[2])
    assert waits(db, rows[4])


@pytest.mark.parametrize("method", METHODS)
def test_a_claim_does_not_go_through_all_rows_that_cannot_be_read(
    db: Database, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Its transaction would take too long for a worker, whose next claim would begin again."""
    monkeypatch.setattr(sys.modules["sqlqueue.operations.claiming"], "PATIENCE", 0)
    signs(db, *["dove"] * 25, "rose")
    claims = 0
    while list(statuses(db, Sign).values()).count("scheduled") < 25:
        claims += 1
        with db.begin() as actor:
            tasks = [task for task in METHODS[method](actor) if task is not None]
            assert len(tasks) <= 1
            assert all(task.id == 26 for task in tasks)
            actor.complete(tasks) if method != "consume_many" else None
        assert list(statuses(db, Sign).values()).count("scheduled") <= 10 * claims
    assert claims >= 3


def test_nor_does_a_claim_of_limited_tasks(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["sqlqueue.operations.claiming"], "PATIENCE", 0)
    db.insert(Visit, [{"id": n, "limit_key": str(n % 12)} for n in range(1, 25)])
    with riddles(Visit, *range(1, 25)), db.begin() as actor:
        assert actor.claim_many(Visit, limit=4) == []
    assert list(statuses(db, Visit).values()).count("scheduled") == 4


def test_the_transaction_keeps_its_earlier_writes(db: Database) -> None:
    signs(db, "dove", "rose")
    with db.begin() as actor:
        actor.add(Task(name="before"))
        task = actor.claim(Sign)
        assert task.id == 2
        actor.add(Task(name="after"))
        actor.complete(task)
    with db.engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Task)) == 2
    assert seen(db)[2].status == "completed"


def test_a_rollback_undoes_everything(db: Database) -> None:
    signs(db, "dove")
    with db.session() as actor:
        assert actor.claim(Sign) is None
        actor.rollback()
    row = seen(db)[1]
    assert (row.status, row.attempt, row.max_attempts, row.error) == ("available", 0, 5, None)


@pytest.mark.parametrize("method", ["claim_many", "lock", "consume_many"])
def test_a_dead_letter_after_ten_times_until_a_retry(db: Database, method: str) -> None:
    signs(db, "dove")
    for number in range(1, 11):
        with db.begin() as actor:
            assert METHODS[method](actor) == []
        assert waits(db, seen(db)[1], number)
        make_due(db, Sign)
    with db.begin() as actor:
        assert METHODS[method](actor) == []
    row = seen(db)[1]
    assert row.status == "discarded"
    assert row.finished_at is not None
    assert row.error.startswith(PREFIX)
    assert db.committed.retry(Sign) == 1
    with db.begin() as actor:
        assert METHODS[method](actor) == []
    assert waits(db, seen(db)[1], 1)
    with db.engine.begin() as connection:
        connection.execute(text("UPDATE sign SET symbol = 'rose'"))
    make_due(db, Sign)
    with db.begin() as actor:
        (task,) = METHODS[method](actor)
        assert task.id == 1
        actor.rollback()


@pytest.mark.parametrize("model", [Task, Spool])
@pytest.mark.parametrize("column", ["attempt", "claim_token"])
def test_numbers_that_are_texts(db: Database, column: str, model: Any) -> None:
    """SQLite stores them; the other engines refuse them."""
    db.insert(model, [{"id": n} for n in (1, 2, 3)])
    with db.engine.connect() as connection:
        try:
            connection.execute(text(f"UPDATE {model.__tablename__} SET {column} = 'odd' WHERE id = 2"))
        except SQLAlchemyError:
            assert db.case.name != "sqlite"
            return
        connection.commit()
    with db.begin() as actor:
        if model is Task:
            tasks = actor.claim_many(Task, limit=2, lease=None)
            actor.complete(tasks)
        else:  # they are deleted, and their attempts recorded
            tasks = actor.consume_many(Spool, limit=2)
        assert [task.id for task in tasks] == [1, 3]
    row = seen(db, model)[2]
    assert row.status == "scheduled"
    assert "'odd', which is not an integer" in row.error
    assert "(1 of 10)" in row.error


@pytest.mark.parametrize("number", [2**31 - 1, 2**31 - 2])
def test_attempts_do_not_overflow(db: Database, number: int) -> None:
    signs(db, "rose", "rose")
    table = Sign.__table__
    for lease in ("default", None):
        with db.engine.begin() as connection:
            values = {"status": "available", "attempt": number, "max_attempts": 2**31 - 1, "finished_at": None}
            connection.execute(update(table).values(values))
        with db.begin() as actor:
            task = actor.claim(Sign, lease=lease)
            assert task is not None
            actor.release(task)
        with db.begin() as actor:
            tasks = actor.claim_many(Sign, limit=2, lease=lease)
            assert len(tasks) == 2
            actor.complete(tasks[0])
            actor.fail(tasks[1], "error")
        rows = seen(db)
        assert {row.status for row in rows.values()} == {"completed", "discarded"}
        assert {row.attempt for row in rows.values()} == {2**31 - 1}
        assert db.committed.retry(Sign) == 1


@pytest.mark.parametrize("lease", ["default", None])
def test_events_of_instances(db: Database, lease: Any) -> None:
    """An instance that an event has left unfinished is not returned later."""
    db.insert(Task, [{"id": n} for n in range(1, 6)])
    db.insert(Spool, [{"id": n} for n in range(1, 6)])
    with riddles(Task, 2, 4), db.begin() as actor:
        assert [task.id for task in actor.claim_many(Task, limit=10, lease=lease)] == [1, 3, 5]
        assert {task.id for task in actor.sync_session} == {1, 3, 5}
        actor.rollback()
    with riddles(Spool, 2, 4), db.begin() as actor:
        assert [task.id for task in actor.consume_many(Spool, limit=10)] == [1, 3, 5]
    assert set(seen(db, Spool)) == {2, 4}


def test_messages_wait_for_the_one_before_them(db: Database) -> None:
    a1, b1, a2, b2, a3, none = fill(db, "a", "b", "a", "b", "a", None)
    with riddles(Outgoing, a2), db.begin() as actor:
        messages = actor.run(claim_messages, Outgoing, limit=100)
        assert sorted(message.id for message in messages) == [a1, b1, b2, none]
        actor.complete(messages)
    assert db.committed.run(claim_messages, Outgoing, limit=100) == []
    rows = seen(db, Outgoing)
    assert rows[a2].status == "scheduled"
    assert rows[a2].error.startswith(PREFIX)
    assert rows[a3].status == "available"
    assert rows[a3].max_attempts - rows[a3].attempt == rows[a2].max_attempts - rows[a2].attempt


def test_limited_tasks(db: Database) -> None:
    db.insert(Visit, [{"id": n, "limit_key": "a"} for n in range(1, 6)])
    with riddles(Visit, 1, 2), db.begin() as actor:
        assert [task.id for task in actor.claim_many(Visit, limit=10)] == [3, 4]
        assert actor.claim(Visit) is None


@pytest.mark.parametrize("lease", ["default", None])
def test_recurring_tasks_keep_their_planned_time(db: Database, lease: Any) -> None:
    """The runs after it follow from that time."""
    planned = clock(db).replace(microsecond=0) - timedelta(minutes=5)
    row = {"schedule": "PT1H", "available_at": planned, "created_at": PAST, "status": "scheduled"}
    db.insert(Report, [{"id": 1, **row}])
    with riddles(Report, 1), db.begin() as actor:
        assert actor.claim(Report, lease=lease) is None
    with db.begin() as actor:
        report = actor.get(Report, 1)
        assert report.error.startswith(PREFIX)
        assert report.scheduled_for == planned


@pytest.mark.parametrize("lease", ["default", None])
def test_a_recurring_task_without_a_time_does_not_run_at_once_later(db: Database, lease: Any) -> None:
    """Its first run is still to be planned once it can be read."""
    db.insert(Report, [{"id": 1, "schedule": "PT1H"}])
    with riddles(Report, 1), db.begin() as actor:
        assert actor.claim(Report, lease=lease) is None
    make_due(db, Report)
    assert db.committed.claim(Report, lease=lease) is None
    with db.begin() as actor:
        report = actor.get(Report, 1)
        assert report.available_at == report.created_at + timedelta(hours=1)


def test_unique_tasks_keep_their_keys(db: Database) -> None:
    db.insert(Listing, [{"id": 1, "unique_key": "a"}, {"id": 2, "unique_key": "b"}])
    with riddles(Listing, 1), db.begin() as actor:
        assert [task.id for task in actor.consume_many(Listing, limit=10)] == [2]
    with db.engine.connect() as connection:
        assert connection.execute(text("SELECT unique_key FROM listing WHERE id = 1")).scalar_one() == "a"


def test_one_line_is_logged_for_each_row(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    signs(db, "dove", "lion")
    for _ in range(3):
        with caplog.at_level(logging.ERROR), db.begin() as actor:
            assert actor.claim(Sign) is None
        make_due(db, Sign)
    assert len(caplog.records) == 2
    assert {record.key for record in caplog.records} == {"1", "2"}  # type: ignore[attr-defined]


def test_a_claiming_block(db: Database) -> None:
    signs(db, "dove", "rose")
    with db.begin() as actor:
        with actor.claiming(Sign) as task:
            assert task.id == 2
        with actor.claiming(Sign) as task:
            assert task is None
    assert statuses(db, Sign) == {1: "scheduled", 2: "completed"}


@pytest.mark.parametrize("lease", ["default", None])
def test_an_unknown_polymorphic_identity(db: Database, lease: Any) -> None:
    db.insert(Notice, [{"id": n, "kind": "notice"} for n in (1, 2, 3)])
    with db.engine.begin() as connection:
        connection.execute(text("UPDATE notice SET kind = 'unheard of' WHERE id = 2"))
    with db.begin() as actor:
        assert [task.id for task in actor.claim_many(Notice, limit=10, lease=lease)] == [1, 3]
        actor.complete([task for task in actor.sync_session if isinstance(task, Notice)])
    assert statuses(db, Notice)[2] == "scheduled"


def test_pruning_rows_of_several_tables(db: Database) -> None:
    done = {"status": "completed", "finished_at": PAST}
    db.committed.add_all([*(Invoice(id=n, **done) for n in (1, 2, 3)), *(CreditNote(id=n, **done) for n in (4, 5, 6))])
    with db.engine.begin() as connection:
        connection.execute(text("UPDATE invoice SET kind = 'unheard of' WHERE id IN (2, 5)"))
        connection.execute(text("UPDATE invoice SET status = 'cancelled' WHERE id = 6"))
    with riddles(CreditNote, 4), db.begin() as actor:
        assert actor.prune(CreditNote, timedelta(days=1), limit=1) == 1
        assert actor.prune(Invoice, timedelta(days=1)) == 5
    with db.engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Invoice.__table__)) == 0
        assert connection.scalar(select(func.count()).select_from(CreditNote.__table__)) == 0


@pytest.mark.parametrize("loading", [joinedload, selectinload])
def test_the_parent_of_an_eager_relationship(db: Database, loading: Any) -> None:
    db.insert(Account, [{"id": n, "name": "x"} for n in (1, 2)])
    db.insert(Mail, [{"id": n, "account_id": 1 + n % 2} for n in range(1, 5)])
    with riddles(Account, 2), db.begin() as actor:
        mails = actor.claim_many(Mail, limit=10, options=[loading(Mail.account)])
        assert [(mail.id, mail.account.id) for mail in mails] == [(2, 1), (4, 1)]
    assert statuses(db, Mail) == {1: "scheduled", 2: "running", 3: "scheduled", 4: "running"}


def test_errors_that_are_not_about_a_row_are_raised(db: Database) -> None:
    """They would set every row aside."""
    db.insert(Sign, [{"id": 1}])

    def fail(*arguments: Any) -> None:
        if "UPDATE sign" in arguments[2]:
            raise ValueError("not about a row")

    with db.session() as actor:
        event.listen(db.session_engine, "before_cursor_execute", fail)
        try:
            with pytest.raises(ValueError, match="not about a row"):
                actor.claim(Sign)
        finally:
            event.remove(db.session_engine, "before_cursor_execute", fail)
    with db.session() as actor, pytest.raises(SQLAlchemyError):
        actor.claim(Sign, options=[joinedload(Mail.account)])
    assert statuses(db, Sign) == {1: "available"}
