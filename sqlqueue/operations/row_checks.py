"""Checks the arguments of ``enqueue``: its options, and the values of each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy import Column
from sqlalchemy.orm import InstrumentedAttribute

from .._support.exc import ArgumentError
from ..lifecycle.kind import kinds_of, other_keys
from ..model.columns import check_status, check_values, is_given
from ..queue.spec import QueueSpec
from ..queue.status import Status
from ..sql.clock import aware
from .row_values import Row

OnConflict = Literal["raise", "ignore", "replace", "rerun"]


class EnqueueOptions(NamedTuple):
    """The keyword arguments of one call of ``enqueue``."""

    on_conflict: OnConflict
    version: InstrumentedAttribute[Any] | None
    delay: timedelta | None
    copy: bool

    def version_in(self, spec: QueueSpec) -> Column[Any] | None:
        """Return the version column; raise :class:`.ArgumentError` if it is not in the queue's table."""
        if self.version is None:
            return None
        of_queue = issubclass(spec.entity, getattr(self.version, "class_", type(None)))
        column = spec.mapper.columns.get(self.version.key) if of_queue else None
        if column is None or column.table is not spec.table or column in spec.columns.values():
            raise ArgumentError(
                f"version={self.version}: give a column of {spec.table.name}, such as {spec.entity.__name__}.id"
            )
        return column


def dictionaries(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return copies of ``rows``; raise :class:`.ArgumentError` if they are not dictionaries."""
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise ArgumentError(f"rows={rows!r}: give an iterable of dictionaries")
    found: list[Row] = []
    for number, row in enumerate(rows):
        if type(row) is not dict and not isinstance(row, Mapping):  # the first check is faster
            raise ArgumentError(f"row {number}: {row!r} is not a dictionary")
        found.append(dict(row))
    return found


def check_rows(spec: QueueSpec, rows: list[Row], options: EnqueueOptions) -> None:
    """Reject values that cannot be stored, and set the status of rows that have a time."""
    status, moment = spec.attributes["status"], spec.attributes["available_at"]
    version = options.version.key if options.version_in(spec) is not None and options.version is not None else None
    if options.on_conflict != "raise" and len(spec.mapper.tables) > 1:
        name = spec.entity.__name__
        raise ArgumentError(f"on_conflict={options.on_conflict!r} needs one table; the rows of {name} are in several")
    if options.copy and (options.on_conflict != "raise" or options.delay is not None):
        raise ArgumentError(f"copy=True cannot be combined with on_conflict={options.on_conflict!r} or a delay")
    for number, row in enumerate(rows):
        check_attributes(spec, number, row)
        if options.on_conflict != "raise":
            _check_key(spec, number, row, options.on_conflict)
        if version is not None and row.get(version) is None:
            raise ArgumentError(f"row {number}: {version} is missing: it decides whether the row is newer")
        if options.delay is not None:
            check_delay(spec, number, row)
        when = row.get(moment)
        if is_given(when):
            if isinstance(when, datetime):
                aware(when)
            row.setdefault(status, Status.SCHEDULED.value)
        elif when is not None:  # the column's own default
            del row[moment]


def check_attributes(spec: QueueSpec, number: int, row: Row) -> None:
    """Reject attributes that the model does not have and values that cannot be stored; turn schedules into text."""
    if not spec.column_names.keys() >= row.keys():
        unknown = ", ".join(sorted(map(str, row.keys() - spec.column_names.keys())))
        raise ArgumentError(f"row {number}: {spec.entity.__name__} has no attribute {unknown}")
    for kind in kinds_of(spec):
        kind.normalize(spec, row)
    check_values(spec, row)
    check_status(spec, row)


def check_delay(spec: QueueSpec, number: int, row: Row) -> None:
    """Raise :class:`.ArgumentError` if the row sets what ``delay`` sets: its time or its status."""
    status, moment = spec.attributes["status"], spec.attributes["available_at"]
    if row.keys() & {status, moment}:
        raise ArgumentError(f"row {number}: delay= sets the time: leave out {moment} and {status}")


def _check_key(spec: QueueSpec, number: int, row: Row, on_conflict: str) -> None:
    key = {spec.mapper.get_property_by_column(column).key for column in spec.primary_key}
    if key.issubset(row) or other_keys(spec):
        return
    needed = ", ".join(sorted(key))
    raise ArgumentError(f"row {number}: on_conflict={on_conflict!r} needs the primary key: give {needed}")
