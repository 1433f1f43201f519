"""Checks the server's edition, the state of the database and the privileges of an account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, cast, func, select
from sqlalchemy.engine.interfaces import ReflectedColumn

from ...queue.spec import Finding, QueueSpec
from ..parts.server import Server
from .databases import findings_of_database
from .tables import findings_of_key, findings_of_table, may

_ALWAYS_NEW = ("5", "8", "12")
"""Editions whose version number is meaningless: Azure SQL Database, Azure SQL Managed Instance, Fabric.
https://learn.microsoft.com/en-us/sql/t-sql/functions/serverproperty-transact-sql"""


class SQLServerServer(Server):
    """A server, or an Azure SQL database."""

    def banner(self, connection: Connection) -> str:
        if (connection.dialect.server_version_info or ()) >= self.product.minimum:
            return ""
        return str(connection.scalar(select(cast(func.serverproperty("EngineEdition"), Integer))))

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        if banner not in _ALWAYS_NEW:
            super().judge(version, banner)

    def findings(self, connection: Connection) -> Iterator[Finding]:
        yield from findings_of_database(connection)

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        yield from findings_of_table(connection, spec)

    def key_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        yield from findings_of_key(connection, spec)

    def unindexed_reference(self, connection: Connection) -> str | None:
        return "makes the server read all of it, and wait for the rows that others have locked"

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # privileges on the whole table; those on single columns are not considered
        asked = ("SELECT", "INSERT", "UPDATE", "DELETE")
        granted = connection.execute(
            select(*(may(connection, spec, privilege).label(privilege) for privilege in asked))
        ).one()
        return [privilege for privilege, has in zip(asked, granted, strict=True) if not has]
