"""Table hints that keep locks to the rows of a claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.dialects import mssql

from ...queue.spec import Criterion, QueueSpec
from ...sql.selection import Pick
from ..parts.locking import Locking

_QUOTE = mssql.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]
_FEW = 25
"""Rows up to which a plan looks each up when it comes to it in the index.  For more it may read ahead in that, and keep
locks that it takes there: https://learn.microsoft.com/en-us/archive/blogs/craigfr/read-committed-and-bookmark-lookup"""


class SQLServerLocking(Locking):
    """READPAST skips what others hold, UPDLOCK keeps it, ROWLOCK keeps it to rows, and FORCESEEK keeps a small table
    from being scanned and sorted, which would lock all of it.  Locks that are taken on the way to a row that is then
    found not to match are kept too.  So what one index alone does not serve is found without a lock first, as are
    more than a few rows, and then locked by primary key.
    https://learn.microsoft.com/en-us/sql/t-sql/queries/hints-transact-sql-table
    """

    orders_freely: ClassVar[bool] = False
    # a scan waits for what others have locked, and some 5,000 locks of one statement become one of the whole table
    sweeps_by_key: ClassVar[bool] = True

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        picked = pick.select(*_with_row(pick.spec, columns)).limit(pick.limit)
        return picked.with_hint(pick.spec.table, f"WITH (ROWLOCK, UPDLOCK, READPAST, {_seek(pick)})")

    def looking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        return super().looking(pick, *columns).with_hint(pick.spec.table, f"WITH ({_seek(pick)})")

    def is_served(self, pick: Pick) -> bool:
        return pick.exact and (pick.index is None or pick.limit <= _FEW)

    def named(self, spec: QueueSpec, *criteria: Criterion, waits: bool) -> Select[Any]:
        matching = select(*_with_row(spec, spec.primary_key)).where(*criteria)
        return matching.with_hint(spec.table, f"WITH (ROWLOCK, UPDLOCK, {'' if waits else 'READPAST, '}FORCESEEK)")

    def returns(self, spec: QueueSpec) -> bool:
        # OUTPUT is refused where the table has a trigger; Table(implicit_returning=False) says so
        return spec.table.implicit_returning

    def loading(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        loading: Select[Any] = self.keys.by_key(spec, super().loading(spec, count, latest=latest))
        return loading


def _seek(pick: Pick) -> str:
    return "FORCESEEK" if pick.index is None else f"FORCESEEK, INDEX({_QUOTE(pick.index)})"


def _with_row(spec: QueueSpec, columns: Sequence[ColumnElement[Any]]) -> Sequence[ColumnElement[Any]]:
    """With a column that no index has, unless there is one: so that the row is read, and locked, itself.

    A statement that an index covers locks keys of that index and not the rows: whoever comes to a row by another index
    would not see that it is taken.  See the remarks on table hints.
    """
    indexed = {column for index in spec.table.indexes for column in index.columns} | set(spec.primary_key)
    beyond = [column for column in spec.columns.values() if column not in indexed]
    return columns if set(columns) & set(beyond) else (*columns, *beyond[:1])
