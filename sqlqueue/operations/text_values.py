"""Parsers of user input: durations, keys and column values."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement

from .._support import checks
from .._support.exc import ArgumentError
from ..queue.spec import Identity, QueueSpec

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
