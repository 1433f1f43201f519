"""Reads query plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, CursorResult, Select
from sqlalchemy.sql.elements import ClauseElement


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """A query plan: how the engine would find the rows of a statement."""

    indexes: frozenset[str]
    """The names of the indexes that the plan uses."""
    sorted: int
    """The number of rows that the plan sorts: at least 1 if it sorts, 0 if it reads them in order."""


class Plans:
    """No plans: the engine is not queried for them."""

    def of(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
        """Return the plan of ``statement`` at the table's current size, or ``None`` if the engine is not queried.

        ``forced``: return the plan with table scans and sorts disabled, or ``None`` if the engine cannot disable them.
        """
        return None


def explain(connection: Connection, prefix: str, statement: ClauseElement) -> CursorResult[Any]:
    """Execute ``statement`` with ``prefix``, the engine's EXPLAIN, and return the result."""
    schemas = connection.get_execution_options().get("schema_translate_map")
    translated = {"schema_translate_map": schemas, "render_schema_translate": True} if schemas else {}
    text = str(statement.compile(connection, compile_kwargs={"literal_binds": True}, **translated))
    return connection.exec_driver_sql(f"{prefix} {text}")
