"""Table hints that restrict locks to the rows of a claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.dialects import mssql

from ...queue.spec import Criterion, QueueSpec
from ...sql.selection import Pick
from ..parts.locking import Locking
from .keys import seek_by_key

_QUOTE = mssql.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]


class SQLServerLocking(Locking):
    """READPAST skips locked rows, UPDLOCK keeps locks until the transaction ends, ROWLOCK prevents page locks, and
    FORCESEEK prevents scanning and sorting a small table, which would lock all of it.  Locks may be kept on rows that
    turn out not to match, and on index entries whose rows READPAST skips. Therefore, rows are first read without locks,
    and then locked by primary key, except by the claims that :class:`.SQLServerClaims` makes in one statement.
    https://learn.microsoft.com/en-us/sql/t-sql/queries/hints-transact-sql-table
    """

    orders_freely: ClassVar[bool] = False
    # NOCOUNT suppresses the count, and the statements of a trigger add their own
    counts: ClassVar[bool] = False
    # a scan waits for rows that others have locked, and about 5,000 locks of one statement escalate to a table lock
    sweeps_by_key: ClassVar[bool] = True

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        picked = pick.select(*_with_row(pick.spec, columns)).limit(pick.limit)
        return picked.with_hint(pick.spec.table, f"WITH (ROWLOCK, UPDLOCK, READPAST, {_seek(pick)})")

    def along(self, pick: Pick, reading: Select[Any]) -> Select[Any]:
        return reading.with_hint(pick.spec.table, f"WITH ({_seek(pick)})")

    def is_served(self, pick: Pick) -> bool:
        return pick.index is None

    def named(self, spec: QueueSpec, *criteria: Criterion, waits: bool) -> Select[Any]:
        matching = select(*_with_row(spec, spec.primary_key)).where(*criteria)
        skips = "" if waits else "READPAST, "
        return matching.with_hint(spec.table, f"WITH (ROWLOCK, UPDLOCK, {skips}{seek_by_key(spec.table)})")

    def returns(self, spec: QueueSpec) -> bool:
        # OUTPUT fails on a table with triggers, which Table(implicit_returning=False) declares
        return spec.table.implicit_returning

    def loading(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        loading: Select[Any] = self.keys.by_key(spec, super().loading(spec, count, latest=latest))
        return loading


def _seek(pick: Pick) -> str:
    return seek_by_key(pick.spec.table) if pick.index is None else f"FORCESEEK, INDEX({_QUOTE(pick.index)})"


def _with_row(spec: QueueSpec, columns: Sequence[ColumnElement[Any]]) -> Sequence[ColumnElement[Any]]:
    """Return the columns together with one that no index contains, so that the row itself is read and locked.

    A statement covered by an index locks the index's keys instead of the rows: a transaction that reaches a row through
    another index would not see the lock.  See the remarks on table hints.
    """
    indexed = {column for index in spec.table.indexes for column in index.columns} | set(spec.primary_key)
    beyond = [column for column in spec.columns.values() if column not in indexed]
    return columns if set(columns) & set(beyond) else (*columns, *beyond[:1])
