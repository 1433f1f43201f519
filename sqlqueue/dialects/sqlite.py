"""SQLite 3.35 and newer."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Connection, Engine, Insert, Select, false, func, update
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ..spec import QueueSpec
from ..statements import Pick
from .base import READ_COMMITTED, Adapter, Replacement

_MOMENT = "%Y-%m-%d %H:%M:%f000"
"""What SQLAlchemy stores, as far as the clock goes: milliseconds."""


class SQLite(Adapter):
    """One writer at a time, so a claim needs no lock but that: it makes sure of it before it looks for rows."""

    name = "sqlite"
    product = "SQLite"
    minimum: ClassVar[tuple[int, ...]] = (3, 35)
    needed = "RETURNING"
    partial_index: ClassVar[str | None] = "sqlite_where"

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        if seconds is None:
            return func.strftime(_MOMENT, "now")
        return func.strftime(_MOMENT, "now", func.printf("%+.6f seconds", seconds))

    def connect(self, session: Session, spec: QueueSpec, *, fresh: bool, claims: bool) -> Connection:
        connection = super().connect(session, spec, fresh=fresh, claims=claims)
        if claims:
            _begin_immediate(connection, spec, fresh=fresh)
        return connection

    def level(self, source: Engine | Connection) -> str | None:
        """Transactions are serializable, which harms nobody where there is one writer; what is asked for is ignored."""
        return READ_COMMITTED

    def check_level(self, connection: Connection) -> None:
        """A driver that does not begin by itself is just what is needed: the claim begins."""

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        return pick.select(*columns).limit(pick.limit)

    def upsert(self, spec: QueueSpec, replace: Replacement | None) -> Insert | None:
        statement = insert(spec.table)
        if replace is None:
            return statement.on_conflict_do_nothing(index_elements=list(spec.primary_key))
        return statement.on_conflict_do_update(
            index_elements=list(spec.primary_key),
            set_={column.name: value for column, value in replace(lambda name: statement.excluded[name])},
        )

    def is_duplicate(self, error: IntegrityError) -> bool:
        return getattr(error.orig, "sqlite_errorcode", None) in (1555, 2067)


def _begin_immediate(connection: Connection, spec: QueueSpec, *, fresh: bool) -> None:
    """Become the writer, waiting for the present one as long as the driver's timeout says.

    A transaction that has only read would have to be upgraded later, which SQLite refuses at once if anybody has
    written in the meantime.
    """
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif fresh:
        # the driver (autocommit=False) or a savepoint has begun already, and not to write: to write nothing upgrades it
        connection.execute(update(spec.table).where(false()).values({spec["status"]: spec["status"]}))
