"""The indexes of a queue: one object each for all engines, named, the same whatever the model declares."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Index
from sqlalchemy.sql.elements import conv

from ..dialects import index_options
from ..lifecycle.kind import KindIndex, kinds_of
from ..queue.spec import Criterion, QueueSpec
from ..sql.selection import is_available, is_due


def attach_indexes(spec: QueueSpec) -> None:
    """Give the table of ``spec`` the indexes that its claims need.

    Equality on a prefix, then exactly the order of the claim: engines that lock what they scan would lock rows that
    the claim does not return if they had to sort.
    """
    for partition in ((), *((column,) for column in spec.partitions)):
        ready = [spec["status"], *(term.expression for term in spec.ready_order if term.column not in partition)]
        if all(term.column is not spec["available_at"] for term in spec.ready_order):
            ready.append(spec["available_at"])  # a claim passes over later ones without reading the table
        due = [term.expression for term in spec.due_order if term.column not in partition]
        _index(spec, spec.index_name("claim", partition), [*partition, *ready], is_available(spec))
        _index(spec, spec.index_name("due", partition), [*partition, *due], is_due(spec))
    if spec.options.prunes:
        _index(spec, spec.index_name("finished"), [spec["finished_at"]], spec["finished_at"].is_not(None))
    for index in kind_indexes(spec):
        _index(spec, spec.index_name(index.name), list(index.columns), index.predicate, unique=index.unique)


def kind_indexes(spec: QueueSpec) -> list[KindIndex]:
    """What the kinds of the queue need besides."""
    return [index for kind in kinds_of(spec) for index in kind.indexes(spec)]


def _index(
    spec: QueueSpec, name: str, columns: list[ColumnElement[object]], predicate: Criterion, *, unique: bool = False
) -> None:
    if all(index.name != name for index in spec.table.indexes):
        Index(conv(name), *columns, unique=unique, **index_options(predicate))
