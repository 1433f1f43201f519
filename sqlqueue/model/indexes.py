"""The indexes of a queue: named explicitly, and each a single object that serves all engines."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Index
from sqlalchemy.sql.elements import conv

from ..dialects import index_options
from ..lifecycle.kind import KindIndex, kinds_of
from ..queue.spec import Criterion, QueueSpec
from ..sql.states import is_available, is_due


def attach_indexes(spec: QueueSpec) -> None:
    """Add the indexes that claims need to the table of ``spec``.

    Each begins with the columns compared for equality, followed by the claim order: if an engine that locks the rows
    it scans had to sort, it would lock rows that the claim does not return.
    """
    for partition in ((), *((column,) for column in spec.partitions)):
        ready = [spec["status"], *(term.expression for term in spec.ready_order if term.column not in partition)]
        if all(term.column is not spec["available_at"] for term in spec.ready_order):
            ready.append(spec["available_at"])  # so that a claim skips rows with later times without reading the table
        due = [term.expression for term in spec.due_order if term.column not in partition]
        _index(spec, spec.index_name("claim", partition), [*partition, *ready], is_available(spec))
        _index(spec, spec.index_name("due", partition), [*partition, *due], is_due(spec))
    if spec.options.prunes:
        _index(spec, spec.index_name("finished"), [spec["finished_at"]], spec["finished_at"].is_not(None))
    for index in kind_indexes(spec):
        _index(spec, spec.index_name(index.name), list(index.columns), index.predicate, unique=index.unique)


def kind_indexes(spec: QueueSpec) -> list[KindIndex]:
    """Return the indexes that the queue's kinds add."""
    return [index for kind in kinds_of(spec) for index in kind.indexes(spec)]


def _index(
    spec: QueueSpec, name: str, columns: list[ColumnElement[object]], predicate: Criterion, *, unique: bool = False
) -> None:
    if all(index.name != name for index in spec.table.indexes):
        Index(conv(name), *columns, unique=unique, **index_options(predicate))
