"""Values that are given as text, and the criteria that they make: for the command line and the dashboard."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, ColumnElement, Unicode, cast, false, literal_column, or_, type_coerce
from sqlalchemy import Enum as EnumType

from .._support import checks
from .._support.errors import ArgumentError
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql import is_abandoned, is_in_error_group, state, utcnow
from .flows import member_of

# -- parsers of user input: durations, keys and column values ---------------------------------------------------------

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LARGEST = 2**63
"""Integers of databases are smaller than this."""


def age(text: str) -> timedelta:
    """Parse a duration such as ``90s``, ``15m``, ``2h``, ``7d`` or ``1h30m``.  Raises :class:`.ArgumentError` for other
    text."""
    if not re.fullmatch(r"(\d{1,5}[smhdw])+", text):
        raise ArgumentError(f"{text!r} is not a duration: write 90s, 15m, 2h, 7d or 1h30m")
    found = timedelta(**{_UNITS[unit]: int(number) for number, unit in re.findall(r"(\d+)(\w)", text)})
    if found > checks.LONGEST_DURATION:
        raise ArgumentError(f"{text!r} is longer than 100 years")
    return found


def moment(text: str) -> datetime:
    """Parse a time such as ``2027-01-31T08:30``, by default in UTC.  Raises :class:`.ArgumentError` for other text."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(f"{text!r} is not a time: write 2027-01-31T08:30") from error


def identity(spec: QueueSpec, text: str) -> Identity:
    """Parse a primary key, whose columns are separated by commas, as in a line of CSV."""
    columns = spec.primary_key
    parts = _parts(text) if len(columns) > 1 else [text]
    if len(parts) != len(columns):
        names = ",".join(column.name for column in columns)
        raise ArgumentError(f"{text!r} is not a key of {spec.entity.__name__}: give {names}")
    return tuple(value(column, part) for column, part in zip(columns, parts, strict=True))


def _parts(text: str) -> list[str]:
    try:
        return next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:  # e.g. an unquoted line break
        return []


def value(column: ColumnElement[Any], text: str) -> Any:
    """Parse ``text`` as a value of the type of ``column``; raises :class:`.ArgumentError` if it cannot
    be converted."""
    kind = _kind(column)
    reader = _READERS.get(kind, kind.__getitem__ if issubclass(kind, Enum) else None)
    if reader is None:
        raise ArgumentError(f"{column} has the type {column.type}, which cannot be given as text")
    try:
        return reader(text)
    except (ValueError, KeyError, ArithmeticError) as error:
        raise ArgumentError(f"{text!r} is not a value for {column}, which has the type {column.type}") from error


def written(found: Any) -> str:
    """Return the text of a value of a column that :func:`value` turns into the same value."""
    return str(found.name if isinstance(found, Enum) else found.isoformat() if isinstance(found, date) else found)


def _kind(column: ColumnElement[Any]) -> type[Any]:
    try:
        return column.type.python_type
    except NotImplementedError:
        return object


def _text(text: str) -> str:
    if not checks.is_storable(text):
        raise ValueError(text)
    return text


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is None else found.astimezone(UTC)


def _integer(text: str) -> int:
    number = int(text)
    if abs(number) >= _LARGEST:
        raise ValueError(text)
    return number


def _truth(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.lower()]


_READERS: dict[type[Any], Callable[[str], Any]] = {
    int: _integer,
    str: _text,
    float: float,
    bool: _truth,
    Decimal: Decimal,
    UUID: UUID,
    date: date.fromisoformat,
    datetime: _time,
}


# -- criteria parsed from user input: the filters of the command line and the dashboard -------------------------------


def criteria(spec: QueueSpec, *, equal: Mapping[str, str] | None = None, **given: Any) -> list[Criterion]:
    """Return the criteria of the given filters, all of which must hold: those of :data:`FILTERS`, and columns that are
    ``equal`` to values given as text.  ``None``, ``False`` and an empty list leave a filter out.

    Raises :class:`.ArgumentError` for a column that the model does not have, and for text that is not a value.
    """
    found = [FILTERS[name](spec, wanted) for name, wanted in given.items() if wanted not in (None, False, [])]
    columns = ((column(spec, name), text) for name, text in (equal or {}).items())
    return [*found, *(chosen == value(chosen, text) for chosen, text in columns)]


