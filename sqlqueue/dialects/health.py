"""What an adapter says of a live server: whether this account, here and now, can work a queue.  It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import URL, Column, Connection, CursorResult, Select, Table, column, table
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.expression import TableClause

from ..queue.findings import Finding, Severity
from ..queue.spec import QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the engine would find the rows of a claim."""

    indexes: frozenset[str]
    sorted: int
    """How many rows it expects to sort; at least 1 if it sorts, 0 if it finds them in order."""


class Health:
    """The part of an adapter that looks at a server, an account and plans."""

    def absent(self, url: URL) -> str | None:
        """Why there can be no database at ``url``, where connecting would make one."""
        return None

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        """What keeps this server, or sessions like this one, from working any queue."""
        return iter(())

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        """What this engine alone knows of a table that is there."""
        return iter(())

    def added_at(self, connection: Connection, column: Column[Any]) -> datetime | None:
        """The moment that rows have in ``column`` which were there when it was added; ``None`` if that is not kept."""
        return None

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        """What this account may not do: SELECT, INSERT, UPDATE, DELETE, or another right by its name.

        ``live`` are the table's columns as they are.
        """
        return ()

    def is_denied(self, error: DBAPIError) -> bool:
        """Whether it says, by code, that this account may not see or touch a table."""
        return False

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> Plan | None:
        """How ``statement`` would be executed at the table's present size; ``None`` where the engine is not asked.

        ``forced``: if reading the whole table, and sorting, were out of the question unless there is no other way;
        ``None`` where that cannot be asked.
        """
        return None


def read_only(reason: str, fix: str) -> Finding:
    return Finding(severity=Severity.ERROR, code="read-only", message=f"nothing can be claimed here: {reason}", fix=fix)


def explain(connection: Connection, prefix: str, statement: ClauseElement) -> CursorResult[Any]:
    """The rows of ``prefix``, in the engine's own words, before ``statement``."""
    schemas = connection.get_execution_options().get("schema_translate_map")
    translated = {"schema_translate_map": schemas, "render_schema_translate": True} if schemas else {}
    text = str(statement.compile(connection, compile_kwargs={"literal_binds": True}, **translated))
    return connection.exec_driver_sql(f"{prefix} {text}")


def bare(connection: Connection, target: Table, live: Sequence[ReflectedColumn]) -> TableClause:
    """``target`` as it is, without the defaults that an INSERT or an UPDATE of it would add."""
    return table(target.name, *(column(each["name"]) for each in live), schema=connection.schema_for_object(target))
