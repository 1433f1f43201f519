"""Rows that conflict with existing ones: ``on_conflict``, and :class:`.DuplicateTaskError`, which names the key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, TypeAlias

from sqlalchemy import (
    Column,
    ColumnElement,
    Float,
    Insert,
    Integer,
    UniqueConstraint,
    and_,
    case,
    exists,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .._support.errors import ArgumentError, DuplicateTaskError
from .._support.texts import key_text, logger_of
from ..dialects.base import Adapter
from ..dialects.statements import Replacement
from ..lifecycle.transitions import guarded, is_newer, replace_assignments, unique_by
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql import UniqueBy, utcnow, write
from ..transaction import Access, ledger_of, open_

logger = logger_of("sqlqueue")
Row = dict[str, Any]
"""The values of a row to insert, by attribute or column."""

# -- translates unique key violations into :class:`.DuplicateTaskError`, which names the key --------------------------

_NamedKey: TypeAlias = tuple[tuple[str, Any], ...]
"""Attribute names and their values."""
_SHOWN = 3
_ADVICE = "choose on_conflict='ignore', 'replace' or 'rerun'"


@contextmanager
def translating(
    adapter: Adapter, spec: QueueSpec, rows: Sequence[Mapping[str, Any]] | None = None, *, handled: bool = False
) -> Iterator[None]:
    """Translate a unique key violation in the block into :class:`.DuplicateTaskError`.

    ``rows`` are the rows being inserted, keyed by attribute name.  No engine's error code says which key is violated,
    so the error lists the keys of these rows.  Without ``rows``, the violation comes from reactivating a task whose
    ``unique_key`` another task has.  With ``handled``, existing rows with these keys are no violation.
    """
    try:
        yield
    except DBAPIError as error:
        if not adapter.connections.is_duplicate(error):
            raise
        raise _duplicate(spec, rows, handled=handled) from error


def existing(spec: QueueSpec, keys: Sequence[Mapping[str, Any]]) -> DuplicateTaskError:
    """Return the error for instances with these primary keys, by attribute name, that are rows already."""
    name, shown = spec.entity.__name__, [_shown(tuple(key.items())) for key in keys]
    advice = "to run it again, use session.rerun(), or choose on_conflict='replace' or 'rerun'"
    return DuplicateTaskError(f"{name} with {shown[0]} is stored already: {advice}", model=spec.entity, keys=keys)


def hidden(spec: QueueSpec, row: Mapping[str, Any]) -> DuplicateTaskError:
    """Return the error for a row, keyed by column name, whose key a task has that the session's criteria exclude."""
    given = {key: row[name] for key, name in spec.column_names.items() if name in row}
    keys = list(_keys(spec, given))
    text = f"{_text(spec, keys, one=True)}, but the session's criteria exclude it: choose another key"
    return DuplicateTaskError(text, model=spec.entity, keys=[dict(key) for key in keys])


def insert_unless_duplicate(session: Session, adapter: Adapter, spec: QueueSpec, statement: Insert) -> bool:
    """Execute an INSERT of one row, after which the transaction can continue.  Returns false if its key exists."""
    try:
        with adapter.connections.tentative(session):
            adapter.rows.execute(session, spec, statement)
    except DBAPIError as error:
        if not adapter.connections.is_duplicate(error):
            raise
        return False
    return True


# -- leaves tasks as they are whose key another one has by now ---------------------------------------------------------


def with_free_keys(
    session: Session, spec: QueueSpec, criterion: Criterion, step: Callable[[Criterion], int]
) -> tuple[int, list[Identity]]:
    """Call ``step``, which runs one statement, for the rows that satisfy ``criterion``; return how many it changed, and
    the primary keys of those that it had to leave.

    If there are such rows, those whose ``unique_key`` is seen to be taken are left out.  If two of the others have the
    same key, or another transaction takes one meanwhile, each half is tried by itself.
    """
    if not spec.has_unique_keys:
        return step(criterion), []
    adapter = open_(session, spec, Access.CHANGE)
    try:
        with adapter.connections.tentative(session):
            return step(criterion), []
    except DuplicateTaskError:
        every = select(*spec.primary_key).where(criterion).order_by(*spec.primary_key)
        parts = [list(some) for some in adapter.rows.batches(spec, adapter.rows.keys(session, spec, every))]
    changed, taken = 0, list[Identity]()
    while parts:
        part = parts.pop()
        chosen = and_(criterion, adapter.rows.key_in(spec, part))
        free = set(adapter.rows.keys(session, spec, select(*spec.primary_key).where(chosen, ~is_taken(spec))))
        taken += [key for key in part if key not in free]
        keys = [key for key in part if key in free]
        if not keys:
            continue
        try:
            with adapter.connections.tentative(session):
                changed += step(and_(criterion, adapter.rows.key_in(spec, keys)))
        except DuplicateTaskError:
            half = len(keys) // 2
            parts += [keys[half:], keys[:half]] if half else []
            taken += [] if half else keys
    return changed, taken


