"""Claims in one PL/SQL block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.dialects import oracle
from sqlalchemy.orm import Session

from ...queue.spec import Identity, QueueSpec
from ...sql.rows import Assignment
from ...sql.selection import Pick
from ..parts.claims import Claims, Taking
from ..parts.keys import Keys
from ..parts.locking import Locking
from ..parts.rows import Parameters, forget_unfinished, in_order
from .block import ClaimBlock, rowid_of

_QUOTE = oracle.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]


class OracleKeys(Keys):
    """Limits lists to 1,000 expressions (ORA-01795)."""

    batch: ClassVar[int] = 1_000
    pads: ClassVar[bool] = True


class OracleLocking(Locking):
    """Locks rows with a cursor, because FOR UPDATE does not allow a row limit (ORA-02014)."""

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        return self.along(pick, pick.select(*columns).with_for_update(skip_locked=True))

    def advising(self, spec: QueueSpec, index: str | None, reading: Select[Any]) -> Select[Any]:
        if index is None:
            return reading
        # without a hint, the optimizer plans for all rows, and may sort all due rows to return the first: it knows
        # neither how many a cursor fetches nor, before the fix of bug 22174392, what FETCH FIRST limits
        # (https://blogs.oracle.com/optimizer/fetch-first-rows-just-got-faster); a hint names a table without its schema
        # ("SQL Language Reference", Hints), and SQLAlchemy formats it
        hint = f"INDEX({_QUOTE(spec.table.name)} {_QUOTE(index)})".replace("%", "%%")
        return reading.with_hint(spec.table, hint, "oracle")


class OracleClaims(Claims):
    """A claim is one PL/SQL block: a cursor FOR UPDATE SKIP LOCKED, from which only the needed rows are fetched.

    Such a cursor locks each row when it is fetched.  A driver fetches ahead, and would lock more rows than the claim
    returns (through SQLAlchemy's asyncio dialect, all of them); and a row limit cannot be combined with FOR UPDATE
    (ORA-02014).

    The cursor returns rows as they were when it was opened. Therefore, each row is read again after it is locked, and
    only rows that still match are taken; the next row is fetched in place of one that does not.
    """

    # the limit determines the type of the result
    sizes_named: ClassVar[bool] = True

    def take(self, session: Session, taking: Taking) -> list[Any]:
        spec = taking.pick.spec
        if not self.rows.locking.is_served(taking.pick):
            return self.take_seen(session, taking)
        rowids = self._picked(session, taking.pick, taking.assignments, taking.parameters)
        tasks: list[Any] = []
        for some in self.rows.locking.keys.batches(spec, rowids):
            tasks += self._load_rows(session, taking, some)
        if taking.delete:
            self.rows.delete(session, spec, [spec.identity_of(task) for task in tasks])
        return tasks

    def lock(self, session: Session, pick: Pick, *, holds: bool = False) -> list[Identity]:
        if not self.rows.locking.is_served(pick):
            return self.rows.lock_seen(session, pick)
        rowids = self._picked(session, pick)
        return [
            key
            for some in self.rows.locking.keys.batches(pick.spec, rowids)
            for key in self._keys_of(session, pick.spec, some)
        ]

    def _keys_of(self, session: Session, spec: QueueSpec, rowids: Sequence[str]) -> list[Identity]:
        """Return the primary keys of these rows, in that order."""
        rowid = rowid_of(spec.table)
        named = self.rows.locking.keys.one_of(spec, rowid, rowids)
        keys = select(rowid, *spec.primary_key).where(named)
        found: dict[str, Identity] = {row[0]: tuple(row[1:]) for row in self.rows.execute(session, spec, keys)}
        return [found[each] for each in rowids]

    def _picked(
        self,
        session: Session,
        pick: Pick,
        assignments: Sequence[Assignment] = (),
        parameters: Parameters | None = None,
    ) -> list[str]:
        """Lock rows, and write ``assignments`` if there are any; return their rowids, in order."""
        block = pick.made.get((self, "block", assignments), lambda: self._block(pick, assignments))
        result = self.rows.execute(session, pick.spec, block, parameters)
        return (result.out_parameters["rowids"] or "").split(",")[:-1]  # type: ignore[attr-defined]

    def _block(self, pick: Pick, assignments: Sequence[Assignment]) -> ClaimBlock:
        return ClaimBlock(self.rows.locking.picking(pick, rowid_of(pick.spec.table)), pick, assignments)

    def _load_rows(self, session: Session, taking: Taking, rowids: Sequence[str]) -> list[Any]:
        """Load the instances of these rows, in that order.  Rowids work for keys of any type and any number of
        columns."""
        spec = taking.pick.spec
        rowid = rowid_of(spec.table)
        named = self.rows.locking.keys.one_of(spec, rowid, rowids)
        try:
            rows = session.execute(
                select(spec.entity, rowid).where(named).options(*taking.options),
                execution_options={"populate_existing": True},
                bind_arguments=spec.bind_arguments,
            )
            return in_order(spec, {row[1]: row[0] for row in rows.unique()}, rowids)
        except Exception as error:
            if not self.rows.errors.is_of_row(error):
                raise
            keys = self._keys_of(session, spec, rowids)
            forget_unfinished(session, spec, keys, error)
            return self.rows.load(session, spec, keys, taking.options, unreadable=taking.unreadable)
