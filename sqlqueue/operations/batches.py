"""Changes large sets of tasks in batches: up to a limit in one transaction, or all of them in many transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Self

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from .._support.checks import count
from ..dialects.base import Adapter
from ..queue.spec import Criterion, Identity, Ordering, QueueSpec
from ..queue.status import DUE, FINAL, Status
from ..sql.states import is_due, is_final, state
from ..transaction.connection import Access, open_

BATCH = 1_000
"""The number of rows that one transaction of a mass change changes."""
PAGE = 100_000
"""The number of keys read at a time, enough for many batches: finding them may scan the table."""


def limited(
    session: Session,
    spec: QueueSpec,
    criterion: Criterion,
    limit: int | None,
    change: Callable[[Criterion], int],
    *,
    among: Collection[Status],
    free: Criterion | None = None,
) -> int:
    """Call ``change`` for at most ``limit`` of the rows that satisfy ``criterion``; return how many it changed.

    Fewer than ``limit`` means that no more are left.  The rows are found in the order of the queue's indexes; ``among``
    names the states that they can be in.  ``free``: a further criterion, which an UPDATE cannot have on each engine, of
    the rows that ``change`` would not leave as they are.
    """
    if limit is None:
        return change(criterion)
    count("limit", limit)
    adapter = open_(session, spec, Access.CHANGE)
    wanted = criterion if free is None else and_(criterion, free)
    changed, before = 0, list[Identity]()
    while changed < limit:
        keys = _first(adapter, session, spec, wanted, min(limit - changed, adapter.keys.most(spec)), among=among)
        if not keys or keys == before:  # the same rows as in the last round: they cannot be changed
            break
        changed += change(and_(criterion, adapter.keys.key_in(spec, keys)))
        before = keys
    return changed


def _first(
    adapter: Adapter, session: Session, spec: QueueSpec, criterion: Criterion, number: int, *, among: Collection[Status]
) -> list[Identity]:
    """Return the keys of up to ``number`` rows: those that the two claim indexes find, then final ones.

    Without an ORDER BY that matches an index, planners scan the table from its beginning, where finished tasks are.
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
    """Return the claim index's order if it contains running tasks and only these are wanted: they are far fewer than
    all due tasks.
    """
    by_claims = set(among) == {Status.RUNNING} and adapter.schema.indexes_all
    return spec.ready_order if by_claims else spec.due_order


class Reactivated(int):
    """The result of :func:`.retry` and :func:`.rerun`: the number of tasks that they made available again."""

    taken: int
    """How many tasks they left as they are because another task has taken their ``unique_key``."""

    def __new__(cls, changed: int, taken: int = 0) -> Self:
        reactivated = super().__new__(cls, changed)
        reactivated.taken = taken
        return reactivated


class Batch(NamedTuple):
    """The result of one transaction."""

    changed: int
    taken: int = 0
    """How many rows are left unchanged because another task has taken their ``unique_key``."""
    protected: int = 0
    """How many rows, over the whole run, are not deleted because foreign keys refer to them."""


def in_batches(
    session: Session, spec: QueueSpec, criterion: Criterion, change: Callable[[Criterion], int], *, size: int
) -> Iterator[Batch]:
    """Call ``change`` for all rows that satisfy ``criterion``, in batches of ``size``, and commit after each batch.

    ``change`` receives a criterion that selects the batch's rows by key.  It must check their state again, because
    other transactions may have changed them in the meantime.  Each row is tried once: rows that cannot be changed do
    not block the others, and rows that are inserted meanwhile do not make it run forever.
    """
    tried, kept = set[Identity](), set[Identity]()
    while True:
        adapter = open_(session, spec, Access.CHANGE)
        most = PAGE + len(kept)  # rows that stay as they are would otherwise hide those behind them
        found = adapter.rows.keys(session, spec, select(*spec.primary_key).where(criterion).limit(most))
        session.commit()
        keys = [key for key in found if key not in tried]
        size = min(size, adapter.keys.most(spec))
        for start in range(0, len(keys), size):
            some = keys[start : start + size]
            changed = change(adapter.keys.key_in(spec, some))
            session.commit()
            if changed < len(some):
                kept.update(some)
            yield Batch(changed, taken=changed.taken if isinstance(changed, Reactivated) else 0)
        if not keys or len(found) < most:
            return
        tried = kept.union(found)