def is_taken(spec: QueueSpec) -> Criterion:
    """Return whether another task has the ``unique_key`` that the row had before it became final."""
    other = spec.table.alias("other")
    same = other.c[spec["unique_key"].name] == spec["former_key"]
    return exists(select(literal_column("1")).where(same)).correlate(spec.table)


def warn_of_taken(spec: QueueSpec, taken: Sequence[Identity]) -> None:
    """Log which tasks, by primary key, were left because of their ``unique_key``."""
    name, number = spec.name, len(taken)
    shown = ", ".join(key_text(key) for key in taken[:_SHOWN])
    more = f" and {number - _SHOWN} more" if number > _SHOWN else ""
    text = "left %s %s%s unchanged: another task has the same unique_key"
    logger.warning(text, name, shown, more, extra={"queue": name, "taken": number})


def _duplicate(spec: QueueSpec, rows: Sequence[Mapping[str, Any]] | None, *, handled: bool) -> DuplicateTaskError:
    keys = [key for row in rows or () for key in _keys(spec, row)]
    if handled or rows is None:
        text = _beyond(spec, keys, inserts=handled)
    else:
        text = _text(spec, keys, one=len(rows) == 1)
        advice = f"roll back, or {_ADVICE}" if keys else "roll back, and give it other values"
        if keys and _has_others(spec):
            text += f", or one of these rows violates another unique constraint of {spec.table.fullname}"
            advice = f"roll back; then give other values, or, if it is the key that exists, {_ADVICE}"
        text += f": {advice}"
    return DuplicateTaskError(text, model=spec.entity, keys=[dict(key) for key in keys])


def _beyond(spec: QueueSpec, keys: Sequence[_NamedKey], *, inserts: bool) -> str:
    """Return the text about a violation that is not of the keys by which rows were found."""
    name, has_key = spec.entity.__name__, "unique_key" in spec.columns
    these = f"one of these tasks ({_listed(keys)})" if keys else "one of these tasks"
    parts = [f"another unfinished {name} has the unique_key of {these}"] if has_key else []
    if inserts and (_has_others(spec) or not has_key):
        whose = "it" if has_key else these
        parts.append(f"{whose} violates another unique constraint of {spec.table.fullname}, whatever on_conflict says")
    return f"{', or '.join(parts)}: roll back"


def _keys(spec: QueueSpec, row: Mapping[str, Any]) -> Iterable[_NamedKey]:
    """Yield the keys by which ``row`` may conflict with another."""
    if all(row.get(name) is not None for name in spec.key_names):
        yield tuple((name, row[name]) for name in spec.key_names)
    unique = spec.attributes.get("unique_key")
    if unique is not None and row.get(unique) is not None:
        yield ((unique, row[unique]),)


def _text(spec: QueueSpec, keys: Sequence[_NamedKey], *, one: bool) -> str:
    name, unique = spec.entity.__name__, spec.attributes.get("unique_key")
    if not keys:
        return f"a row of {spec.table.fullname} has the same values as this {name} in a unique key"
    if one:
        parts = [f"{'an unfinished ' * (key[0][0] == unique)}{name} with {_shown(key)}" for key in keys]
        return f"{' or '.join(parts)} exists"
    twice = [key for key, number in Counter(keys).items() if number > 1]
    if twice:
        return f"two of these rows of {name} have {_shown(twice[0])}"
    return f"{name} with one of these keys exists: {_listed(keys)}"


def _listed(keys: Sequence[_NamedKey]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"{', '.join(map(_shown, keys[:_SHOWN]))}{more}"


def _shown(key: _NamedKey) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in key)


