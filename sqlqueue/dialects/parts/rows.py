"""Executes statements about rows, whatever the engine: it goes by the parts that know that."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from sqlalchemy import CursorResult, Delete, Update, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from ..._support.exc import ArgumentError
from ...queue.spec import Criterion, Identity, QueueSpec
from ...sql.selection import Pick, remove
from .locking import Locking

ALL = 2**31 - 1
"""More rows than there are; a limit has to be a number that every engine takes for one."""
R = TypeVar("R")
Parameters: TypeAlias = Mapping[str, Any]


class Rows:
    """Locks, changes, reads and loads rows.  No engine has a class of its own for it."""

    def __init__(self, locking: Locking) -> None:
        self.locking = locking
        self._keys = locking.keys

    def lock_picked(self, session: Session, pick: Pick) -> list[Identity]:
        """Lock the rows of ``pick`` by one statement; returns their primary keys, in order."""
        locking = pick.made.get((self, "lock"), lambda: self.locking.picking(pick, *pick.spec.primary_key))
        return self.keys(session, pick.spec, locking)

    def lock_seen(self, session: Session, pick: Pick) -> list[Identity]:
        """:meth:`lock` for what no index serves alone: found without a lock, then locked one after the other."""
        spec, found = pick.spec, list[Identity]()
        for number in (1_000 + 4 * pick.limit, ALL):  # most claims need not look at all that match
            # in a statement of its own: a view of the rows older than their locks is error 1020 of MariaDB
            candidates = self.keys(session, spec, self.locking.looking(replace(pick, limit=number), *spec.primary_key))
            seen = set(found)
            fresh = [key for key in candidates if key not in seen]
            while fresh and len(found) < pick.limit:
                size = min(pick.limit - len(found), self._keys.most(spec))
                some, fresh = fresh[:size], fresh[size:]
                found += self._lock_keys(session, pick, some)
            if len(found) == pick.limit or len(candidates) < number:
                break
        return found

    def _lock_keys(self, session: Session, pick: Pick, keys: Sequence[Identity]) -> list[Identity]:
        """Those of ``keys`` that are free, and still match."""
        spec = pick.spec
        locking = self.locking.named(spec, self._keys.key_in(spec, keys), *pick.state, *pick.where, waits=False)
        locked = set(self.keys(session, spec, locking))
        return [key for key in keys if key in locked]

    def load(
        self,
        session: Session,
        spec: QueueSpec,
        identities: Sequence[Identity],
        options: Sequence[ExecutableOption] = (),
        *,
        latest: bool = False,
    ) -> list[Any]:
        """The instances of ``identities``, in that order.  ``latest``: nothing was written, only locked."""
        found: dict[Identity, Any] = {}
        for keys in self._keys.batches(spec, identities):
            count, last = self._keys.named_for(spec, len(keys)), latest and not options
            statement = spec.made.get(
                (self, "load", count, last), partial(self.locking.loading, spec, count, latest=last)
            )
            rows = session.scalars(
                statement.options(*options) if options else statement,
                self._keys.key_names(spec, keys),
                execution_options={"populate_existing": True},
                bind_arguments=spec.bind_arguments,
            )
            found.update((spec.identity_of(task), task) for task in rows.unique())
        return in_order(spec, found, identities)

    def delete(self, session: Session, spec: QueueSpec, identities: Sequence[Identity]) -> None:
        for keys in self._keys.batches(spec, identities):
            self.execute(session, spec, self._keys.by_key(spec, remove(spec, self._keys.key_in(spec, keys))))

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

        Unless it ``waits``, its condition has been through :meth:`.Locking.passing_over`.  One with ``parameters``
        comes again.
        """
        if not self.locking.returns(spec):
            return self._change_locked(session, spec, statement, identities, parameters, waits=waits)
        if not waits and not self.locking.passes_over:
            free = self._free(session, spec, statement, parameters)
            if not free:
                return set()
            if len(free) < len(identities):
                narrowed = statement.where(self._keys.key_in(spec, free))
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
        named = again(spec, parameters, (self, statement), lambda: self._keys.by_key(spec, statement))
        if waits and len(identities) == 1:
            return set(identities) if self.count(session, spec, named, parameters) else set()
        criterion: Any = statement.whereclause
        make = partial(self.locking.named, spec, criterion, waits=waits)
        ours = again(spec, parameters, (self, statement, waits), make)
        changed = set(self.keys(session, spec, ours, parameters))
        if changed and len(changed) < len(identities) and not waits:
            named = named.where(self._keys.key_in(spec, list(changed)))
        if changed:
            self.execute(session, spec, named, parameters)
        return changed

    def _changed(
        self, session: Session, spec: QueueSpec, returning: Any, parameters: Parameters | None
    ) -> set[Identity]:
        return set(self.keys(session, spec, returning, parameters))

    def _returning(self, spec: QueueSpec, statement: Update | Delete) -> Any:
        return self._keys.by_key(spec, statement).returning(*spec.primary_key)

    def _free(
        self, session: Session, spec: QueueSpec, statement: Update | Delete, parameters: Parameters | None
    ) -> list[Identity]:
        """The rows of ``statement`` that nobody else has locked; from here on we have."""
        criterion: Any = statement.whereclause
        make = partial(self.locking.picking_named, spec, criterion, *spec.primary_key)
        locking = again(spec, parameters, (self, statement, "free"), make)
        return self.keys(session, spec, locking, parameters)

    def sweep(self, session: Session, spec: QueueSpec, statement: Update | Delete, limit: int | None = None) -> int:
        """Execute ``statement``, which is about any number of rows, on ``limit`` of them; how many it changed."""
        if limit is None and not self.locking.sweeps_by_key:
            return self.count(session, spec, statement)
        return self._sweep_by_key(session, spec, statement, limit)

    def _sweep_by_key(self, session: Session, spec: QueueSpec, statement: Update | Delete, limit: int | None) -> int:
        matching = select(*spec.primary_key).where(statement.whereclause).limit(limit)  # type: ignore[arg-type]
        found = self._keys.batches(spec, self.keys(session, spec, matching))
        swept = (statement.where(self._keys.key_in(spec, some)) for some in found)
        return sum(self.count(session, spec, self._keys.by_key(spec, each)) for each in swept)

    def count(
        self, session: Session, spec: QueueSpec, statement: Update | Delete, parameters: Parameters | None = None
    ) -> int:
        """Execute ``statement``; how many rows it changed."""
        return self.execute(session, spec, statement, parameters).rowcount

    def exists(self, session: Session, spec: QueueSpec, criterion: Criterion) -> bool:
        """Whether there is a row of ``criterion``, which names some by primary key, or by the first column of that."""
        found = self._keys.by_key(spec, select(*spec.primary_key).where(criterion))
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


def in_order(spec: QueueSpec, found: Mapping[R, Any], wanted: Sequence[R]) -> list[Any]:
    """Of ``found`` all that are ``wanted``; :class:`.ArgumentError` if one is not there."""
    hidden = [each for each in wanted if each not in found]
    if hidden:
        raise ArgumentError(
            f"{spec.entity.__name__} {hidden[0]} is claimed but cannot be loaded: loader options or criteria of the"
            " session hide it, or it is newer than what this transaction may see. Roll back."
        )
    return [found[each] for each in wanted]
