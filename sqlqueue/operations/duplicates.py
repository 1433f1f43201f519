"""Translates unique key violations into :class:`.DuplicateTaskError`, which names the key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Insert, UniqueConstraint
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .._support.exc import DuplicateTaskError
from ..dialects.base import Adapter
from ..queue.spec import QueueSpec

_Key: TypeAlias = tuple[tuple[str, Any], ...]
"""Attribute names and their values."""
_SHOWN = 3
_ADVICE = "choose on_conflict='ignore', 'replace' or 'rerun'"


class translating:
    """Context manager that translates a unique key violation into :class:`.DuplicateTaskError`.

    ``rows`` are the rows being inserted, keyed by attribute name.  No engine's error code says which key is violated,
    so the error lists the keys of these rows.  Without ``rows``, the violation comes from reactivating a task whose
    ``unique_key`` another task has.  With ``handled``, existing rows with these keys are no violation.
    """

    def __init__(
        self,
        adapter: Adapter,
        spec: QueueSpec,
        rows: Sequence[Mapping[str, Any]] | None = None,
        *,
        handled: bool = False,
    ) -> None:
        self.adapter, self.spec, self.rows, self.handled = adapter, spec, rows, handled

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DBAPIError) and self.adapter.errors.is_duplicate(error):
            raise _duplicate(self.spec, self.rows, handled=self.handled) from error


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
        with adapter.transactions.tentative(session):
            adapter.rows.execute(session, spec, statement)
    except DBAPIError as error:
        if not adapter.errors.is_duplicate(error):
            raise
        return False
    return True


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


def _beyond(spec: QueueSpec, keys: Sequence[_Key], *, inserts: bool) -> str:
    """Return the text about a violation that is not of the keys by which rows were found."""
    name, has_key = spec.entity.__name__, "unique_key" in spec.columns
    these = f"one of these tasks ({_listed(keys)})" if keys else "one of these tasks"
    parts = [f"another unfinished {name} has the unique_key of {these}"] if has_key else []
    if inserts and (_has_others(spec) or not has_key):
        whose = "it" if has_key else these
        parts.append(f"{whose} violates another unique constraint of {spec.table.fullname}, whatever on_conflict says")
    return f"{', or '.join(parts)}: roll back"


def _keys(spec: QueueSpec, row: Mapping[str, Any]) -> Iterable[_Key]:
    """Yield the keys by which ``row`` may conflict with another."""
    primary = [spec.mapper.get_property_by_column(column).key for column in spec.primary_key]
    if all(row.get(name) is not None for name in primary):
        yield tuple((name, row[name]) for name in primary)
    unique = spec.attributes.get("unique_key")
    if unique is not None and row.get(unique) is not None:
        yield ((unique, row[unique]),)


def _text(spec: QueueSpec, keys: Sequence[_Key], *, one: bool) -> str:
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


def _listed(keys: Sequence[_Key]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"{', '.join(map(_shown, keys[:_SHOWN]))}{more}"


def _shown(key: _Key) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in key)


def _has_others(spec: QueueSpec) -> bool:
    known = [set(spec.primary_key), {spec.columns.get("unique_key")}]
    constraints = [set(each.columns) for each in spec.table.constraints if isinstance(each, UniqueConstraint)]
    indexes = [set(index.columns) for index in spec.table.indexes if index.unique]
    return any(each not in known for each in (*constraints, *indexes))
