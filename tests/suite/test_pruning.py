"""Prune: the rows that it deletes, those that it never deletes, and those that foreign keys refer to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Identity, Integer, MetaData, Table, insert, select

from sqlqueue import ArgumentError
from sqlqueue.queue.options import FINAL
from sqlqueue.sql import NEVER
from tests.cli.invoking import told
from tests.support.harness import Database
from tests.support.models import Account, Attachment, CreditNote, Invoice, Mail, Task
from tests.support.rows import PAST, clock, count

pytestmark = pytest.mark.sync_only

DAY = timedelta(days=1)
DONE = {"status": "completed", "finished_at": PAST, "available_at": PAST}
ADOPTED = {"status": "completed", "finished_at": None, "available_at": NEVER, "created_at": PAST}
"""A row that was in the table before it became a queue."""


def keys(db: Database, model: Any) -> list[int]:
    with db.engine.connect() as connection:
        return list(connection.scalars(select(model.__table__.c.id).order_by(model.__table__.c.id)))


# -- rows from before the table became a queue ----------------------------------------------------------------------


def test_adopted_rows_are_pruned_only_on_request(db: Database) -> None:
    db.insert(Mail, [{"id": n, **ADOPTED, "status": status} for n, status in enumerate(FINAL, 1)])
    db.insert(Mail, [{"id": 4, **ADOPTED, "created_at": clock(db)}])
    db.insert(Mail, [{"id": 5, **DONE}])
    db.insert(Mail, [{"id": 6}])
    with db.begin() as session:
        assert session.prune(Mail) == 1
        assert session.prune(Mail, timedelta(0)) == 0
        with pytest.raises(ArgumentError, match="older_than"):
            session.prune(Mail, adopted=True)
        assert session.prune(Mail, DAY, adopted=True, limit=2) == 2
        assert session.prune(Mail, DAY, adopted=True) == 1
    assert keys(db, Mail) == [4, 6]


def test_rows_from_before_that_are_not_in_one_table(db: Database) -> None:
    db.committed.add_all([Invoice(id=1, **ADOPTED), CreditNote(id=2, amount=1, **ADOPTED), CreditNote(id=3, **DONE)])
    with db.begin() as session:
        assert session.prune(Invoice, DAY) == 1
        assert session.prune(CreditNote, DAY, adopted=True) == 1
    assert (keys(db, Invoice), keys(db, CreditNote)) == ([1], [])


def test_a_row_from_before_can_be_redriven(db: Database) -> None:
    db.insert(Mail, [{"id": 1, **ADOPTED, "status": "discarded"}])
    assert db.committed.retry(Mail) == 1
    db.committed.complete(db.committed.claim(Mail))
    assert db.committed.prune(Mail, timedelta(0)) == 1


@pytest.mark.one_engine
def test_the_command_deletes_adopted_rows_only_on_request(sync_db: Database) -> None:
    sync_db.insert(Mail, [{"id": n, **ADOPTED} for n in (1, 2)])
    assert told(sync_db, "prune", "--yes", target="Mail") == "0 tasks of mail are deleted.\n"
    assert told(sync_db, "prune", "--yes", "--older-than", "1s", target="Mail") == "0 tasks of mail are deleted.\n"
    report = told(sync_db, "prune", "--yes", "--adopted", "--older-than", "1d", "--json", target="Mail")
    assert report == {"queue": "mail", "action": "prune", "tasks": 2, "protected": 0, "stopped": False}


# -- rows that foreign keys refer to --------------------------------------------------------------------------------


@pytest.fixture
def strict_db(sync_db: Database) -> Database:
    """A database whose connections enforce foreign keys."""
    needed = sync_db.case.foreign_keys_sql
    return sync_db.variant(on_connect=needed) if needed else sync_db


@pytest.fixture
def note(sync_db: Database) -> Iterator[Table]:
    """A table with a foreign key to `task` that is not in the metadata of `task`."""
    metadata = MetaData()
    Table("task", metadata, Column("id", Integer, Identity(), primary_key=True))
    table = Table("note_of_others", metadata, Column("task_id", ForeignKey("task.id"), primary_key=True))
    table.create(sync_db.engine)
    yield table
    sync_db.end_test()
    table.drop(sync_db.engine)


def test_rows_that_are_referred_to_stay(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    db.insert(Mail, [{"id": n, **DONE} for n in range(1, 7)])
    db.insert(Attachment, [{"mail_id": n} for n in (1, 2, 2, 5)])
    with caplog.at_level(logging.INFO, "sqlqueue"), db.begin() as session:
        first = session.prune(Mail, limit=2)
        rest = session.prune(Mail)
        none = session.prune(Mail, DAY)
    assert [(int(each), each.protected) for each in (first, rest, none)] == [(2, 0), (1, 3), (0, 3)]
    assert keys(db, Mail) == [1, 2, 5]
    said = [record.getMessage() for record in caplog.records if record.name == "sqlqueue"]
    assert said[0] == "pruned mail: deleted 2 final rows past their retention (1 day, 0:00:00)"
    assert said[-1] == "pruned mail: kept 3 final rows older than 1 day, 0:00:00: foreign keys refer to them"


@pytest.mark.parametrize("limit", [None, 2, 50])
def test_rows_that_others_refer_to_stay_and_the_rest_goes(strict_db: Database, note: Table, limit: int | None) -> None:
    strict_db.insert(Task, [{"id": n, **DONE} for n in range(1, 21)])
    with strict_db.engine.begin() as connection:
        connection.execute(insert(note), [{"task_id": n} for n in (1, 2, 3, 4, 9, 20)])
    deleted = protected = 0
    for _ in range(8):
        with strict_db.begin() as session:
            pruned = session.prune(Task, DAY, limit=limit)
            deleted, protected = deleted + pruned, pruned.protected
    assert (deleted, protected) == (14, 6)
    assert keys(strict_db, Task) == [1, 2, 3, 4, 9, 20]


def test_earlier_work_of_the_transaction_is_kept(strict_db: Database, note: Table) -> None:
    strict_db.insert(Task, [{"id": n, **DONE} for n in (1, 2)])
    with strict_db.engine.begin() as connection:
        connection.execute(insert(note), [{"task_id": 1}])
    with strict_db.begin() as session:
        session.add(Account(id=7, name="ada"))
        assert session.prune(Task, DAY) == 1
    assert (keys(strict_db, Account), keys(strict_db, Task)) == ([7], [1])
    with strict_db.session() as session:
        session.add(Account(id=8, name="grace"))
        session.prune(Task, DAY)
        session.rollback()
    assert keys(strict_db, Account) == [7]


def test_rows_of_several_tables_that_others_refer_to(strict_db: Database) -> None:
    metadata = MetaData()
    Table("invoice", metadata, Column("id", Integer, Identity(), primary_key=True))
    other = Table("reminder_of_others", metadata, Column("invoice_id", ForeignKey("invoice.id"), primary_key=True))
    other.create(strict_db.engine)
    try:
        strict_db.committed.add_all([Invoice(id=1, **DONE), *(CreditNote(id=n, **DONE) for n in (2, 3, 4))])
        with strict_db.engine.begin() as connection:
            connection.execute(insert(other), [{"invoice_id": 2}])
        with strict_db.begin() as session:
            pruned = session.prune(Invoice, DAY)
            assert (pruned, pruned.protected) == (3, 1)
        assert (keys(strict_db, Invoice), keys(strict_db, CreditNote)) == ([2], [2])
    finally:
        strict_db.end_test()
        other.drop(strict_db.engine)


@pytest.mark.one_engine
def test_the_command_reports_how_many_rows_stay(sync_db: Database) -> None:
    sync_db.insert(Mail, [{"id": n, **DONE} for n in (1, 2, 3)])
    sync_db.insert(Attachment, [{"mail_id": 1}])
    said = told(sync_db, "prune", "--yes", target="Mail").splitlines()
    assert said == ["2 tasks of mail are deleted.", "1 task of mail is kept: foreign keys reference it."]
    assert told(sync_db, "prune", "--yes", "--json", target="Mail")["protected"] == 1
    assert count(sync_db, Mail) == 1
