"""Claims in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any, ClassVar

from sqlalchemy import CTE, ColumnElement, Select, TableValuedAlias, and_, func, or_, select
from sqlalchemy.orm import Session

from ...queue.spec import Criterion, Identity, QueueSpec
from ...sql.rows import Assignment, is_due, utcnow, write
from ...sql.selection import Pick
from ..parts.claims import Claims, Taking
from ..parts.locking import Locking, skip_locked
from ..parts.rows import Parameters, forget_unfinished

_RECENTLY = timedelta(minutes=10)
_LAST = 2**31 - 1
"""A position that no row has."""


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
    """A claim is one statement: a materialized CTE locks rows, and the UPDATE around it writes and returns them.  With
    ``lease=None``, it is a locking SELECT.

    The keys go through an array, so that a planner does not know how many there are: to join several hundred locked
    rows, it would read the whole table.  Of an array it expects ten elements, and that a range of positions selects one
    of them, for which it searches the table by key.  The plan may be kept for as long as the connection, and the table
    may be small when it is made.

    Rows are locked after the sort.  ``WHERE id IN (SELECT ... LIMIT n FOR UPDATE)`` would be wrong: a plan may evaluate
    the subquery for each row, and claim more than n rows.
    """

    def take(self, session: Session, taking: Taking) -> list[Any]:
        pick = taking.pick
        is_served = self.rows.locking.is_served(pick)
        if taking.assignments and not taking.delete:
            return self._write(session, taking) if is_served else self.take_seen(session, taking)
        if taking.delete or not is_served or not _is_whole(taking):
            return super().take(session, taking)
        locking = pick.made.get((self, "load"), lambda: self._loading(pick))
        try:
            return [task for (task,) in _instances(session, pick.spec, locking)]
        except Exception as error:
            if not self.rows.errors.is_of_row(error):
                raise
            keys = self.lock(session, pick)  # returns the same rows: they are locked by this transaction
            if not keys:
                raise
            forget_unfinished(session, pick.spec, keys, error)
            return self.rows.load(session, pick.spec, keys, latest=True, unreadable=taking.unreadable)

    def _write(self, session: Session, taking: Taking) -> list[Any]:
        pick, spec, assignments, whole = taking.pick, taking.pick.spec, taking.assignments, _is_whole(taking)
        statement = pick.made.get((self, assignments, whole), lambda: self._taking(pick, assignments, whole=whole))
        if not whole:
            rows = sorted(self.rows.execute(session, spec, statement, taking.parameters), key=itemgetter(0))
            found: list[Identity] = [tuple(row[1:]) for row in rows]
            return self.rows.load(session, spec, found, taking.options, unreadable=taking.unreadable)
        try:
            taken = _instances(session, spec, statement, taking.parameters)
            return [task for _, task in sorted(taken, key=itemgetter(0))]
        except Exception as error:
            if not self.rows.errors.is_of_row(error):
                raise
            keys = self._written(session, taking)
            if not keys:  # the error is not about a row
                raise
            forget_unfinished(session, spec, keys, error)
            return self.rows.load(session, spec, keys, unreadable=taking.unreadable)

    def _written(self, session: Session, taking: Taking) -> list[Identity]:
        """Return the rows that :meth:`_write` has written, by the claim's token, in order as far as the claim has not
        overwritten it.

        Its result is lost if one of the rows cannot be read.
        """
        spec, values = taking.pick.spec, dict(taking.assignments)
        # the other criteria are for the indexes
        recent = or_(
            and_(spec["finished_at"].is_(None), is_due(spec), spec["available_at"] > utcnow()),
            spec["finished_at"] > utcnow(-_RECENTLY),
        )
        order = [term.expression for term in taking.pick.order if term.column not in values]
        mine = and_(*(spec[role] == values[spec[role]] for role in ("claim_token", "status")))
        found = select(*spec.primary_key).where(mine, recent).order_by(*order)
        broken = {each.identity for each in taking.unreadable}  # by part of the same claim
        return [key for key in self.rows.keys(session, spec, found, taking.parameters) if key not in broken]

    def _loading(self, pick: Pick) -> Any:
        """Return the statement of a claim that only locks.  It returns the latest versions of the rows."""
        locking = self.rows.locking.picking(pick, *pick.spec.table.columns)
        return select(pick.spec.entity).from_statement(locking)

    def _taking(self, pick: Pick, assignments: Sequence[Assignment], *, whole: bool) -> Any:
        """Return the claim's statement.

        It returns each row's position, since RETURNING is unordered, and its key or, if ``whole``, all columns.
        """
        spec = pick.spec
        key = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
        order = [term.column.label(f"order_{n}") for n, term in enumerate(pick.order)]
        locked: CTE = self.rows.locking.picking(pick, *key, *order).cte("locked").prefix_with("MATERIALIZED")
        names = [column.name for column in key]
        by = [term.over(locked.c[f"order_{n}"]) for n, term in enumerate(pick.order)]
        picked = _listed(locked, names, [*by, *(locked.c[name] for name in names)])
        joined = [column == picked.c[name] for column, name in zip(spec.primary_key, names, strict=True)]
        taking = write(spec, and_(*joined, picked.c.position.between(1, _LAST)), assignments)
        if not whole:
            return taking.returning(picked.c.position, *spec.primary_key)
        # not an ORM UPDATE, whose criteria the session would evaluate in Python
        every = taking.returning(picked.c.position, *spec.table.columns)
        return select(picked.c.position, spec.entity).from_statement(every)


def _listed(rows: CTE, names: Sequence[str], order: Sequence[Any]) -> TableValuedAlias:
    """Return these columns of ``rows``, as arrays and then as rows again, with the ``position`` of each in a total
    ``order``."""
    arrays = [func.array(select(rows.c[name]).order_by(*order).scalar_subquery()) for name in names]
    # the grammar knows unnest with several arrays, without a schema alone; with one, it is an ordinary function
    unnest = func.pg_catalog.unnest if len(arrays) == 1 else func.unnest
    return unnest(*arrays).table_valued(*names, with_ordinality="position").render_derived(name="picked")


def _is_whole(taking: Taking) -> bool:
    """Return whether the instances are loaded from the columns of the table alone."""
    return taking.pick.spec.is_plain and not taking.options


def _instances(session: Session, spec: QueueSpec, statement: Any, parameters: Parameters | None = None) -> Any:
    """Execute a statement that returns all columns of rows, and load their instances from it."""
    loading = {"populate_existing": True}
    return session.execute(statement, parameters, execution_options=loading, bind_arguments=spec.bind_arguments)
