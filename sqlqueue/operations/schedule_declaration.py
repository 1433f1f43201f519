"""A validated declaration of recurring tasks: the key that identifies them, and their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, and_
from sqlalchemy.sql.elements import SQLCoreOperations

from .._support.exc import ArgumentError
from ..kinds import RecurringMixin
from ..lifecycle.kind import kinds_of, other_keys
from ..model.mixins import QueueMixin
from ..queue.schedules import is_same
from ..queue.spec import Criterion, Identity, QueueSpec
from .conflicts import column_values
from .row_checks import check_attributes
from .row_values import values_of

_WRITTEN_BY_THE_QUEUE = (
    *("status", "attempt", "max_attempts", "claimed_by", "claimed_at", "crashes", "finished_at", "error", "created_at"),
)
Values = dict[str, Any]
"""Values by column name."""


class Declaration(NamedTuple):
    """The declared tasks by key."""

    spec: QueueSpec
    key: tuple[Column[Any], ...]
    """The columns that identify the tasks: the primary key's, or ``unique_key``."""
    tasks: dict[Identity, Values]

    @classmethod
    def of(cls, spec: QueueSpec, tasks: Iterable[Mapping[str, Any] | RecurringMixin]) -> Declaration:
        """Validate ``tasks``; raise :class:`.ArgumentError` for invalid ones."""
        if len(spec.mapper.tables) > 1:
            raise ArgumentError(f"the columns of {spec.entity.__name__} are in several tables: it cannot be declared")
        if isinstance(tasks, (Mapping, QueueMixin)) or not isinstance(tasks, Iterable):
            raise ArgumentError(f"tasks={tasks!r}: give an iterable of dictionaries or instances")
        rows = [_values(spec, number, task) for number, task in enumerate(tasks)]
        key = _key_of(spec, rows)
        keyed: dict[Identity, Values] = {}
        for row in rows:
            identity = tuple(row[column.name] for column in key)
            if identity in keyed:
                raise ArgumentError(f"{spec.entity.__name__} {plain_key(identity)!r} is declared twice")
            keyed[identity] = row
        return cls(spec, key, keyed)

    @property
    def by_unique_key(self) -> bool:
        """Whether ``unique_key`` identifies the tasks, instead of the primary key."""
        return self.key != self.spec.primary_key

    def is_row(self, identity: Identity) -> Criterion:
        """Return the criterion of the row with this key."""
        return and_(*(column == value for column, value in zip(self.key, identity, strict=True)))

    def changes(self, identity: Identity, row: Mapping[Any, Any]) -> dict[Column[Any], Any]:
        """Return the declared values that differ from those of the existing ``row``.

        ``available_at`` is left out: it is declared for the first run only.
        """
        fixed = {*self.spec.primary_key, *self.key, self.spec["available_at"]}
        declared = {self.spec.table.c[name]: value for name, value in self.tasks[identity].items()}
        return {
            column: value
            for column, value in declared.items()
            if column not in fixed and not _is_same(self.spec, column, row[column], value)
        }


def plain_key(identity: Identity) -> object:
    """Return a key as callers give it: the value of a single column, or a tuple for several."""
    return identity[0] if len(identity) == 1 else identity


def _values(spec: QueueSpec, number: int, task: Mapping[str, Any] | RecurringMixin) -> Values:
    """Return the values that one task gives, in an instance or a dictionary; ``None`` counts as not given."""
    if isinstance(task, spec.entity):
        row = values_of(spec, task)
    elif isinstance(task, Mapping):
        row = {name: value for name, value in task.items() if value is not None}
    else:
        raise ArgumentError(f"row {number}: give a dictionary or a {spec.entity.__name__}, not {type(task).__name__}")
    check_attributes(spec, number, row)
    untold = (*_WRITTEN_BY_THE_QUEUE, *(role for kind in kinds_of(spec) for role in kind.untold))
    refused = sorted({spec.attributes[role] for role in untold} & row.keys())
    if refused:
        raise ArgumentError(f"row {number}: leave out {', '.join(refused)}: only the queue writes them")
    if spec.attributes["schedule"] not in row:
        raise ArgumentError(
            f"row {number}: {spec.attributes['schedule']} is missing: give an Every(...) or a Cron(...)"
        )
    if any(isinstance(value, SQLCoreOperations) for value in row.values()):
        raise ArgumentError(f"row {number}: give values, not SQL expressions: they are compared with those of the row")
    return column_values(spec, row)


def _key_of(spec: QueueSpec, rows: Sequence[Values]) -> tuple[Column[Any], ...]:
    """Return the columns of the first key that all rows give."""
    others = [way.columns for way in other_keys(spec)]
    ways = [spec.primary_key, *others]
    if not rows:
        return ways[-1]
    for way in ways:
        if all(column.name in row for row in rows for column in way):
            return way
    needed = " or ".join(", ".join(column.name for column in way) for way in ways)
    advice = "" if others else ", or derive the model from UniqueMixin and give unique_key"
    raise ArgumentError(
        f"declared tasks are identified by their keys: give {needed} for each {spec.entity.__name__}{advice}"
    )


def _is_same(spec: QueueSpec, column: Column[Any], stored: Any, declared: Any) -> bool:
    if column is spec["schedule"]:
        return stored is not None and is_same(stored, declared)
    if column is spec["drift"]:
        return bool(stored) == bool(declared)
    return bool(column.type.compare_values(stored, declared))
