"""MySQL 8.0.1 and newer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Insert,
    Select,
    Table,
    UniqueConstraint,
    Update,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ..clock import utc
from ..spec import Identity, QueueSpec
from ..statements import Pick
from .base import Adapter, ByKey, Replacement

_QUOTE = mysql.dialect().identifier_preparer.quote


class MySQL(Adapter):
    """The claim is two statements: a locking SELECT of the primary keys, then an UPDATE of those.

    InnoDB locks what it scans, before it sorts.  So the claim names its index, whose order is the claim's: any other
    plan would lock rows that the claim does not return, and leave nothing to others.
    """

    name = "mysql"
    product = "MySQL"
    minimum: ClassVar[tuple[int, ...]] = (8, 0, 1)
    needed = "SKIP LOCKED"
    timestamp = utc(mysql.DATETIME, fsp=6)
    error_text = mysql.VARCHAR(2000, charset="utf8mb4")
    returning = False
    orders_freely = False

    def specialize(self, dialect: Dialect, adapters: Mapping[str, Adapter]) -> Adapter:
        return adapters["mariadb"] if getattr(dialect, "is_mariadb", False) else self

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.utc_timestamp(literal_column("6"))
        if seconds is None:
            return now
        return func.timestampadd(text("MICROSECOND"), seconds * literal_column("1000000"), now)

    def banner(self, connection: Connection) -> str:
        return str(connection.scalar(select(func.version())))

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        if "tidb" in banner.lower():
            self.refuse(f"(TiDB, {banner})", "MySQL itself, or MariaDB,", "SKIP LOCKED, which TiDB does not have")
        super().judge(version, banner)

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        # STRAIGHT_JOIN: an EXISTS in a criterion must not become a join that is read from the other table
        statement = super().picking(pick, *columns).prefix_with("STRAIGHT_JOIN")
        hinted: Select[Any] = force_index(statement, pick.spec, pick.index or "PRIMARY")
        return hinted

    def loading(self, spec: QueueSpec, keys: Sequence[Identity], *, latest: bool) -> Select[Any]:
        statement = super().loading(spec, keys, latest=latest)
        if not latest or not spec.is_plain:
            return statement
        # a plain SELECT in a REPEATABLE READ transaction may not see the version of a row that was just locked
        locking: Select[Any] = self.by_key(spec, statement.with_for_update())
        return locking

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        # left alone, the optimizer reads all of a small table, and waits for what others have locked in it
        if isinstance(statement, Delete):
            return self.deleting_by_key(spec, statement)
        return force_index(statement, spec, "PRIMARY")

    def deleting_by_key(self, spec: QueueSpec, statement: Delete) -> Delete:
        # the syntax of DELETE has no place for index hints, but for this one
        return statement.prefix_with(f"/*+ INDEX(`{spec.table.name}` PRIMARY) */")

    def change(
        self, session: Session, spec: QueueSpec, statement: Update | Delete, identities: Sequence[Identity]
    ) -> set[Identity]:
        statement = self.by_key(spec, statement)
        if len(identities) == 1:
            return set(identities) if self.count(session, spec, statement) else set()
        # no RETURNING: which rows are still ours has to be known, and kept so, before they change
        ours = select(*spec.primary_key).where(statement.whereclause).with_for_update()  # type: ignore[arg-type]
        changed = {tuple(row) for row in self.execute(session, spec, self.by_key(spec, ours))}
        self.execute(session, spec, statement)
        return changed

    def sweep(self, session: Session, spec: QueueSpec, statement: Update | Delete) -> int:
        # by primary key, in the order in which claims are settled: by way of an index, the two would deadlock
        matching = select(*spec.primary_key).where(statement.whereclause)  # type: ignore[arg-type]
        keys = [tuple(row) for row in self.execute(session, spec, matching)]
        swept = (statement.where(self.key_in(spec, some)) for some in self.batches(keys))
        return sum(self.count(session, spec, self.by_key(spec, each)) for each in swept)

    def upsert(self, spec: QueueSpec, replace: Replacement | None) -> Insert | None:
        if _has_other_keys(spec.table):
            return None  # ON DUPLICATE KEY would go by any of them, and change another task
        statement = mysql.insert(spec.table)
        if replace is None:
            first = spec.primary_key[0]
            return statement.on_duplicate_key_update([(first.name, first)])
        assignments = replace(lambda name: statement.inserted[name])
        return statement.on_duplicate_key_update([(column.name, value) for column, value in assignments])

    def is_duplicate(self, error: IntegrityError) -> bool:
        return self.code(error) in (1062, 1586)


def force_index(statement: ByKey, spec: QueueSpec, index: str) -> ByKey:
    hint = f"FORCE INDEX ({_QUOTE(index)})"
    if isinstance(statement, Select):
        return statement.with_hint(spec.table, hint)
    return statement.with_hint(hint)


def _has_other_keys(table: Table) -> bool:
    unique = (constraint for constraint in table.constraints if isinstance(constraint, UniqueConstraint))
    return any(index.unique for index in table.indexes) or any(unique)
