"""The indexes of a queue: one object each for all engines, named, the same whatever the model declares."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Index
from sqlalchemy.sql.elements import conv

from .dialects import index_options
from .spec import Criterion, QueueSpec
from .statements import is_due, is_ready


def attach_indexes(spec: QueueSpec) -> None:
    """Give the table of ``spec`` the indexes that its claims need.

    Equality on a prefix, then exactly the order of the claim: engines that lock what they scan would lock rows that
    the claim does not return if they had to sort.
    """
    for partition in ((), *((column,) for column in spec.partitions)):
        ready = [spec["status"], *(term.expression for term in spec.ready_order)]
        due = [term.expression for term in spec.due_order]
        _index(spec, spec.index_name("claim", partition), [*partition, *ready], is_ready(spec))
        _index(spec, spec.index_name("due", partition), [*partition, *due], is_due(spec))


def _index(spec: QueueSpec, name: str, columns: list[ColumnElement[object]], predicate: Criterion) -> None:
    if all(index.name != name for index in spec.table.indexes):
        Index(conv(name), *columns, **index_options(predicate))
