"""A database given by URL: the tests create their tables in it if it is empty, and leave it empty."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import URL, Column, Engine, Integer, MetaData, NullPool, Table, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable
from sqlalchemy.sql.ddl import CreateTable

from tests.support.containers import first_line
from tests.support.engines import EngineCase

MARK = Table("sqlqueue_tests", MetaData(), Column("id", Integer, primary_key=True, autoincrement=False))
"""Marks a database whose tables belong to the tests."""


class Refused(Exception):
    """An error for a database that the tests cannot, or must not, use; the message contains the reason and the fix."""


def move_in(case: EngineCase, url: URL) -> None:
    """Prepare the database; :class:`Refused` unless it is empty or was left by such tests, and the privileges
    suffice."""
    engine = create_engine(url, poolclass=NullPool)
    if not _is_ours(engine):
        if strangers := sorted(inspect(engine).get_table_names()):
            some = ", ".join(strangers[:3])
            raise Refused(f"it has tables ({some}): the tests need an empty database or schema, and leave it empty")
        for privilege, statement in _needed():
            try:
                with engine.begin() as connection:
                    connection.execute(statement)
            except DBAPIError as error:
                if _is_ours(engine):
                    break  # another process of this run was faster
                grants = f"; {case.grants.format(name=url.username, database=url.database)}" if case.grants else ""
                raise Refused(
                    f"{url.username or 'this account'} may not {privilege} ({first_line(error.orig)}){grants}"
                ) from error
    if case.condition:
        _check(engine, *case.condition)


def move_out(url: URL) -> None:
    """Drop all tables of the tests."""
    engine = create_engine(url, poolclass=NullPool)
    if _is_ours(engine):
        everything = MetaData()
        everything.reflect(engine)
        everything.drop_all(engine)


def _is_ours(engine: Engine) -> bool:
    return inspect(engine).has_table(MARK.name)


def _needed() -> Iterator[tuple[str, Executable]]:
    """Yield statements that the tests must be allowed to execute, with the names of the privileges."""
    yield "CREATE TABLE", CreateTable(MARK)
    yield "INSERT", MARK.insert().values(id=1)
    yield "SELECT", MARK.select()
    yield "UPDATE", MARK.update().values(id=2)
    yield "DELETE", MARK.delete()


def _check(engine: Engine, question: str, remedy: str) -> None:
    with engine.connect() as connection:
        if not connection.scalar(text(question)):
            raise Refused(f"it is not set up for queues: {remedy}")
