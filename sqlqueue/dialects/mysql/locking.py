"""Locks that are kept to the rows of a claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Select, Table

from ...queue.spec import QueueSpec
from ...sql.selection import Pick
from ..parts.locking import Locking, skip_locked
from .keys import force_index, unless_constant


class MySQLLocking(Locking):
    """The claim is two statements: a locking SELECT of the primary keys, then an UPDATE of those.

    InnoDB locks what it scans, before it sorts.  So the claim names its index, whose order is the claim's: any other
    plan would lock rows that the claim does not return, and leave nothing to others.

    An entry of an index stays locked although its row is then found not to match (MariaDB), or to be locked by others,
    who wait as soon as they write to it.  So what one index alone does not serve is found without a lock first, and
    then locked by primary key, one after the other until there are enough.  So are rows of a table in partitions: each
    has an index of its own, whose next entry is read, and locked, to tell which of all comes first.
    """

    orders_freely: ClassVar[bool] = False
    # by primary key, in the order in which claims are settled: by way of an index, the two would deadlock
    sweeps_by_key: ClassVar[bool] = True

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        if pick.index is None:
            pick = replace(pick, where=tuple(unless_constant(pick.spec, term) for term in pick.where))
        # STRAIGHT_JOIN: an EXISTS in a criterion must not become a join that is read from the other table
        statement = skip_locked(pick, *columns).prefix_with("STRAIGHT_JOIN")
        hinted: Select[Any] = force_index(statement, pick.spec, pick.index or "PRIMARY")
        return hinted

    def looking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        hinted: Select[Any] = force_index(super().looking(pick, *columns), pick.spec, pick.index or "PRIMARY")
        return hinted

    def is_served(self, pick: Pick) -> bool:
        return pick.exact and not is_partitioned(pick.spec.table)

    def loading(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        statement = super().loading(spec, count, latest=latest)
        if not latest or not spec.is_plain:
            return statement
        # a plain SELECT in a REPEATABLE READ transaction may not see the version of a row that was just locked
        locking: Select[Any] = self.keys.by_key(spec, statement.with_for_update())
        return locking

    def returns(self, spec: QueueSpec) -> bool:
        return False


def is_partitioned(table: Table) -> bool:
    """Whether the model says so: PARTITION BY is an option of its table, for MySQL or for MariaDB."""
    return any(f"{name}_partition_by" in table.kwargs for name in ("mysql", "mariadb"))
