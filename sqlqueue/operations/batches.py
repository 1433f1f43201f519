"""Large sets of tasks in small parts: a few at a time in one transaction, or all of them in many transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from .._support.checks import count
from .._support.exc import DuplicateTaskError
from ..dialects.base import Adapter
from ..queue.spec import Criterion, Identity, Ordering, QueueSpec
from ..queue.status import DUE, FINAL, Status
from ..sql.selection import is_due, is_final, state
from ..transaction.connection import Access, open_

BATCH = 1_000
"""Rows that one transaction changes, where the caller does not say."""
PAGE = 100_000
"""Keys that are read at a time, for many batches: a criterion may take a scan of the table."""


def limited(
    session: Session,
    spec: QueueSpec,
    criterion: Criterion,
    limit: int | None,
    change: Callable[[Criterion], int],
    *,
    among: Collection[Status],
) -> int:
    """Call ``change`` for the rows of ``criterion``, at most ``limit`` of them; returns how many it changed.

    Fewer than ``limit`` means that none is left.  The rows are found in the order of the queue's indexes, in the states
    ``among`` which the criterion's rows are.
    """
    if limit is None:
        return change(criterion)
    count("limit", limit)
    adapter = open_(session, spec, Access.CHANGE)
    changed, before = 0, list[Identity]()
    while changed < limit:
        keys = _first(adapter, session, spec, criterion, min(limit - changed, adapter.keys.most(spec)), among=among)
        if not keys or keys == before:  # the same as before: these cannot be changed
            break
        changed += change(and_(criterion, adapter.keys.key_in(spec, keys)))
        before = keys
    return changed


def _first(
    adapter: Adapter, session: Session, spec: QueueSpec, criterion: Criterion, number: int, *, among: Collection[Status]
) -> list[Identity]:
    """The keys of up to ``number`` rows, found by the two indexes of claims, and final ones last.

    Unless an order asks for an index, planners scan tables from the beginning, where the finished tasks are.
    """
    ready = spec["status"] == state(Status.AVAILABLE)
    steps: list[tuple[Collection[Status], Criterion, Sequence[ColumnElement[object]]]] = [
        ((Status.AVAILABLE,), ready, [term.expression for term in spec.ready_order]),
        (DUE, is_due(spec), [term.expression for term in _order_of_due(adapter, spec, among)]),
        (FINAL, is_final(spec), ()),
    ]
    found: list[Identity] = []
    for states, in_state, order in steps:
        if len(found) < number and not set(states).isdisjoint(among):
            statement = select(*spec.primary_key).where(criterion, in_state).order_by(*order)
            found += adapter.rows.keys(session, spec, statement.limit(number - len(found)))
    return found


def _order_of_due(adapter: Adapter, spec: QueueSpec, among: Collection[Status]) -> Sequence[Ordering]:
    """By the index of claims for running tasks alone, where that has them: they are few, and all that are due many."""
    by_claims = set(among) == {Status.RUNNING} and adapter.schema.indexes_all
    return spec.ready_order if by_claims else spec.due_order


class Batch(NamedTuple):
    """What became of the rows of one transaction."""

    changed: int
    taken: int = 0
    """How many stay as they are, because another task has taken their ``unique_key``."""
    protected: int = 0
    """How many stay, because foreign keys refer to them, of all that were to be deleted."""


def in_batches(
    session: Session, spec: QueueSpec, criterion: Criterion, change: Callable[[Criterion], int], *, size: int = BATCH
) -> Iterator[Batch]:
    """Call ``change`` for all rows of ``criterion``, ``size`` of them at a time, and commit each time.

    ``change`` is called with the criterion that a row is one of these.  It has to check again what it relies on: in the
    meantime others may have changed them.  Each row is tried once, so that those that cannot be changed keep nothing
    else from it, and rows that are added all the time do not make it endless.
    """
    tried: set[Identity] = set()
    while True:
        adapter = open_(session, spec, Access.CHANGE)
        found = adapter.rows.keys(session, spec, select(*spec.primary_key).where(criterion).limit(PAGE))
        session.commit()
        keys = [key for key in found if key not in tried]
        size = min(size, adapter.keys.most(spec))
        for start in range(0, len(keys), size):
            yield from _batch(session, spec, adapter, keys[start : start + size], change)
        if not keys or len(found) < PAGE:
            return
        tried = set(found)


def _batch(
    session: Session, spec: QueueSpec, adapter: Adapter, keys: Sequence[Identity], change: Callable[[Criterion], int]
) -> Iterator[Batch]:
    """In halves, and halves of these, if a task among them has lost its key to another."""
    try:
        changed = change(adapter.keys.key_in(spec, keys))
        session.commit()
    except DuplicateTaskError:
        session.rollback()
        half = len(keys) // 2
        if not half:
            yield Batch(0, taken=1)
            return
        yield from _batch(session, spec, adapter, keys[:half], change)
        yield from _batch(session, spec, adapter, keys[half:], change)
    else:
        yield Batch(changed)
