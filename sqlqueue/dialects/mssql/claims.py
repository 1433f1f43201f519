"""Claims in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.util import ClauseAdapter

from ...sql.changes import Assignment
from ...sql.selection import Pick
from ..parts.claims import Claims, Taking

_FEW = 25
"""The number of rows up to which a plan looks up each row as it reads the index.  For more rows it may read ahead, and
keep the locks: https://learn.microsoft.com/en-us/archive/blogs/craigfr/read-committed-and-bookmark-lookup"""


class ClaimingUpdate(Update):
    """An UPDATE on one processor: parallel scans would read, and lock, further entries."""

    inherit_cache = True


@compiles(ClaimingUpdate, "mssql")
def _compile_on_one_processor(update: ClaimingUpdate, compiler: Any, **kw: Any) -> str:
    return f"{compiler.visit_update(update, **kw)} OPTION (MAXDOP 1)"


class SQLServerClaims(Claims):
    """A claim is an UPDATE of a common table expression whose rows are locked as they are found.

    This applies to a few rows that one index finds.  Others, and rows that are only locked, possibly for as long as
    their handler runs, are first read without locks, and then locked by primary key.
    """

    def take(self, session: Session, taking: Taking) -> list[Any]:
        pick, rows = taking.pick, self.rows
        is_served = pick.exact and (pick.index is None or pick.limit <= _FEW)
        if not taking.assignments or taking.delete or not rows.locking.returns(pick.spec) or not is_served:
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