def _has_others(spec: QueueSpec) -> bool:
    known = [set(spec.primary_key), {spec.columns.get("unique_key")}]
    constraints = [set(each.columns) for each in spec.table.constraints if isinstance(each, UniqueConstraint)]
    indexes = [set(index.columns) for index in spec.table.indexes if index.unique]
    return any(each not in known for each in (*constraints, *indexes))


# -- inserts rows that may conflict with an existing row --------------------------------------------------------------

_Key: TypeAlias = tuple[Any, ...]
"""The unique constraint, then the values of its columns."""


@dataclass(frozen=True, eq=False)
class Conflicts:
    """Inserts rows, and handles existing rows with the same key as ``on_conflict`` says."""

    adapter: Adapter
    session: Session
    spec: QueueSpec
    on_conflict: str
    version: Column[Any] | None
    scope: Sequence[Criterion]
    """The rows that may be changed."""
    postponing: tuple[timedelta, timedelta] | None = None
    """The delay of tasks that are replaced, and the longest one after their first insert."""

    def enqueue(self, rows: Sequence[Row], fixed: Row) -> None:
        """Insert ``rows``, keyed by attribute name, each with the expressions of ``fixed``."""
        common = column_values(self.spec, fixed)
        if self.spec.mapper.polymorphic_on is not None:
            common |= discriminator(self.spec)
        values = [column_values(self.spec, row) for row in rows]
        if self.on_conflict == "rerun":
            self._refuse_own(values)
        for (given, ways), group in groupby(values, key=lambda row: (sorted(row), unique_by(self.spec, row))):
            self._group(list(group), [*given, *common], ways, common)

    def update(self, rows: Sequence[Row], fixed: Row) -> None:
        """Handle rows that exist, by primary key, of which ``rows`` contain the changes.

        Raises :class:`.ArgumentError` if there is no such row.
        """
        spec, common = self.spec, column_values(self.spec, fixed)
        values = [column_values(spec, row) for row in rows]
        if self.on_conflict == "rerun":
            self._refuse_own(values)
        for row in values:
            by, key = unique_by(spec, row)[0], tuple(row[column.name] for column in spec.primary_key)
            replace = self._replacement([*row, *common], by)
            if not (
                self.adapter.rows.exists(self.session, spec, by.is_row(row))
                if replace is None
                else self._update({**row, **common}, [key], by.is_row(row), replace)
            ):
                raise ArgumentError(
                    f"{spec.entity.__name__} {key_text(key)} has no row any more: enqueue a new instance"
                )

    def _refuse_own(self, rows: Sequence[Row]) -> None:
        """Reject rows that this transaction has claimed by a lock only.

        Such a claim leaves no mark in its row, so its completion could not detect that another run was requested.
        """
        spec, adapter, mine = self.spec, self.adapter, ledger_of(self.session).locked(self.spec.table)
        meets = [by.is_row(row) for row in rows for by in unique_by(spec, row)] if mine else []
        for some in adapter.rows.batches(spec, meets):
            same = or_(*adapter.rows.padded(spec, some))
            if adapter.rows.exists(self.session, spec, and_(adapter.rows.key_in(spec, mine), same)):
                raise ArgumentError(
                    f"this transaction holds one of these tasks of {spec.entity.__name__} with lease=None: complete"
                    " it before enqueueing it again, or claim it with a lease"
                )

    def _group(self, rows: list[Row], names: list[str], ways: Sequence[UniqueBy], common: Row) -> None:
        spec, adapter = self.spec, self.adapter
        if not ways:  # a NULL key conflicts with no row
            adapter.rows.execute(self.session, spec, insert(spec.table).values(common), rows)
            return
        # with two keys, an upsert on one can fail on the other if both are inserted concurrently
        # no upsert has a condition on every engine
        can_upsert = len(ways) == 1 and (self.on_conflict == "ignore" or not self.scope)
        statement = self._upsert(names, ways[0]) if can_upsert else None
        if statement is not None:
            if adapter.rows.key_before_row and ways[0].columns != spec.primary_key:
                rows = self._not_there(rows, ways[0], self._replacement(names, ways[0]), common)
            if rows:
                adapter.rows.execute(self.session, spec, statement.values(common), rows)
            return
        replacements = [self._replacement(names, by) for by in ways]
        for row in self._insert_new(rows, ways, common) if len(rows) > 1 else rows:
            self._update_or_insert({**row, **common}, list(zip(ways, replacements, strict=True)))

    def _upsert(self, names: Sequence[str], by: UniqueBy) -> Any:
        """Return the statement that inserts columns ``names`` or handles the conflict; ``None`` if there is none."""
        spec, inserts = self.spec, self.adapter.rows
        key = (inserts, by, tuple(names), self.on_conflict, self.version, self.postponing)
        return spec.made.get(key, lambda: inserts.upsert(spec, by, self._guarded(self._replacement(names, by))))

    def _insert_new(self, rows: Sequence[Row], ways: Sequence[UniqueBy], common: Row) -> list[Row]:
        """Insert in bulk the ``rows`` without a visible conflict; return the others, which remain to be handled.

        If the insert fails because of a conflict that was not visible, return all rows.
        """
        adapter, spec, seen = self.adapter, self.spec, self._there(rows, ways)
        new, rest = list[Row](), list[Row]()
        for row in rows:
            keys = {_key_of(row, by) for by in ways}
            (new if seen.isdisjoint(keys) else rest).append(row)
            seen |= keys
        try:
            with adapter.connections.tentative(self.session):
                if new:
                    adapter.rows.execute(self.session, spec, insert(spec.table).values(common), new)
        except DBAPIError as error:
            if not adapter.connections.is_duplicate(error):
                raise
            return list(rows)
        return rest

    def _there(self, rows: Sequence[Row], ways: Sequence[UniqueBy]) -> set[_Key]:
        """Return the keys of ``rows`` that exist in the table."""
        adapter, spec, found = self.adapter, self.spec, set[_Key]()
        for by in ways:
            for some in adapter.rows.batches(spec, [tuple(row[column.name] for column in by.columns) for row in rows]):
                if by.columns == spec.primary_key:
                    read = adapter.rows.by_key(spec, select(*by.columns).where(adapter.rows.key_in(spec, some)))
                else:
                    named = adapter.rows.one_of(spec, by.columns[0], [key for (key,) in some])
                    read = select(*by.columns).where(named)
                found |= {(by, *row) for row in adapter.rows.execute(self.session, spec, read)}
        return found

    def _replacement(self, names: Sequence[str], by: UniqueBy) -> Replacement | None:
        if self.on_conflict == "ignore":
            return None
        keys = {column.name for column in (*by.columns, *self.spec.primary_key)}
        given = [name for name in names if name not in keys]
        rerun = self.on_conflict == "rerun"
        changed = _next_version(self.spec) if self.version is not self.spec.mapper.version_id_col else {}
        changed |= self._postponed()
        return lambda proposed: replace_assignments(
            self.spec, given, lambda name: changed.get(name, proposed(name)), rerun=rerun
        )

    def _postponed(self) -> dict[str, ColumnElement[Any]]:
        """Return the column with the time of a task that is replaced: after the delay, but not too late."""
        if self.postponing is None:
            return {}
        spec = self.spec
        delay, most = (literal(each.total_seconds(), Float(53)) for each in self.postponing)
        passed = self.adapter.types.microseconds(spec["created_at"], utcnow()) * literal_column("0.000001", Float(53))
        return {spec["available_at"].name: utcnow(case((most - passed < delay, most - passed), else_=delay))}

    def _guarded(self, replace: Replacement | None) -> Replacement | None:
        version = self.version
        if replace is None or version is None:
            return replace
        return lambda proposed: guarded(replace(proposed), version, proposed)

    def _update_or_insert(self, row: Row, ways: Sequence[tuple[UniqueBy, Replacement | None]]) -> None:
        """Update or insert without an upsert statement.  A process that loses the race to insert retries, and updates.

        The row is found without a lock and then locked by its primary key, the order that all operations use:
        completion locks the row by its primary key first, and then removes its unique key.
        """
        adapter, spec = self.adapter, self.spec
        lost: DBAPIError | None = None
        while True:
            found = False
            for by, replace in ways:
                keys = self._find(by, row, latest=lost is not None)
                if keys and (replace is None or self._update(row, keys, by.is_row(row), replace)):
                    return
                found = found or bool(keys)
            if lost is not None and not found:
                raise lost  # the conflict is with another unique key
            try:
                with adapter.connections.tentative(self.session):
                    adapter.rows.execute(self.session, spec, insert(spec.table).values(row))
            except DBAPIError as error:
                if not adapter.connections.is_duplicate(error):
                    raise
                lost = error
            else:
                return

    def _not_there(self, rows: Sequence[Row], by: UniqueBy, replace: Replacement | None, common: Row) -> list[Row]:
        """Return the ``rows`` without a visible conflict; update the existing rows of the others by primary key."""
        (column,) = by.columns
        there: dict[Any, list[Identity]] = {}
        for some in self.adapter.rows.batches(self.spec, [row[column.name] for row in rows]):
            named = self.adapter.rows.one_of(self.spec, column, some)
            found = select(column, *self.spec.primary_key).where(named)
            there.update(
                (row[0], [tuple(row[1:])]) for row in self.adapter.rows.execute(self.session, self.spec, found)
            )
        rest: list[Row] = []
        for row in rows:
            mine = by.is_row(row)
            keys = there.get(row[column.name], [])
            if not keys or not (replace is None or self._update({**row, **common}, keys, mine, replace)):
                rest.append(row)
        return rest

    def _find(self, by: UniqueBy, row: Row, *, latest: bool = False) -> list[Identity]:
        """Return the primary key of the existing row that ``row`` conflicts with.

        ``latest``: read the latest committed version instead of the transaction's snapshot.
        """
        spec, adapter = self.spec, self.adapter
        found = select(*spec.primary_key).where(by.is_row(row))
        if latest:
            found = found.with_for_update()
        return adapter.rows.keys(
            self.session, spec, adapter.rows.by_key(spec, found) if by.columns == spec.primary_key else found
        )

    def _update(self, row: Row, keys: Sequence[Identity], mine: Criterion, replace: Replacement) -> bool:
        """Update the row with one of these keys that is still ``mine``, unless it is newer; return whether there is
        one.
        """
        adapter, spec, proposed = self.adapter, self.spec, _literals(self.spec, row)
        same = and_(adapter.rows.key_in(spec, keys), mine)
        newer = None if self.version is None else is_newer(self.version, proposed)
        # in the criterion, since Oracle has no CASE of a LOB and a parameter
        chosen = and_(same, *self.scope, *([] if newer is None else [newer]))
        if adapter.rows.count(self.session, spec, adapter.rows.by_key(spec, write(spec, chosen, replace(proposed)))):
            return True
        if newer is not None and self._is_late(and_(same, *self.scope), newer):
            return True
        if self.scope and adapter.rows.exists(self.session, spec, same):
            raise hidden(spec, row)
        return False

    def _is_late(self, same: Criterion, newer: Criterion) -> bool:
        """Return whether there is such a row and ``newer`` does not hold, in its latest version, which is locked.

        SQL Server and SQLite have no FOR UPDATE, and read the committed version, or that of this transaction.
        """
        told = select(case((newer, literal_column("1")), else_=literal_column("0"))).where(same).with_for_update()
        return (
            self.adapter.rows.execute(self.session, self.spec, self.adapter.rows.by_key(self.spec, told)).scalar() == 0
        )


