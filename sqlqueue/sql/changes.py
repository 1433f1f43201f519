"""Statements that change or delete the rows of a queue, and the values that they are built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Column, ColumnElement, Delete, Update, and_, case, delete, literal_column, update

from ..queue.spec import Criterion, QueueSpec

Assignment: TypeAlias = tuple[Column[Any], Any]
LARGEST = 2**31 - 1
"""The largest number that an integer column holds on every engine."""


@dataclass(frozen=True, eq=False)
class UniqueBy:
    """A unique key on which an insert may conflict with an existing row."""

    columns: tuple[Column[Any], ...]
    predicate: Criterion | None = None
    """The predicate of its index, if that is partial."""

    def is_row(self, row: Mapping[str, Any]) -> Criterion:
        """Return whether a row has the same key as ``row``."""
        return and_(*(column == row[column.name] for column in self.columns))


def write(spec: QueueSpec, criterion: Criterion, assignments: Sequence[Assignment]) -> Update:
    """Return the UPDATE of the rows that satisfy ``criterion``, with the assignments in the given order."""
    return update(spec.table).where(criterion).ordered_values(*assignments)


def raised(number: ColumnElement[int], by: int = 1) -> ColumnElement[int]:
    """Return ``number + by``, or the largest integer if that is more: other programs may insert any number."""
    most: ColumnElement[int] = literal_column(str(LARGEST - by))
    return case((number > most, literal_column(str(LARGEST))), else_=number + literal_column(str(by)))


def remove(spec: QueueSpec, criterion: Criterion) -> Delete:
    """Return the DELETE of the rows that satisfy ``criterion``."""
    return delete(spec.table).where(criterion)
