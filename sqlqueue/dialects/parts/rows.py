"""Executes statements on rows.  The parts for locking and keys contain everything that depends on the engine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from sqlalchemy import ColumnElement, CursorResult, Delete, Select, Update, select
from sqlalchemy.orm import Session
from sqlalchemy.orm.util import identity_key
from sqlalchemy.sql.base import ExecutableOption

from ..._support.errors import ArgumentError, UnsupportedDialectError
from ..._support.texts import clear_frames
from ...queue.spec import Criterion, Identity, QueueSpec, Where
from ...sql.rows import remove
from ...sql.selection import Pick
from .errors import Errors
from .locking import Locking

OTHERS = 16
"""The number of rows that a claim reads beyond its limit, since other claims may be locking some."""
FURTHER = 8
"""The factor by which a claim increases the number of rows that it reads whenever it did not get enough."""
R = TypeVar("R")
Parameters: TypeAlias = Mapping[str, Any]


class Unreadable(NamedTuple):
    """A row that cannot be read: one of its values, or an event of its instance, raises an error."""

    identity: Identity
    error: Exception


class Rows:
    """Locks, changes, reads and loads rows, in the same way on all engines."""

    def __init__(self, locking: Locking, errors: Errors) -> None:
        self.locking = locking
        self.errors = errors
        self._keys = locking.keys

    def lock_picked(self, session: Session, pick: Pick) -> list[Identity]:
        """Lock the rows of ``pick`` with one statement; return their primary keys, in order."""
        locking = pick.made.get((self, "lock"), lambda: self.locking.picking(pick, *pick.spec.primary_key))
        return self.keys(session, pick.spec, locking)

    def lock_seen(self, session: Session, pick: Pick) -> list[Identity]:
        """Do the work of :meth:`lock_picked` by primary key: read rows without locks, then lock some until there are
        enough.

        If other transactions have locked too many of the rows, more are read.
        """
        found, seen = list[Identity](), set[Identity]()
        number = pick.limit + OTHERS
        while True:
            # a separate statement: MariaDB raises error 1020 if the snapshot is older than the locks
            candidates = self.look(session, pick, number)
            found += self._lock_first(session, pick, [key for key in candidates if key not in seen], len(found))
            if len(found) == pick.limit or len(candidates) < number:
                return found
            seen.update(candidates)
            number *= FURTHER

    def look(self, session: Session, pick: Pick, number: int) -> list[Identity]:
        """Return the primary keys of the first ``number`` rows of ``pick``, locked or not."""
        if pick.divided is not None and (keys := self._look_at_all(session, pick, number)) is not None:
            return keys
        make = partial(self.locking.looking, replace(pick, limit=number), *pick.spec.primary_key)
        found = self.keys(session, pick.spec, pick.made.get((self, "look", number), make))
        return list(dict.fromkeys(found))  # a collation may consider two of the listed values to be equal

    def _look_at_all(self, session: Session, pick: Pick, number: int) -> list[Identity] | None:
        """Return the result of :meth:`look`, read from the whole queue; ``None`` if rows of other parts are among the
        first. Only then are the parts read one after another, which takes longer.
        """
        whole, column, values = pick.undivided()
        make = partial(self.locking.looking, replace(whole, limit=number), *pick.spec.primary_key, column)
        rows = self.execute(session, pick.spec, pick.made.get((self, "look at all", number), make)).all()
        return [tuple(row[:-1]) for row in rows] if values.issuperset(row[-1] for row in rows) else None

    def _lock_first(self, session: Session, pick: Pick, keys: Sequence[Identity], before: int) -> list[Identity]:
        """Lock the first of ``keys`` that are free and still match, up to the limit of ``pick``, of which ``before``
        are locked."""
        found = list[Identity]()
        while keys and (room := pick.limit - before - len(found)):
            size = min(max(room, self.locking.locked_in_order(pick.spec, keys)), self._keys.most(pick.spec))
            some, keys = keys[:size], keys[size:]
            found += self.lock_keys(session, pick, some, room)
        return found

    def lock_keys(self, session: Session, pick: Pick, keys: Sequence[Identity], room: int) -> list[Identity]:
        """Lock the ``keys`` that are not locked and still match, at most ``room``; return them."""
        spec, count = pick.spec, self._keys.named_for(pick.spec, len(keys))
        limit = room if room < len(keys) else None
        make = partial(self._naming, pick, count, limit)
        locking = pick.made.get((self, "name", count, limit), make)
        locked = set(self.keys(session, spec, locking, self._keys.key_names(spec, keys)))
        return [key for key in keys if key in locked]

    def _naming(self, pick: Pick, count: int, limit: int | None) -> Select[Any]:
        keys = self._keys.keys_named(pick.spec, count)
        return self.locking.named(pick.spec, keys, *pick.state, *pick.where, waits=False).limit(limit)

    def load(
        self,
        session: Session,
        spec: QueueSpec,
        identities: Sequence[Identity],
        options: Sequence[ExecutableOption] = (),
        *,
        latest: bool = False,
        unreadable: list[Unreadable] | None = None,
    ) -> list[Any]:
        """Load the instances of ``identities``, in that order.  ``latest``: the rows were only locked, not written.

        Rows that cannot be read are added to ``unreadable``, if it is given, and do not keep the others from being
        loaded.
        """
        read = partial(self._read, session, spec, options, latest=latest)
        found: dict[Identity, Any] = {}
        for keys in self._keys.batches(spec, identities):
            try:
                found.update(read(keys))
            except Exception as error:
                if unreadable is None or not self.errors.is_of_row(error):
                    raise
                forget_unfinished(session, spec, keys, error)
                found.update(self._read_each(session, keys, read, unreadable))
        broken = {each.identity for each in unreadable or ()}
        return in_order(spec, found, [key for key in identities if key not in broken] if broken else identities)

    def _read(
        self,
        session: Session,
        spec: QueueSpec,
        options: Sequence[ExecutableOption],
        keys: Sequence[Identity],
        *,
        latest: bool,
    ) -> dict[Identity, Any]:
        count, last = self._keys.named_for(spec, len(keys)), latest and not options
        statement = spec.made.get((self, "load", count, last), partial(self.locking.loading, spec, count, latest=last))
        rows = session.scalars(
            statement.options(*options) if options else statement,
            self._keys.key_names(spec, keys),
            execution_options={"populate_existing": True},
            bind_arguments=spec.bind_arguments,
        )
        return {spec.identity_of(task): task for task in rows.unique()}

    def _read_each(
        self,
        session: Session,
        keys: Sequence[Identity],
        read: Callable[[Sequence[Identity]], Mapping[Identity, Any]],
        unreadable: list[Unreadable],
    ) -> dict[Identity, Any]:
        """Read rows one by one, and add those that cannot be read to ``unreadable``."""
        found: dict[Identity, Any] = {}
        for key in keys:
            before = set(session.identity_map.all_states())
            try:
                found.update(read([key]))
            except Exception as error:
                if not self.errors.is_of_row(error):
                    raise
                for state in session.identity_map.all_states():
                    if state not in before and (instance := state.obj()) is not None:
                        session.expunge(instance)
                clear_frames(error)
                unreadable.append(Unreadable(key, error))
        return found

    def values(
        self, session: Session, spec: QueueSpec, where: Sequence[Where], columns: Sequence[ColumnElement[Any]]
    ) -> list[Any] | None:
        """Return the values of these columns of the row that ``where`` selects by primary key, or ``None`` if there is
        no such row.

        An error stands for a value that cannot be read.
        """
        named = select(*columns).select_from(spec.mapper.persist_selectable).where(*where)
        try:
            row = self.execute(session, spec, self._keys.by_key(spec, named)).one_or_none()
        except Exception as error:
            if not self.errors.is_of_row(error):
                raise
            clear_frames(error)
            if len(columns) == 1:
                return [error]
        else:
            return None if row is None else list(row)
        each = [self.values(session, spec, where, [column]) for column in columns]
        return None if None in each else [value for some in each for value in some or ()]

    def delete(self, session: Session, spec: QueueSpec, identities: Sequence[Identity]) -> None:
        """Delete the rows with these primary keys."""
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
        """Execute ``statement``, which selects the rows ``identities``; return those that it changed.

        Unless it ``waits``, its condition comes from :meth:`.Locking.passing_over`.  With ``parameters``, the statement
        is cached by its caller, and derived statements are cached as well.
        """
        if waits and len(identities) == 1 and self.locking.counts:
            named = again(spec, parameters, (self, statement), lambda: self._keys.by_key(spec, statement))
            return set(identities) if self.count(session, spec, named, parameters) else set()
        if not self.locking.returns(spec):
            return self._change_locked(session, spec, statement, identities, parameters, waits=waits)
        if not waits and not self.locking.passes_over:
            free = self._free(session, spec, statement, parameters)
            if not free:
                return set()
            if len(free) < len(identities):
                narrowed = statement.where(self._keys.key_in(spec, free))
                return set(self.keys(session, spec, self._returning(spec, narrowed), parameters))
        returning = again(spec, parameters, (self, statement, "returning"), lambda: self._returning(spec, statement))
        return set(self.keys(session, spec, returning, parameters))

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
        """Do the work of :meth:`change` without RETURNING: lock the matching rows first to learn which will be
        changed."""
        named = again(spec, parameters, (self, statement), lambda: self._keys.by_key(spec, statement))
        criterion: Any = statement.whereclause
        make = partial(self.locking.named, spec, criterion, waits=waits)
        ours = again(spec, parameters, (self, statement, waits), make)
        changed = set(self.keys(session, spec, ours, parameters))
        if changed and len(changed) < len(identities) and not waits:
            named = named.where(self._keys.key_in(spec, list(changed)))
        if changed:
            self.execute(session, spec, named, parameters)
        return changed

    def _returning(self, spec: QueueSpec, statement: Update | Delete) -> Any:
        return self._keys.by_key(spec, statement).returning(*spec.primary_key)

    def _free(
        self, session: Session, spec: QueueSpec, statement: Update | Delete, parameters: Parameters | None
    ) -> list[Identity]:
        """Lock the rows of ``statement`` that are not locked; return their primary keys."""
        criterion: Any = statement.whereclause
        make = partial(self.locking.picking_named, spec, criterion, *spec.primary_key)
        locking = again(spec, parameters, (self, statement, "free"), make)
        return self.keys(session, spec, locking, parameters)

    def sweep(self, session: Session, spec: QueueSpec, statement: Update | Delete) -> int:
        """Execute ``statement``, which selects any number of rows; return how many it changed."""
        if not self.locking.sweeps_by_key:
            return self.count(session, spec, statement)
        matching = select(*spec.primary_key).where(statement.whereclause)  # type: ignore[arg-type]
        found = self._keys.batches(spec, self.keys(session, spec, matching))
        swept = (statement.where(self._keys.key_in(spec, some)) for some in found)
        return sum(self.count(session, spec, self._keys.by_key(spec, each)) for each in swept)

    def count(
        self, session: Session, spec: QueueSpec, statement: Update | Delete, parameters: Parameters | None = None
    ) -> int:
        """Execute ``statement``; return how many rows it changed.

        Raises :class:`.UnsupportedDialectError` if the server does not report it.
        """
        changed = self.execute(session, spec, statement, parameters).rowcount
        if changed < 0:
            raise UnsupportedDialectError(
                "the server does not report how many rows a statement has changed, as sessions of SQL Server with"
                " NOCOUNT do not: SET NOCOUNT OFF on each new connection. Roll back.",
                dialect=session.get_bind(**spec.bind_arguments).dialect.name,
                needed="NOCOUNT OFF",
            )
        return changed

    def exists(self, session: Session, spec: QueueSpec, criterion: Criterion) -> bool:
        """Return whether a row satisfies ``criterion``, which selects by primary key or its first column."""
        found = self._keys.by_key(spec, select(*spec.primary_key).where(criterion))
        return bool(self.execute(session, spec, found).all())

    def keys(
        self, session: Session, spec: QueueSpec, statement: Any, parameters: Parameters | None = None
    ) -> list[Identity]:
        """Execute ``statement``, which returns primary keys and possibly other columns after them; return the keys."""
        width = len(spec.primary_key)
        return [tuple(row[:width]) for row in self.execute(session, spec, statement, parameters).all()]

    def execute(self, session: Session, spec: QueueSpec, statement: Any, parameters: Any = None) -> CursorResult[Any]:
        """Execute ``statement`` on the engine to which the session binds the queue's table."""
        result = session.execute(statement, parameters, bind_arguments=spec.bind_arguments)
        return cast("CursorResult[Any]", result)


