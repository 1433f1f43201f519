"""Claims from several parts of a queue in fair shares."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.base import ExecutableOption

from .._support.checks import count
from .._support.exc import ArgumentError
from ..model.mixins import T
from ..queue.spec import Where
from ..transaction.connection import AnySession
from .claiming import claim_many


def claim_in_turns(
    session: AnySession,
    entity: type[T],
    by: InstrumentedAttribute[Any],
    values: Sequence[Any],
    *where: Where,
    limit: int,
    lease: timedelta | Literal["default"] | None = "default",
    options: Sequence[ExecutableOption] = (),
    claimed_by: str | None = None,
) -> Sequence[T]:
    """Claim up to ``limit`` tasks whose ``by`` is one of ``values``, as evenly among the values as possible.

    A message type with a million tasks does not delay one with ten: each value has an equal share, and what it cannot
    use goes to the others.  The order of the values is random.  Returns the tasks grouped by value, each group in claim
    order.  Each value takes one claim, which uses the index that ``QueueOptions(partitions=...)`` or a mixin creates
    for ``by``.  For the other arguments, locks and errors see :func:`claim_many`.
    """
    count("limit", limit)
    if not isinstance(by, InstrumentedAttribute):
        raise ArgumentError(f"by={by!r}: give an attribute, as in {entity.__name__}.priority")
    if isinstance(values, str) or not isinstance(values, Sequence) or not _differ(values):
        raise ArgumentError(f"values={values!r}: give a sequence of different values")
    claimed: dict[Any, list[T]] = {value: [] for value in random.sample(values, len(values))}
    hungry = list(claimed)
    while hungry and limit:
        for value, share in zip(hungry, _shares(limit, len(hungry)), strict=False):
            tasks = claim_many(
                session, entity, *where, by == value, limit=share, lease=lease, options=options, claimed_by=claimed_by
            )
            claimed[value] += tasks
            limit -= len(tasks)
            if len(tasks) < share:
                hungry = [each for each in hungry if each != value]
    return [task for tasks in claimed.values() for task in tasks]


def _differ(values: Sequence[Any]) -> bool:
    return all(isinstance(value, Hashable) for value in values) and len(set(values)) == len(values)


def _shares(limit: int, among: int) -> list[int]:
    """Divide ``limit`` as evenly as possible; omit empty shares."""
    size, more = divmod(limit, among)
    return [share for share in (size + (number < more) for number in range(among)) if share]
