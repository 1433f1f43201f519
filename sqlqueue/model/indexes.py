"""The indexes of a queue: one object each for all engines, named, the same whatever the model declares."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Index
from sqlalchemy.sql.elements import conv

from ..dialects import index_options, lasting_keys
from ..queue.spec import Criterion, QueueSpec
from ..sql.selection import is_available, is_due, is_held, is_keyed


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
    if spec.has("unique_key"):
        _index(spec, spec.index_name("unique"), [spec["unique_key"]], is_keyed(spec), unique=True)
    if spec.has("slot_key"):
        _index(spec, spec.index_name("holder"), [spec["claimed_by"]], is_held(spec))
    if spec.has("message_key"):
        _make_outbox(spec)


def _make_outbox(spec: QueueSpec) -> None:
    """What comes before a message of the same key is found by an index; who has had a message knows it by its key."""
    unfinished: list[ColumnElement[object]] = [spec["message_key"], spec["finished_at"], *spec.primary_key]
    _index(spec, spec.index_name("order"), unfinished, spec["finished_at"].is_(None))
    if len(spec.primary_key) == 1:
        spec.table.dialect_kwargs.update(lasting_keys())


def _index(
    spec: QueueSpec, name: str, columns: list[ColumnElement[object]], predicate: Criterion, *, unique: bool = False
) -> None:
    if all(index.name != name for index in spec.table.indexes):
        Index(conv(name), *columns, unique=unique, **index_options(predicate))
