"""What gives an existing row a new life: an insert of the same key, and a redrive.

In the order of assignments that :mod:`.transitions` tells of.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, case, literal_column, null, or_

from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.selection import Assignment, UniqueBy, is_held, is_ready, state
from .kind import Proposed, assigned, kinds_of, other_keys


def fresh_budget(spec: QueueSpec) -> ColumnElement[int]:
    return spec["attempt"] + literal_column(str(spec.options.max_attempts))


def replacing(
    spec: QueueSpec,
    names: Iterable[str],
    proposed: Proposed,
    *,
    rerun: bool,
    version: Column[Any] | None = None,
) -> list[Assignment]:
    """What an existing row is given by an insert of the same key: the columns ``names``, and a new life.

    A row that is running keeps its run; ``rerun`` takes away its ``claimed_at``, by which completion knows.  With a
    ``version``, all that only if the proposed one is greater.
    """
    assignments = _replacing(spec, set(names), proposed, rerun=rerun)
    if version is None:
        return assignments
    newer = or_(version.is_(None), proposed(version.name) > version)
    guarded = [(column, case((newer, value), else_=column)) for column, value in assignments if column is not version]
    return [*guarded, (version, case((newer, proposed(version.name)), else_=version))]


def _replacing(spec: QueueSpec, names: set[str], proposed: Proposed, *, rerun: bool) -> list[Assignment]:
    kinds = kinds_of(spec)
    own = {"status", "available_at", "max_attempts", *(kind.placed_by for kind in kinds if kind.placed_by)}
    queue = {spec[role].name for role in own}
    running, moves = is_held(spec), spec["available_at"].name in names
    # one that is available already keeps its place, unless the place is what is being changed
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


def overwriting(spec: QueueSpec, values: Mapping[Column[Any], Any]) -> list[Assignment]:
    """``values`` for existing rows, but for what these cannot change now."""
    given = dict(values)
    for kind in kinds_of(spec):
        kind.overwritten(spec, given)
    return list(given.items())


def _from_the_start(spec: QueueSpec, names: Container[str], running: Criterion) -> list[Assignment]:
    """What else a new life begins with, where the insert does not say it; a run that goes on keeps what it has."""
    begin = [*revived(spec), *assigned(kind.restarted(spec, running) for kind in kinds_of(spec))]
    return [(column, value) for column, value in begin if column.name not in names]


def revived(spec: QueueSpec) -> list[Assignment]:
    """What gives a final task back what it has given up."""
    return assigned(kind.revived(spec) for kind in kinds_of(spec))


def redriving(spec: QueueSpec) -> list[Assignment]:
    """Available now, with a full budget of attempts, and the key that it had."""
    budget = fresh_budget(spec)
    return [
        *revived(spec),
        *assigned(kind.redriven(spec) for kind in kinds_of(spec)),
        (spec["status"], state(Status.AVAILABLE)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], null()),
        (spec["max_attempts"], case((spec["max_attempts"] > budget, spec["max_attempts"]), else_=budget)),
    ]


def unique_by(spec: QueueSpec, row: Mapping[str, Any]) -> tuple[UniqueBy, ...]:
    """By what ``row`` may meet another: its primary key if it gives that, and other unique keys that it gives."""
    by_key = [_by_primary_key(spec)] if all(column.name in row for column in spec.primary_key) else []
    given = (by for by in other_keys(spec) if all(row.get(column.name) is not None for column in by.columns))
    return (*by_key, *given)


@cache
def _by_primary_key(spec: QueueSpec) -> UniqueBy:
    return UniqueBy(spec.primary_key)
