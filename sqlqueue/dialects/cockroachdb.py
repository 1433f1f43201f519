"""CockroachDB, for those who outgrow one machine.  Never run on a real server by this project."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Select, Table

from .health import Plan
from .postgresql import PostgreSQL
from .requests import Interrupt


class CockroachDB(PostgreSQL):
    """Speaks PostgreSQL's language, claim included.  At SERIALIZABLE, its default, it retries what it can by itself."""

    name = "cockroachdb"
    product = "CockroachDB"
    minimum: ClassVar[tuple[int, ...]] = (22, 2)
    needed = "SKIP LOCKED"
    # its dialect reads the options of PostgreSQL's
    reviving = None
    partial_index: ClassVar[str | None] = None
    harmless_levels = ("READ COMMITTED", "SERIALIZABLE")

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> Plan | None:
        return None  # its EXPLAIN has a form of its own

    def lacks_storage(self, connection: Connection, table: Table) -> bool:
        return False

    def added_at(self, connection: Connection, column: Column[Any]) -> datetime | None:
        return None

    @property
    def predicate_option(self) -> str | None:
        return PostgreSQL.partial_index

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.cancel()

    def notify(self, connection: Connection, name: str) -> None:
        """There is no NOTIFY."""

    def can_listen(self, driver: str) -> bool:
        return False
