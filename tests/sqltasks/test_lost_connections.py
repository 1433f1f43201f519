"""SQL requests that never get a connection, or end their own: they are not executed again and again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase

from sqlqueue import ConstantBackoff, SlotMixin
from sqlqueue.sqltasks import SQLTaskMixin, handle_sql_tasks, sql_task_options
from sqlqueue.worker.jobs import RETURNS
from tests.support.harness import Database
from tests.support.workers import Workers, eventually


class Base(DeclarativeBase):
    pass


class Slot(SlotMixin, Base):
    __tablename__ = "request_slot"


class Request(SQLTaskMixin, Base):
    __tablename__ = "request"
    __queue__ = sql_task_options(Slot, retry=ConstantBackoff(timedelta(seconds=0.05)))


@pytest.fixture
def tables(sync_db: Database) -> Iterator[Database]:
    Base.metadata.drop_all(sync_db.engine)
    Base.metadata.create_all(sync_db.engine)
    yield sync_db
    Base.metadata.drop_all(sync_db.engine)


@pytest.fixture
def workers(tables: Database) -> Iterator[Workers]:
    staff = Workers(tables)
    yield staff
    staff.end_test()


def ended(db: Database, workers: Workers, **row: Any) -> Any:
    """Add a row, and return it once a worker has given it up."""
    db.insert(Request, [row])
    worker = workers.make()
    nobody = db.url.set(username="nobody_at_all", password="wrong")
    handle_sql_tasks(worker, Request, db.url, users={"nobody": nobody})
    workers.start(worker)

    def given_up() -> Any:
        with db.session() as actor:
            return actor.execute(select(Request.attempt, Request.error).where(Request.status == "discarded")).first()

    return eventually(given_up)


@pytest.mark.requires("kill_sql")
def test_a_request_that_ends_its_own_connection(tables: Database, workers: Workers) -> None:
    case = tables.case
    request = str(case.kill_sql).format(connection=f"{case.connection_id}()")
    attempt, error = ended(tables, workers, request=request)
    assert attempt == RETURNS + 1
    assert "OperationalError" in error or "RequestFailed" in error


@pytest.mark.requires("account_sql")
def test_a_user_that_cannot_log_in(tables: Database, workers: Workers) -> None:
    """Some servers lock accounts after many attempts."""
    attempt, error = ended(tables, workers, request="SELECT 1", run_as="nobody")
    assert attempt <= RETURNS + 1
    assert "nobody_at_all" in error
