"""Assignments that reactivate an existing row: for an insert of the same key, and for a retry by an operator.

Their order matters, see :mod:`.transitions`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, case, null, or_

from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ..sql.changes import Assignment, UniqueBy, raised
from ..sql.clock import utcnow
from ..sql.states import is_held, is_ready, state
from .kind import Proposed, assigned, kinds_of, other_keys
from .transitions import clearing


def fresh_budget(spec: QueueSpec) -> ColumnElement[int]:
    """Return the ``max_attempts`` with which a task that is not running has all its attempts again."""
    return raised(spec["attempt"], spec.options.max_attempts)


def replacing(spec: QueueSpec, given: Iterable[str], proposed: Proposed, *, rerun: bool) -> list[Assignment]:
    """Return the assignments to an existing row that an insert conflicts with: columns ``given``, and reactivation.

    A running row continues its run; ``rerun`` clears its ``claimed_at``, which makes completion run it again.
    """
    names = set(given)
    kinds = kinds_of(spec)
    own = {"status", "available_at", "max_attempts", *(kind.placed_by for kind in kinds if kind.placed_by)}
    queue = {spec[role].name for role in own}
    running, moves = is_held(spec), spec["available_at"].name in names
    # an available task keeps its position, unless the insert sets it
    stays = or_(running, is_ready(spec)) if rerun and not moves else running
    moment = proposed(spec["available_at"].name) if moves else utcnow()
    status = proposed(spec["status"].name) if spec["status"].name in names else state(Status.AVAILABLE)
    budget = spec["max_attempts"].name
    attempts = spec["attempt"] + proposed(budget) if budget in names else fresh_budget(spec)
    marked = [(spec["claimed_at"], case((running, null()), else_=spec["claimed_at"]))] if rerun else []
    values = overwriting(spec, {spec.table.c[name]: proposed(name) for name in sorted(names - queue)})
    return [
        *values,
        *marked,
        (spec["available_at"], case((stays, spec["available_at"]), else_=moment)),
        (spec["finished_at"], null()),
        (spec["max_attempts"], case((running, spec["max_attempts"]), else_=attempts)),
        *_from_the_start(spec, names, running),
        *assigned(kind.placed(spec, names, proposed, None if rerun else running) for kind in kinds),
        (spec["status"], case((stays, spec["status"]), else_=status)),
    ]


def is_newer(version: Column[Any], proposed: Proposed) -> Criterion:
    """Return the criterion of rows with a lesser ``version`` than the one that an insert proposes, or none."""
    return or_(version.is_(None), proposed(version.name) > version)


def guarded(assignments: Iterable[Assignment], version: Column[Any], proposed: Proposed) -> list[Assignment]:
    """Return the ``assignments`` of an upsert, which change nothing unless the row :func:`is_newer`."""
    newer = is_newer(version, proposed)
    values = [(column, case((newer, value), else_=column)) for column, value in assignments if column is not version]
    return [*values, (version, case((newer, proposed(version.name)), else_=version))]


def overwriting(spec: QueueSpec, values: Mapping[Column[Any], Any]) -> list[Assignment]:
    """Return assignments of ``values`` to existing rows, guarded where a row cannot take them in its current state."""
    given = dict(values)
    for kind in kinds_of(spec):
        kind.overwritten(spec, given)
    return list(given.items())


def _from_the_start(spec: QueueSpec, names: Container[str], running: Criterion) -> list[Assignment]:
    """Return the kinds' assignments to a reactivated row, except to columns that the insert sets."""
    begin = [
        *revived(spec),
        clearing(spec, ~running),
        *assigned(kind.restarted(spec, running) for kind in kinds_of(spec)),
    ]
    return [(column, value) for column, value in begin if column.name not in names]


def revived(spec: QueueSpec) -> list[Assignment]:
    """Return the assignments that restore what tasks lost when they became final."""
    return assigned(kind.revived(spec) for kind in kinds_of(spec))


def redriving(spec: QueueSpec) -> list[Assignment]:
    """Return the assignments of :func:`.retry`: available now, with all attempts, and with its former key."""
    budget = fresh_budget(spec)
    return [
        *revived(spec),
        *assigned(kind.redriven(spec) for kind in kinds_of(spec)),
        clearing(spec),
        (spec["status"], state(Status.AVAILABLE)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], null()),
        (spec["max_attempts"], case((spec["max_attempts"] > budget, spec["max_attempts"]), else_=budget)),
    ]


def unique_by(spec: QueueSpec, row: Mapping[str, Any]) -> tuple[UniqueBy, ...]:
    """Return the keys that ``row`` may conflict on: the primary key and other unique keys, as far as it sets them."""
    by_key = [_by_primary_key(spec)] if all(column.name in row for column in spec.primary_key) else []
    given = (by for by in other_keys(spec) if all(row.get(column.name) is not None for column in by.columns))
    return (*by_key, *given)


@cache
def _by_primary_key(spec: QueueSpec) -> UniqueBy:
    return UniqueBy(spec.primary_key)
