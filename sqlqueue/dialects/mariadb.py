"""MariaDB 10.6 and newer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import ClassVar

from sqlalchemy import ColumnClause, Connection, Delete, Table, column, select, table, text
from sqlalchemy.orm import Session

from ..spec import Identity, QueueSpec
from ..statements import Pick
from .mysql import MySQL, force_index

_ALL = 2**62


class MariaDB(MySQL):
    """Claims as MySQL does, but for criteria that no index serves.

    MariaDB keeps the locks of rows that it has read by a secondary index and then found not to match.  So those are
    found without a lock first, and locked by primary key, one after the other until there are enough.
    """

    name = "mariadb"
    product = "MariaDB"
    minimum: ClassVar[tuple[int, ...]] = (10, 6)
    reads_only = "tx_read_only"
    # from 1,000 values on an IN becomes a join with a derived table, which may be read, and locked, in any order
    batch = 999

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        return ()  # an index that is IGNORED is one that SQLAlchemy does not find

    def lock(self, session: Session, pick: Pick) -> list[Identity]:
        if pick.exact:
            return super().lock(session, pick)
        found: list[Identity] = []
        for number in (1_000 + 4 * pick.limit, _ALL):  # most claims need not look at all that match
            candidates = self._candidates(session, pick, number)
            fresh = [key for key in candidates if key not in set(found)]
            while fresh and len(found) < pick.limit:
                size = min(pick.limit - len(found), self.batch)
                some, fresh = fresh[:size], fresh[size:]
                found += self._lock_keys(session, pick, some)
            if len(found) == pick.limit or len(candidates) < number:
                break
        return found

    def _candidates(self, session: Session, pick: Pick, number: int) -> list[Identity]:
        # in a statement of its own: a view of the rows older than their locks is error 1020
        matching = pick.select(*pick.spec.primary_key).limit(number)
        hinted = force_index(matching, pick.spec, pick.index or "PRIMARY")
        return [tuple(row) for row in self.execute(session, pick.spec, hinted)]

    def _lock_keys(self, session: Session, pick: Pick, keys: Sequence[Identity]) -> list[Identity]:
        """Those of ``keys`` that are free, and still match."""
        spec = pick.spec
        matching = select(*spec.primary_key).where(self.key_in(spec, keys), *pick.state, *pick.where)
        locking = self.by_key(spec, matching.with_for_update(skip_locked=True))
        locked = {tuple(row) for row in self.execute(session, spec, locking)}
        return [key for key in keys if key in locked]

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        connection.execute(text(f"SET SESSION max_statement_time = {timeout.total_seconds():f}"))

    def deleting_by_key(self, spec: QueueSpec, statement: Delete) -> Delete:
        # index hints belong to the form of DELETE that names its tables twice
        target: ColumnClause[None] = column(spec.table.name)
        target.table = table(spec.table.schema) if spec.table.schema else None
        multiple: Delete = force_index(statement.prefix_with(target), spec, "PRIMARY")
        return multiple
