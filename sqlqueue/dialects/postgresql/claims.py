"""Claims in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, ClassVar

from sqlalchemy import CTE, ColumnElement, Select, and_, func, select
from sqlalchemy.orm import Session

from ...queue.spec import Criterion, QueueSpec
from ...sql.changes import Assignment, write
from ...sql.selection import Pick
from ..parts.claims import Claims, Taking
from ..parts.locking import Locking, skip_locked


class PostgreSQLLocking(Locking):
    """Locks with FOR NO KEY UPDATE: inserting a child row neither hides its task from claims nor waits for a claim."""

    passes_over: ClassVar[bool] = True

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        return skip_locked(pick, *columns, key_share=True)

    def passing_over(self, spec: QueueSpec, named: Criterion) -> Criterion:
        # a join without repeating the condition, whose number of rows the planner cannot estimate
        key = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
        free = self.picking_named(spec, named, *key).cte("free").prefix_with("MATERIALIZED")
        return and_(*(column == free.c[f"key_{n}"] for n, column in enumerate(spec.primary_key)))


class PostgreSQLClaims(Claims):
    """A claim is one statement: a materialized CTE locks rows, and the UPDATE around it writes and returns them.

    Rows are locked after the sort.  ``WHERE id IN (SELECT ... LIMIT n FOR UPDATE)`` would be wrong: a plan may evaluate
    the subquery for each row, and claim more than n rows.
    """

    def take(self, session: Session, taking: Taking) -> list[Any]:
        pick, assignments, options = taking.pick, taking.assignments, taking.options
        if not assignments or taking.delete:
            return super().take(session, taking)
        if not self.rows.locking.is_served(pick):
            return self.take_seen(session, taking)
        spec = pick.spec
        whole = spec.is_plain and not options
        statement = pick.made.get((self, assignments, whole), lambda: self._taking(pick, assignments, whole=whole))
        if not whole:
            rows = sorted(self.rows.execute(session, spec, statement, taking.parameters), key=itemgetter(0))
            return self.rows.load(session, spec, [tuple(row[1:]) for row in rows], options)
        loading = {"populate_existing": True}
        taken: Any = session.execute(
            statement, taking.parameters, execution_options=loading, bind_arguments=spec.bind_arguments
        )
        return [task for _, task in sorted(taken, key=itemgetter(0))]

    def _taking(self, pick: Pick, assignments: Sequence[Assignment], *, whole: bool) -> Any:
        """Return the claim's statement.

        It returns each row's position, since RETURNING is unordered, and its key or, if ``whole``, all columns.
        """
        spec = pick.spec
        key = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
        order = [term.column.label(f"order_{n}") for n, term in enumerate(pick.order)]
        locked: CTE = self.rows.locking.picking(pick, *key, *order).cte("locked").prefix_with("MATERIALIZED")
        by = [term.over(locked.c[f"order_{n}"]) for n, term in enumerate(pick.order)]
        keys = [locked.c[column.name] for column in key]
        picked = select(*keys, func.row_number().over(order_by=by).label("position")).subquery("picked")
        joined = [column == picked.c[f"key_{n}"] for n, column in enumerate(spec.primary_key)]
        taking = write(spec, and_(*joined), assignments)
        if not whole:
            return taking.returning(picked.c.position, *spec.primary_key)
        # not an ORM UPDATE, whose criteria the session would evaluate in Python
        every = taking.returning(picked.c.position, *spec.table.columns)
        return select(picked.c.position, spec.entity).from_statement(every)
