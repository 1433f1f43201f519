"""Functions of other accounts, with the names of built-in ones, are not called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, func, select
from sqlalchemy.exc import DBAPIError, OperationalError

from sqlqueue.sqltasks import RequestFailed, execution
from sqlqueue.sqltasks.execution import RequestExecutor, Users
from tests.check.checking import findings, found
from tests.suite.test_schema_translation import every_operation, tables
from tests.support.harness import Database
from tests.support.models import Job, Task

__all__ = ["tables"]
PINNED = Path(__file__).parents[1] / "dialects" / "pinned" / "postgresql.json"
SHARED = {"avg", "count", "max", "min", "row_number"}
"""Functions in statements that are the same for all engines, most of which have no schema for built-in ones."""


@pytest.fixture
def among(db: Database) -> Iterator[Database]:
    """Return the database through sessions that prefer the impostors."""
    create, drop = db.case.impostors
    engine = create_engine(db.url.set(drivername=db.case.sync_driver), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in (*drop, *create):
            connection.exec_driver_sql(statement)
    yield db.variant(on_connect=db.case.impostors_first)
    with engine.connect() as connection:
        for statement in drop:
            connection.exec_driver_sql(statement)


@pytest.mark.requires("impostors")
def test_no_operation_calls_them(among: Database, tables: dict[str, Any]) -> None:
    with among.session() as actor, pytest.raises(DBAPIError, match="an impostor"):
        actor.scalar(select(func.statement_timestamp()))
    translated = among.variant(on_connect=among.case.impostors_first, execution_options=tables)
    every_operation(translated.begin)
    with among.begin() as actor:
        actor.enqueue(Job, [{"task": "a"}, {"task": "b"}])
        actor.enqueue(Task, [{}] * 12)
        actor.complete(actor.claim_many(Task, limit=11))


def executor(among: Database) -> RequestExecutor:
    options = {"options": "-csearch_path=impostor,pg_catalog,public"}
    url = among.url.set(drivername=among.case.sync_driver).update_query_dict(options)
    return RequestExecutor(Users.of(url, {}), timeout=timedelta(minutes=1), limit=100)


@pytest.mark.requires("impostors")
def test_they_lift_no_timeout(among: Database) -> None:
    with pytest.raises(RequestFailed, match="timeout: stopped after 2 s"):
        executor(among).execute("SELECT pg_sleep(600)", user=None, timeout=2)


@pytest.mark.requires("impostors")
def test_a_connection_that_is_not_ready_in_time_is_closed(among: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "CONNECTING", timedelta(seconds=2))
    with create_engine(
        executor(among).users.default, poolclass=NullPool, isolation_level="AUTOCOMMIT"
    ).connect() as one:
        one.exec_driver_sql(among.case.impostor_at_start)
    with pytest.raises(OperationalError):
        executor(among).execute("SELECT 1", user=None, timeout=2)


@pytest.mark.requires("impostors")
def test_a_schema_in_which_anyone_may_create_functions_is_reported(among: Database) -> None:
    if among.is_async:
        return
    assert ("warning", "open-schema") in found(among)
    (fix,) = {each.fix for each in findings(among) if each.code == "open-schema"}
    assert fix == "REVOKE CREATE ON SCHEMA impostor FROM PUBLIC, or leave it out of the search_path"


def test_statements_name_the_schema_of_functions() -> None:
    keywords = "AND ANY CAST COALESCE DEFAULT EXISTS EXTRACT FROM IN KEY NOT OR OVER SELECT UNIQUE VALUES WHEN WHERE"
    called = {
        name for name in re.findall(r'(?<![.\w"])(\w+)\(', PINNED.read_text()) if name.upper() not in keywords.split()
    }
    # with several arrays, unnest is not an ordinary function; the last three are not functions at all
    assert called == SHARED | {"array", "unnest"} | {"picked", "n", "VARCHAR"}
