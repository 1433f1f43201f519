"""Restricts locks to the rows of a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Select, Table

from ...queue.spec import Criterion, Identity, QueueSpec, conjuncts
from ...sql.selection import Pick
from ..parts.locking import Locking, skip_locked
from .keys import force_index, unless_constant


class MySQLLocking(Locking):
    """Rows are read without locks, in the order of the claim's index, and then locked by primary key.

    InnoDB locks each index entry that it reads, before sorting.  The entry stays locked even if its row turns out not
    to match (MariaDB) or to be locked by another transaction, which then waits when it writes to the row.  Therefore,
    every statement locks rows through the primary key, whose index entries are the rows.
    """

    orders_freely: ClassVar[bool] = False
    # by primary key, the order in which claims are settled: locking through another index would deadlock with it
    sweeps_by_key: ClassVar[bool] = True

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        spec = pick.spec
        pick = replace(pick, state=_no_constants(spec, pick.state), where=_no_constants(spec, pick.where))
        hinted: Select[Any] = force_index(_in_one_order(skip_locked(pick, *columns)), spec, "PRIMARY")
        return hinted

    def named(self, spec: QueueSpec, *criteria: Criterion, waits: bool) -> Select[Any]:
        return _in_one_order(super().named(spec, *_no_constants(spec, criteria), waits=waits))

    def locked_in_order(self, spec: QueueSpec, keys: Sequence[Identity]) -> int:
        # rows are read in index order, partition by partition; only the server can order text
        if is_partitioned(spec.table) or not all(isinstance(part, int) for key in keys for part in key):
            return 0
        return 1 + sum(1 for _ in takewhile(lambda pair: pair[0] < pair[1], pairwise(keys)))

    def along(self, pick: Pick, reading: Select[Any]) -> Select[Any]:
        hinted: Select[Any] = force_index(reading, pick.spec, pick.index or "PRIMARY")
        return hinted

    def is_served(self, pick: Pick) -> bool:
        return pick.index is None

    def loading(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        statement = super().loading(spec, count, latest=latest)
        if not latest or not spec.is_plain:
            return statement
        # a plain SELECT in a REPEATABLE READ transaction may not see the version of the row that was just locked
        locking: Select[Any] = self.keys.by_key(spec, statement.with_for_update())
        return locking

    def returns(self, spec: QueueSpec) -> bool:
        return False


def is_partitioned(table: Table) -> bool:
    """Return whether the model declares the table as partitioned, with the PARTITION BY option for MySQL or MariaDB."""
    return any(f"{name}_partition_by" in table.kwargs for name in ("mysql", "mariadb"))


def _no_constants(spec: QueueSpec, criteria: Sequence[Criterion]) -> tuple[Criterion, ...]:
    return tuple(unless_constant(spec, term) for term in conjuncts(criteria))


def _in_one_order(statement: Select[Any]) -> Select[Any]:
    """Prevent an EXISTS in a criterion from becoming a join that starts at the other table."""
    return statement.prefix_with("STRAIGHT_JOIN")