SEARCHED = ("topic", "task", "stage", "unique_key", "former_key", "limit_key", "message_key", "claimed_by", "error")
"""Columns of the queue that a search looks into."""


def containing(spec: QueueSpec, text: str, names: Sequence[str]) -> Criterion:
    """Return the criterion of the tasks with this text as their key, or in a column of the queue or one of ``names``,
    in upper or lower case.  Of other types than text and JSON, the values that the text stands for are found."""
    found = [exactly(spec, text)]
    for chosen in (*(spec[role] for role in SEARCHED if role in spec.columns), *(column(spec, each) for each in names)):
        if isinstance(chosen.type, JSON):
            # a concatenation, because not every engine can cast JSON to text; some escape characters beyond ASCII
            whole = cast(literal_column("''"), Unicode(1)).concat(type_coerce(chosen, Unicode()))
            forms = (text, *(json.dumps(text, ensure_ascii=each)[1:-1] for each in (True, False)))
            found += [_contains(whole, each) for each in dict.fromkeys(forms)]
        elif isinstance(chosen.type, EnumType) or _kind(chosen) is not str:
            with suppress(ArgumentError):
                found.append(chosen == value(chosen, text))
        else:
            found.append(_contains(type_coerce(chosen, Unicode()), text))
    return or_(*found)


def exactly(spec: QueueSpec, text: str) -> Criterion:
    """Return the criterion of the tasks with this text as their primary or unique key, which indexes find."""
    found = [spec["unique_key"] == text] if spec.has_unique_keys else []
    with suppress(ArgumentError):
        found.append(spec.key(identity(spec, text)))
    return or_(false(), *found)


def _contains(text: ColumnElement[str], part: str) -> Criterion:
    return text.icontains(part, autoescape=True)


def of_keys(spec: QueueSpec, texts: Sequence[str]) -> Criterion:
    """Return the criterion of the tasks with these primary keys.  Raises :class:`.ArgumentError` for other text."""
    keys = [identity(spec, each) for each in texts]
    if len(spec.primary_key) == 1 and len(keys) > 1:  # SQLite allows fewer than 1,000 conditions joined by OR
        return spec.primary_key[0].in_([key for (key,) in keys])
    return or_(*map(spec.key, keys))


def column(spec: QueueSpec, name: str) -> ColumnElement[Any]:
    """Return the model's column called ``name``.  Raises :class:`.ArgumentError` for unknown names."""
    columns = {prop.key: prop.columns[0] for prop in spec.mapper.column_attrs}
    if name not in columns:
        raise ArgumentError(f"{spec.entity.__name__} has no column {name}; its columns are {', '.join(columns)}")
    return columns[name]


def _optional(spec: QueueSpec, role: str, problem: str) -> ColumnElement[Any]:
    if role not in spec.columns:
        raise ArgumentError(f"{spec.entity.__name__} {problem}")
    return spec[role]


FILTERS: Mapping[str, Callable[[QueueSpec, Any], Criterion]] = {
    "status": lambda spec, states: spec["status"].in_([state(each) for each in states]),
    "topic": lambda spec, topic: _optional(spec, "topic", "has no topics") == topic,
    "function": lambda spec, name: _optional(spec, "task", "has no functions: derive it from JobMixin") == name,
    "ids": of_keys,
    "error": lambda spec, pattern: spec["error"].like(pattern),
    "error_group": is_in_error_group,
    "batch": lambda spec, key: member_of(spec.entity, key),
    "older_than": lambda spec, time: spec["created_at"] <= utcnow(-time),
    "newer_than": lambda spec, time: spec["created_at"] >= utcnow(-time),
    "since": lambda spec, moment: spec["created_at"] >= moment,
    "until": lambda spec, moment: spec["created_at"] <= moment,
    "abandoned": lambda spec, _: is_abandoned(spec),
}
"""The filters by name, each of which makes a criterion of its value."""
