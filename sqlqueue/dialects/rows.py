"""What an adapter does to rows: locks those that are free, and writes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

from sqlalchemy import ColumnElement, CursorResult, Delete, Select, Update, select
from sqlalchemy.orm import Session

from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.selection import Pick
from .keys import Keys

ALL = 2**31 - 1
"""More rows than there are; a limit has to be a number that every engine takes for one."""
R = TypeVar("R")
Parameters: TypeAlias = Mapping[str, Any]


class Rows(Keys):
    """The part of an adapter that executes statements."""

    passes_over: ClassVar[bool] = False
    """Whether a statement that writes passes over what others have locked, or meets no such thing."""
    returning: ClassVar[bool] = True
    """Whether UPDATE and DELETE can return what they changed."""

    def returns(self, spec: QueueSpec) -> bool:
        """:attr:`returning`, of the table of this queue."""
        return self.returning

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """The locking SELECT: these columns of exactly the rows that are free, and no lock on any other."""
        return pick.select(*columns).limit(pick.limit).with_for_update(skip_locked=True)

    def looking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """These columns of the rows of ``pick``, whether they are free or not, without a lock."""
        return pick.select(*columns).limit(pick.limit)

    def lock(self, session: Session, pick: Pick) -> list[Identity]:
        locking = pick.made.get((self, "lock"), lambda: self.picking(pick, *pick.spec.primary_key))
        return self.keys(session, pick.spec, locking)

    def lock_seen(self, session: Session, pick: Pick) -> list[Identity]:
        """:meth:`lock` for what no index serves alone: found without a lock, then locked one after the other."""
        spec, found = pick.spec, list[Identity]()
        for number in (1_000 + 4 * pick.limit, ALL):  # most claims need not look at all that match
            # in a statement of its own: a view of the rows older than their locks is error 1020 of MariaDB
            candidates = self.keys(session, spec, self.looking(replace(pick, limit=number), *spec.primary_key))
            seen = set(found)
            fresh = [key for key in candidates if key not in seen]
            while fresh and len(found) < pick.limit:
                size = min(pick.limit - len(found), self.most(spec))
                some, fresh = fresh[:size], fresh[size:]
                found += self._lock_keys(session, pick, some)
            if len(found) == pick.limit or len(candidates) < number:
                break
        return found

    def _lock_keys(self, session: Session, pick: Pick, keys: Sequence[Identity]) -> list[Identity]:
        """Those of ``keys`` that are free, and still match."""
        spec = pick.spec
        locking = self.locking(spec, self.key_in(spec, keys), *pick.state, *pick.where, waits=False)
        locked = set(self.keys(session, spec, locking))
        return [key for key in keys if key in locked]

    def locking(self, spec: QueueSpec, *named: Criterion, waits: bool) -> Select[Any]:
        """The SELECT that locks rows which are named; unless it ``waits``, those that nobody else has locked."""
        matching = select(*spec.primary_key).where(*named)
        locking: Select[Any] = self.by_key(spec, matching.with_for_update(skip_locked=not waits))
        return locking

    def change(
        self,
        session: Session,
        spec: QueueSpec,
        statement: Update | Delete,
        identities: Sequence[Identity],
        parameters: Parameters | None = None,
        *,
        waits: bool = True,
    ) -> set[Identity]:
        """Execute ``statement``, which is about ``identities``; those whose rows it changed.

        Unless it ``waits``, its condition has been through :meth:`passing_over`.  One with ``parameters`` comes again.
        """
        if not self.returns(spec):
            return self._change_locked(session, spec, statement, identities, parameters, waits=waits)
        if not waits and not self.passes_over:
            free = self._free(session, spec, statement, parameters)
            if not free:
                return set()
            if len(free) < len(identities):
                narrowed = statement.where(self.key_in(spec, free))
                return self._changed(session, spec, self._returning(spec, narrowed), parameters)
        returning = again(spec, parameters, (self, statement), lambda: self._returning(spec, statement))
        return self._changed(session, spec, returning, parameters)

    def _change_locked(
        self,
        session: Session,
        spec: QueueSpec,
        statement: Update | Delete,
        identities: Sequence[Identity],
        parameters: Parameters | None,
        *,
        waits: bool,
    ) -> set[Identity]:
        """:meth:`change` where nothing is returned: which rows are ours has to be known, and kept so, before that."""
        named = again(spec, parameters, (self, statement), lambda: self.by_key(spec, statement))
        if waits and len(identities) == 1:
            return set(identities) if self.count(session, spec, named, parameters) else set()
        criterion: Any = statement.whereclause
        make = partial(self.locking, spec, criterion, waits=waits)
        ours = again(spec, parameters, (self, statement, waits), make)
        changed = set(self.keys(session, spec, ours, parameters))
        if changed and len(changed) < len(identities) and not waits:
            named = named.where(self.key_in(spec, list(changed)))
        if changed:
            self.execute(session, spec, named, parameters)
        return changed

    def _changed(
        self, session: Session, spec: QueueSpec, returning: Any, parameters: Parameters | None
    ) -> set[Identity]:
        return set(self.keys(session, spec, returning, parameters))

    def _returning(self, spec: QueueSpec, statement: Update | Delete) -> Any:
        return self.by_key(spec, statement).returning(*spec.primary_key)

    def _free(
        self, session: Session, spec: QueueSpec, statement: Update | Delete, parameters: Parameters | None
    ) -> list[Identity]:
        """The rows of ``statement`` that nobody else has locked; from here on we have."""
        criterion: Any = statement.whereclause
        make = partial(self.picking_named, spec, criterion, *spec.primary_key)
        locking = again(spec, parameters, (self, statement, "free"), make)
        return self.keys(session, spec, locking, parameters)

    def passing_over(self, spec: QueueSpec, named: Criterion) -> Criterion:
        """``named``, which names rows, for those alone that nobody else has locked, if one statement can say so."""
        return named

    def picking_named(self, spec: QueueSpec, named: Criterion, *columns: ColumnElement[Any]) -> Select[Any]:
        """:meth:`picking` of rows that are named."""
        pick = Pick(spec=spec, state=(named,), where=(), order=(), limit=self.most(spec), index=None, exact=True)
        return self.picking(pick, *columns)

    def sweep(self, session: Session, spec: QueueSpec, statement: Update | Delete, limit: int | None = None) -> int:
        """Execute ``statement``, which is about any number of rows, on ``limit`` of them; how many it changed."""
        if limit is None:
            return self.count(session, spec, statement)
        return self.sweep_by_key(session, spec, statement, limit)

    def sweep_by_key(self, session: Session, spec: QueueSpec, statement: Update | Delete, limit: int | None) -> int:
        matching = select(*spec.primary_key).where(statement.whereclause).limit(limit)  # type: ignore[arg-type]
        found = self.batches(spec, self.keys(session, spec, matching))
        swept = (statement.where(self.key_in(spec, some)) for some in found)
        return sum(self.count(session, spec, self.by_key(spec, each)) for each in swept)

    def count(
        self, session: Session, spec: QueueSpec, statement: Update | Delete, parameters: Parameters | None = None
    ) -> int:
        """Execute ``statement``; how many rows it changed."""
        return self.execute(session, spec, statement, parameters).rowcount

    def exists(self, session: Session, spec: QueueSpec, criterion: Criterion) -> bool:
        """Whether there is a row of ``criterion``, which names some by primary key, or by the first column of that."""
        found = self.by_key(spec, select(*spec.primary_key).where(criterion))
        return bool(self.execute(session, spec, found).all())

    def keys(
        self, session: Session, spec: QueueSpec, statement: Any, parameters: Parameters | None = None
    ) -> list[Identity]:
        """Execute ``statement``, which returns primary keys, and may return more after them."""
        width = len(spec.primary_key)
        return [tuple(row[:width]) for row in self.execute(session, spec, statement, parameters).all()]

    def execute(self, session: Session, spec: QueueSpec, statement: Any, parameters: Any = None) -> CursorResult[Any]:
        result = session.execute(statement, parameters, bind_arguments=spec.bind_arguments)
        return cast("CursorResult[Any]", result)


def again(spec: QueueSpec, parameters: Parameters | None, key: Hashable, make: Callable[[], R]) -> R:
    """What ``make`` makes of a statement; kept if that has parameters, for then it comes again."""
    made: R = make() if parameters is None else spec.made.get(key, make)
    return made
