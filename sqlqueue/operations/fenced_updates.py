"""How a settlement is written: one fenced statement for claims that are alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Delete, Update, and_, bindparam
from sqlalchemy.orm import Session

from .._support.claim import Claim
from ..dialects.base import Adapter
from ..queue.spec import Criterion, Identity
from ..sql.selection import Assignment, write
from ..sql.transitions import ATTEMPT, TOKEN, Held

Apply: TypeAlias = Callable[[Adapter, Session, Held, Sequence[Claim]], set[Identity]]
"""Writes to the rows of claims that are still theirs, and says which those are."""


def updating(
    values: Callable[[Held, Sequence[Claim]], Sequence[Assignment]],
    like: Hashable | None = None,
    only: Criterion | None = None,
) -> Apply:
    """``like``: all that the other two go by besides how the rows are held, if the statement is worth keeping.

    ``only``: what must hold for a row besides.
    """

    def apply(adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim]) -> set[Identity]:
        def writing(mine: Criterion) -> Update:
            return write(held.spec, mine if only is None else and_(mine, only), values(held, claims))

        return change(adapter, session, held, claims, writing, like=like)

    return apply


def change(
    adapter: Adapter,
    session: Session,
    held: Held,
    claims: Sequence[Claim],
    make: Callable[[Criterion], Update | Delete],
    *,
    like: Hashable | None,
) -> set[Identity]:
    """Execute the statement that ``make`` makes of the condition by which rows are still those of ``claims``."""
    spec, keys, parameters = held.spec, [claim.identity for claim in claims], None

    def named(mine: Criterion) -> Criterion:
        return mine if held.waits else adapter.locking.passing_over(spec, mine)

    alike = are_alike(held, claims)
    if like is None or not (alike or adapter.keys.names_rows):
        statement = make(named(fence(adapter, held, claims)))
    else:
        count = adapter.keys.named_for(spec, len(keys))
        statement = spec.made.get(
            (adapter, held, like, count, alike), lambda: make(named(_fence_named(adapter, held, count, alike=alike)))
        )
        parameters = _fence_names(adapter, held, claims, alike=alike)
    return adapter.rows.change(session, spec, statement, keys, parameters, waits=held.waits)


_MARKS = (ATTEMPT, TOKEN)
"""The parameters for :attr:`.Held.marked`, where all claims have the same there."""


def are_alike(held: Held, claims: Sequence[Claim]) -> bool:
    """Whether one call made them, in one attempt."""
    return len({held.marks(claim) for claim in claims}) == 1


def fence(adapter: Adapter, held: Held, claims: Sequence[Claim]) -> Criterion:
    """Holds for the rows that are still held by these claims."""
    keys = adapter.keys.key_in(held.spec, [claim.identity for claim in claims])
    if are_alike(held, claims):
        marks = zip(held.marked, held.marks(claims[0]), strict=True)
        return held.unsettled(and_(*(column == mark for column, mark in marks), keys))
    # the keys by themselves too, by which rows are found
    return held.unsettled(and_(keys, adapter.keys.rows_in(_columns(held), _rows(held, claims))))


def _fence_named(adapter: Adapter, held: Held, count: int, *, alike: bool) -> Criterion:
    """:func:`fence` with the parameters of :func:`_fence_names`."""
    keys = adapter.keys.keys_named(held.spec, count)
    if not alike:
        return held.unsettled(and_(keys, adapter.keys.rows_in(_columns(held))))
    marks = zip(held.marked, _MARKS, strict=False)
    return held.unsettled(and_(*(column == bindparam(name, type_=column.type) for column, name in marks), keys))


def _fence_names(adapter: Adapter, held: Held, claims: Sequence[Claim], *, alike: bool) -> dict[str, Any]:
    names = adapter.keys.key_names(held.spec, [claim.identity for claim in claims])
    marks = zip(_MARKS, held.marks(claims[0]), strict=False)
    return {**names, **(dict(marks) if alike else adapter.keys.row_names(_rows(held, claims)))}


def _columns(held: Held) -> Sequence[ColumnElement[Any]]:
    return (*held.spec.primary_key, *held.marked)


def _rows(held: Held, claims: Sequence[Claim]) -> list[Identity]:
    return [(*claim.identity, *held.marks(claim)) for claim in claims]