def _key_of(row: Row, by: UniqueBy) -> _Key:
    return (by, *(row[column.name] for column in by.columns))


def _next_version(spec: QueueSpec) -> dict[str, ColumnElement[Any]]:
    """Return the ORM's integer version column with the expression for its next value; empty if there is none.

    A version of another type does not depend on its predecessor, so the proposed value is used.
    """
    column = spec.mapper.version_id_col
    if column is None or not callable(spec.mapper.version_id_generator) or not isinstance(column.type, Integer):
        return {}
    return {column.name: spec.table.c[column.name] + literal_column("1")}


def _literals(spec: QueueSpec, row: Row) -> Callable[[str], ColumnElement[Any]]:
    def proposed(name: str) -> ColumnElement[Any]:
        value = row[name]
        if isinstance(value, ColumnElement):
            return value
        return literal(value, spec.table.c[name].type) if value is not None else null()

    return proposed


def column_values(spec: QueueSpec, row: Row) -> Row:
    """Return the values of ``row`` keyed by column name instead of attribute name."""
    return {spec.column_names[key]: value for key, value in row.items()}


def discriminator(spec: QueueSpec) -> Row:
    """Return the discriminator's value, for classes that share a table; otherwise empty."""
    if spec.mapper.polymorphic_on is None:
        return {}
    return {spec.mapper.polymorphic_on.name: literal(spec.mapper.polymorphic_identity)}
