"""Fixtures: a session of the test, and a database with planner statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session

from tests.suite.refusals import Recorded
from tests.support.harness import Database
from tests.support.models import Base, Document, Mail, Spool, Task


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Task(id=1), Task(id=2), Mail(id=1), Document(id="a"), Spool(id=1)])
        session.commit()
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Recorded]:
    """A session of the test, which is rolled back at its end."""
    engine_of_this_test = engine.execution_options()
    with Recorded(engine_of_this_test) as session:
        session.sent = []
        event.listen(engine_of_this_test, "before_cursor_execute", lambda *args: session.sent.append(args[2]))
        yield session


@pytest.fixture
def counted(sync_db: Database) -> Iterator[Callable[[Any], None]]:
    """Return a function that collects the planner's statistics of a table."""
    tables: list[str] = []

    def count_rows(model: Any) -> None:
        tables.append(model.__tablename__)
        execute(sync_db.case.statistics)

    def execute(statement: str | None) -> None:
        with sync_db.engine.begin() as connection:
            for name in tables if statement else ():
                connection.exec_driver_sql(str(statement).format(table=name))

    yield count_rows
    execute(sync_db.case.no_statistics)
