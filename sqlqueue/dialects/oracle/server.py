"""Checks the role of the database and the privileges of an account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, column, func, select, table
from sqlalchemy.engine.interfaces import ReflectedColumn

from ...queue.findings import Finding
from ...queue.spec import QueueSpec
from ..parts.server import Server, read_only

_GRANTS = table("all_tab_privs", *map(column, ("table_schema", "table_name", "privilege")), schema="sys")
_POWERS = table("session_privs", column("privilege"), schema="sys")


class OracleServer(Server):
    """Detects standbys, and checks privileges on whole tables."""

    def findings(self, connection: Connection) -> Iterator[Finding]:
        role = connection.scalar(select(func.sys_context("USERENV", "DATABASE_ROLE")))
        if role != "PRIMARY":
            yield read_only(f"the role of this database is {role}", "connect to the primary")

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # privileges on the whole table; those on single columns are not considered
        dialect: Any = connection.dialect
        owner = dialect.denormalize_name(connection.schema_for_object(spec.table) or dialect.default_schema_name)
        if owner == connection.scalar(select(func.sys_context("USERENV", "SESSION_USER"))):
            return ()
        is_of_table = (_GRANTS.c.table_schema == owner) & (
            _GRANTS.c.table_name == dialect.denormalize_name(spec.table.name)
        )
        granted = {*connection.scalars(select(_GRANTS.c.privilege).where(is_of_table))}
        granted |= {*connection.scalars(select(_POWERS.c.privilege))}
        asked = ("SELECT", "INSERT", "UPDATE", "DELETE")
        return [privilege for privilege in asked if not granted & {privilege, f"{privilege} ANY TABLE"}]
