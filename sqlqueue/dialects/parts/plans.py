"""How the engine would find the rows of a statement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, CursorResult, Select
from sqlalchemy.sql.elements import ClauseElement


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the engine would find the rows of a claim."""

    indexes: frozenset[str]
    sorted: int
    """How many rows it expects to sort; at least 1 if it sorts, 0 if it finds them in order."""


class Plans:
    """None: an engine that is not asked for its plans."""

    def of(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> Plan | None:
        """Return how ``statement`` would be executed at the table's present size; ``None`` where that is not asked.

        ``forced``: if reading the whole table, and sorting, were out of the question unless there is no other way;
        ``None`` where that cannot be asked.
        """
        return None


def explain(connection: Connection, prefix: str, statement: ClauseElement) -> CursorResult[Any]:
    """Return the rows of ``prefix``, in the engine's own words, before ``statement``."""
    schemas = connection.get_execution_options().get("schema_translate_map")
    translated = {"schema_translate_map": schemas, "render_schema_translate": True} if schemas else {}
    text = str(statement.compile(connection, compile_kwargs={"literal_binds": True}, **translated))
    return connection.exec_driver_sql(f"{prefix} {text}")
