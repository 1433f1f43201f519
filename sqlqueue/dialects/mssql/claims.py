"""Claims in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.util import ClauseAdapter

from ...queue.spec import Identity
from ...sql.rows import Assignment
from ...sql.selection import Pick
from ..parts.claims import Claims, Taking
from ..parts.rows import Rows

_FEW = 25
"""The number of rows up to which a plan looks up each row as it reads the index.  For more rows it may read ahead, and
keep the locks: https://learn.microsoft.com/en-us/archive/blogs/craigfr/read-committed-and-bookmark-lookup"""


class ClaimingUpdate(Update):
    """An UPDATE on one processor: parallel scans would read, and lock, further entries."""

    inherit_cache = True


@compiles(ClaimingUpdate, "mssql")
def _compile_on_one_processor(update: ClaimingUpdate, compiler: Any, **kw: Any) -> str:
    return f"{compiler.visit_update(update, **kw)} OPTION (MAXDOP 1)"


class ReleasingRows(Rows):
    """Keeps no locks on rows that it does not return: it releases all, and locks those that it returns again.

    UPDLOCK may keep them until the transaction ends, but a rollback to a savepoint releases later locks, "except for
    escalated and converted locks":
    https://learn.microsoft.com/en-us/sql/t-sql/language-elements/rollback-transaction-transact-sql
    """

    def lock_picked(self, session: Session, pick: Pick) -> list[Identity]:
        with session.connection(pick.spec.bind_arguments).begin_nested() as savepoint:
            found = super().lock_picked(session, pick)
            if len(found) < pick.limit:
                savepoint.rollback()
        return found if len(found) == pick.limit else self.lock_keys(session, pick, found, len(found))

    def lock_keys(self, session: Session, pick: Pick, keys: Sequence[Identity], room: int) -> list[Identity]:
        while keys:
            with session.connection(pick.spec.bind_arguments).begin_nested() as savepoint:
                found = super().lock_keys(session, pick, keys, room)
                if len(found) < min(room, len(keys)):
                    savepoint.rollback()
            if len(found) == min(room, len(keys)):
                return found
            keys = found
        return []


class SQLServerClaims(Claims):
    """A claim is an UPDATE of a common table expression whose rows are locked as they are found.

    This applies to a few rows that one index finds.  Others, and rows that are only locked, possibly for as long as
    their handler runs, are first read without locks, and then locked by primary key.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows)
        self._releasing = Claims(ReleasingRows(rows.locking, rows.errors))

    def lock(self, session: Session, pick: Pick, *, holds: bool = False) -> list[Identity]:
        return self._releasing.lock(session, pick) if holds else super().lock(session, pick)

    def take(self, session: Session, taking: Taking) -> list[Any]:
        pick, rows = taking.pick, self.rows
        is_found_by_one_index = pick.exact and (pick.index is None or pick.limit <= _FEW)
        if not taking.assignments or taking.delete or not rows.locking.returns(pick.spec) or not is_found_by_one_index:
            return super().take(session, taking)
        taken = rows.execute(session, pick.spec, self.claiming(pick, taking.assignments), taking.parameters).all()
        count = len(pick.order)
        for n, term in reversed(list(enumerate(pick.order))):
            taken = sorted(taken, key=lambda row, n=n: _null_first(row[n]), reverse=term.descending)  # type: ignore[misc]
        keys = [tuple(row[count:]) for row in taken]
        return rows.load(session, pick.spec, keys, taking.options, unreadable=taking.unreadable)

    def claiming(self, pick: Pick, assignments: Sequence[Assignment]) -> Any:
        """Return the claim's statement.  It returns the values by which rows are ordered, then the primary key."""
        spec = pick.spec
        columns = {column.name: column for column in (*spec.primary_key, *spec.columns.values())}
        columns |= {term.column.name: term.column for term in pick.order}
        picked = self.rows.locking.picking(pick, *columns.values()).cte("picked")
        adapter = ClauseAdapter(picked)
        values = {picked.c[column.name]: adapter.traverse(value) for column, value in assignments}
        before = picked.alias("deleted").c
        order = [before[term.column.name] for term in pick.order]
        return ClaimingUpdate(picked).values(values).returning(*order, *(picked.c[c.name] for c in spec.primary_key))


def _null_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value
