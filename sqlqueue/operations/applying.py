"""How a settlement is written: one fenced statement for claims that are alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from sqlalchemy import Delete, Update, and_
from sqlalchemy.orm import Session

from ..claims import Claim
from ..dialects.base import Adapter
from ..spec import Criterion, Identity
from ..statements import Assignment, write
from ..transitions import ATTEMPT, Held

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
        return mine if held.waits else adapter.passing_over(spec, mine)

    if like is None or any(claim.attempt != claims[0].attempt for claim in claims):
        statement = make(named(held.fence(claims, adapter.key_in)))
    else:
        count = adapter.named_for(spec, len(keys))
        statement = spec.made.get(
            (adapter, held, like, count), lambda: make(named(held.fence_named(adapter.keys_named(spec, count))))
        )
        parameters = {**adapter.key_names(spec, keys), ATTEMPT: claims[0].attempt}
    return adapter.change(session, spec, statement, keys, parameters, waits=held.waits)