def forget_unfinished(session: Session, spec: QueueSpec, keys: Sequence[Identity], error: Exception) -> None:
    """Remove from the session the instances that ``error`` has left unfinished.

    A session returns an instance that it has without another call of the events that have raised the error. Only the
    failed call refers to them, and the session itself does so weakly.
    """
    clear_frames(error)
    if any(identity_key(spec.entity, key) in session.identity_map for key in keys):
        gc.collect()


def again(spec: QueueSpec, parameters: Parameters | None, key: Hashable, make: Callable[[], R]) -> R:
    """Return the statement that ``make`` builds, cached if it has ``parameters`` and can therefore be reused."""
    made: R = make() if parameters is None else spec.made.get(key, make)
    return made


def in_order(spec: QueueSpec, found: Mapping[R, Any], wanted: Sequence[R]) -> list[Any]:
    """Return the values of ``found`` in the order of ``wanted``; raise :class:`.ArgumentError` if one is missing."""
    hidden = [each for each in wanted if each not in found]
    if hidden:
        raise ArgumentError(
            f"{spec.entity.__name__} {hidden[0]} is claimed but cannot be loaded: loader options or criteria of the"
            " session hide it, or it is newer than this transaction's snapshot. Roll back."
        )
    return [found[each] for each in wanted]
