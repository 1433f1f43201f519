"""Reads indexes from the data dictionary, with Oracle's names."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar

from sqlalchemy import Connection, String, Table, column, func, select, table

from ..parts.schema import LiveIndex, Schema, Term

_QUOTED = re.compile(r'^"(.+)"$')
_INDEXES = table(
    "all_indexes",
    *(column(name, String) for name in ("table_owner", "table_name", "index_name", "status", "visibility")),
    schema="sys",
)

_TRIGGERS = table(
    "all_triggers", *(column(name, String) for name in ("table_owner", "table_name", "trigger_name")), schema="sys"
)


class OracleSchema(Schema):
    """Reads unusable and invisible indexes, and descending terms."""

    reviving: ClassVar[str | None] = (
        "ALTER INDEX {schema}{index} VISIBLE, and ALTER INDEX {schema}{index} REBUILD if it is UNUSABLE"
    )

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        # a descending term is stored as an expression: the column's quoted name
        normal: Any = connection.dialect
        return {
            name: replace(index, terms=tuple(_plain(term, normal) for term in index.terms))
            for name, index in super().live_indexes(connection, table).items()
        }

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str] | None:
        dialect: Any = connection.dialect
        owner = dialect.denormalize_name(connection.schema_for_object(table) or dialect.default_schema_name)
        is_of_table = (_TRIGGERS.c.table_owner == owner) & (
            _TRIGGERS.c.table_name == dialect.denormalize_name(table.name)
        )
        found = connection.scalars(select(_TRIGGERS.c.trigger_name).where(is_of_table)).all()
        # other accounts than the owner may not see all
        user = func.sys_context("USERENV", "SESSION_USER")
        return found if found or owner == connection.scalar(select(user)) else None

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        dialect: Any = connection.dialect
        owner = connection.schema_for_object(table) or dialect.default_schema_name
        is_of_table = (_INDEXES.c.table_owner == dialect.denormalize_name(owner)) & (
            _INDEXES.c.table_name == dialect.denormalize_name(table.name)
        )
        is_off = (_INDEXES.c.status == "UNUSABLE") | (_INDEXES.c.visibility == "INVISIBLE")
        names = connection.scalars(select(_INDEXES.c.index_name).where(is_of_table, is_off))
        return [dialect.normalize_name(name) for name in names]


def _plain(term: Term, dialect: Any) -> Term:
    return replace(term, name=_QUOTED.sub(lambda found: dialect.normalize_name(found[1]), term.name))
