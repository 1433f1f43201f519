"""Databases that are checked, and the findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Table

from sqlqueue import Finding, check
from tests.support.check_models import Base, KeyedBase, OwnBase, Post
from tests.support.harness import Database

TABLE: Table = Post.__table__  # type: ignore[assignment]
TIMEOUTS = ("driver-timeouts", "server-timeouts")


def drop(db: Database) -> None:
    for metadata in (Base.metadata, KeyedBase.metadata, OwnBase.metadata):
        metadata.drop_all(db.engine)


def found(db: Database, target: Any = Base) -> set[tuple[str, str]]:
    return {(finding.severity, finding.code) for finding in findings(db, target)}


def findings(db: Database, target: Any = Base) -> list[Finding]:
    with db.session_engine.connect() as connection:
        every = looked(connection, target)
    return [finding for finding in every if db.case.explains or finding.code != "plan-not-asked"]


def looked(connection: Connection, target: Any = Base) -> list[Finding]:
    """Return all findings except those about the limits of drivers and servers, which have the defaults here."""
    return [finding for finding in check(connection, target) if finding.code not in TIMEOUTS]


def execute(db: Database, *statements: Any) -> None:
    db.engine.dispose()  # a SQLite connection may not have noticed that another one has dropped an index
    with db.engine.begin() as connection:
        for statement in statements:
            if isinstance(statement, str):
                connection.exec_driver_sql(statement)
            else:
                connection.execute(statement)


CLAIM = next(index for index in TABLE.indexes if index.name == "ix_checked_post_claim")
READER = "checked_reader"


def changed(name: str, **attributes: Any) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        for attribute, value in attributes.items():
            setattr(table.c[name], attribute, value)

    return change
