"""Checks the role of the database, how sessions compare texts, and the privileges of an account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, column, func, select, table
from sqlalchemy.engine.interfaces import ReflectedColumn

from ...queue.spec import Finding, QueueSpec, Severity
from ..parts.server import Server, read_only
from .tables import comparison, findings_of_table, owner_of

_GRANTS = table("all_tab_privs", *map(column, ("table_schema", "table_name", "privilege")), schema="sys")
_POWERS = table("session_privs", column("privilege"), schema="sys")
_POWERS_IN_SCHEMAS = table("session_schema_privs", *map(column, ("privilege", "schema")), schema="sys")
"""Since 23ai: SELECT ANY TABLE ON SCHEMA, and others."""


class OracleServer(Server):
    """Detects standbys, and checks privileges on whole tables."""

    def findings(self, connection: Connection) -> Iterator[Finding]:
        role = connection.scalar(select(func.sys_context("USERENV", "DATABASE_ROLE")))
        if role != "PRIMARY":
            yield read_only(f"the role of this database is {role}", "connect to the primary")
        session = comparison(connection)
        rule, sort = session.get("NLS_COMP", "BINARY"), session.get("NLS_SORT", "BINARY")
        if rule != "BINARY" and sort != "BINARY":
            message = (
                f"NLS_COMP is {rule} and NLS_SORT is {sort}: different keys may be taken for the same, and comparisons"
                " of texts, such as states, do not use indexes"
            )
            fix = "ALTER SESSION SET NLS_COMP = BINARY on each new connection"
            yield Finding(severity=Severity.ERROR, code="linguistic-comparison", message=message, fix=fix)

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        yield from findings_of_table(connection, spec)

    def unindexed_reference(self, connection: Connection) -> str | None:
        return "makes the server lock and read all of it: writers wait for the deletion, and the deletion for writers"

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # privileges on the whole table; those on single columns are not considered
        dialect: Any = connection.dialect
        owner = owner_of(connection, spec.table)
        if owner == connection.scalar(select(func.sys_context("USERENV", "SESSION_USER"))):
            return ()
        is_of_table = (_GRANTS.c.table_schema == owner) & (
            _GRANTS.c.table_name == dialect.denormalize_name(spec.table.name)
        )
        granted = {*connection.scalars(select(_GRANTS.c.privilege).where(is_of_table))}
        granted |= {*connection.scalars(select(_POWERS.c.privilege))}
        if (connection.dialect.server_version_info or ()) >= (23,):
            here = _POWERS_IN_SCHEMAS.c.schema == owner
            granted |= {*connection.scalars(select(_POWERS_IN_SCHEMAS.c.privilege).where(here))}
        asked = ("SELECT", "INSERT", "UPDATE", "DELETE")
        return [privilege for privilege in asked if not granted & {privilege, f"{privilege} ANY TABLE"}]
