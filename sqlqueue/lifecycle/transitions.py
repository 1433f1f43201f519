"""What changes of a task's state write: claims, settlements, reactivation."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, Float, Integer, and_, bindparam, case, literal, literal_column, null, or_

from ..queue.options import Status
from ..queue.spec import Criterion, QueueSpec
from ..sql.rows import Assignment, UniqueBy, is_held, is_held_by_worker, is_ready, raised, state, utcnow
from .fence import TOKEN, Fence, stamp
from .kind import Proposed, assigned, holds_tasks, kinds_of, other_keys

# -- state transitions: the assignments of claims and of settling -----------------------------------------------------
#
# MySQL and MariaDB evaluate assignments from left to right, and each sees the results of those before it; by the SQL
# standard, all see the old row.  Therefore, columns that other assignments read (``max_attempts``, ``attempt``,
# ``status``) are assigned after them.

NONE: ColumnElement[int] = literal_column("0", Integer)
"""The ``crashes`` of a task that is not a suspect."""


def taking(spec: QueueSpec, claimed_by: str, lease: timedelta, token: int | None = None) -> tuple[Assignment, ...]:
    """Return the assignments of a claim with a lease.  The token is the parameter ``TOKEN`` if not given here."""
    column = spec["claim_token"]
    return (
        *claiming(spec),
        (spec["status"], state(Status.RUNNING)),
        (spec["available_at"], utcnow(lease)),
        (column, bindparam(TOKEN, type_=column.type) if token is None else literal(token, column.type)),
        *stamp(spec, claimed_by),
    )


def claiming(spec: QueueSpec) -> list[Assignment]:
    """Return the assignments of a claim that depend on what the rows were before."""
    return [*_claimed(spec), *taking_over(spec)]


def taking_over(spec: QueueSpec) -> list[Assignment]:
    """Return the assignments of a claim to tasks that another worker held until their lease expired.

    That worker has most likely crashed.  The crash does not count as an attempt, because the task may not even have
    been started, but it makes the task a suspect.
    """
    if not holds_tasks(spec):
        return []
    crashed, crashes, budget = is_held_by_worker(spec), spec["crashes"], spec["max_attempts"]
    return [
        (budget, case((crashed, raised(budget)), else_=budget)),
        (crashes, case((and_(crashed, crashes == NONE), literal_column("1")), else_=crashes)),
    ]


def suspected(spec: QueueSpec) -> ColumnElement[int]:
    """Return the ``crashes`` of a task whose process has crashed: already counted if it was a suspect before."""
    crashes = spec["crashes"]
    return case((crashes == NONE, literal_column("1", Integer)), else_=crashes)


def clearing(spec: QueueSpec, some: Criterion | None = None) -> Assignment:
    """Return the assignment that clears the suspicion of tasks whose attempt has ended, or of ``some`` of them."""
    return spec["crashes"], NONE if some is None else case((some, NONE), else_=spec["crashes"])


def consuming(spec: QueueSpec, claimed_by: str) -> tuple[Assignment, ...]:
    """Return the assignments of a claim that completes the task at once."""
    column = spec["claim_token"]
    return (*ending(spec, Status.COMPLETED), (column, bindparam(TOKEN, type_=column.type)), *stamp(spec, claimed_by))


def tries(fence: Fence) -> ColumnElement[int]:
    """Return the number of attempts in the task's current stage or run."""
    before = earlier_attempts(fence.spec)
    return fence.attempt if before is None else fence.attempt - before


def earlier_attempts(spec: QueueSpec) -> Column[int] | None:
    """Return the column with the number of attempts before the current stage or run, if the queue has one."""
    found = (kind.earlier_attempts(spec) for kind in kinds_of(spec))
    return next((column for column in found if column is not None), None)


def lives_on(fence: Fence, status: Status, stage: str | None = None) -> Criterion | None:
    """Return the criterion of tasks that continue instead of ending as ``status``; ``None`` if none does."""
    if status is Status.CANCELLED:
        return None
    ways = [kind.goes_on(fence.spec, status, stage) for kind in kinds_of(fence.spec)]
    if stage is None:
        ways.insert(0, fence.runs_again)
    found = [way for way in ways if way is not None]
    return or_(*found) if found else None


def _claimed(spec: QueueSpec) -> list[Assignment]:
    return assigned(kind.claimed(spec) for kind in kinds_of(spec))


def _claimed_now(fence: Fence) -> list[Assignment]:
    """Return the kinds' claim assignments that a claim with ``lease=None`` has not made yet."""
    return _claimed(fence.spec) if fence.only_locked else []


def _ended(spec: QueueSpec, final: Criterion | None = None) -> list[Assignment]:
    return assigned(kind.ended(spec, final) for kind in kinds_of(spec))


def ending(spec: QueueSpec, status: Status) -> list[Assignment]:
    """Return the assignments that make a task final, whatever its state.

    A dead letter keeps its number of crashes.
    """
    return [
        *_ended(spec),
        *([] if status is Status.DISCARDED else [clearing(spec)]),
        (spec["status"], state(status)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], utcnow()),
    ]


def finishing(fence: Fence, status: Status, *, stage: str | None = None, error: str | None = None) -> list[Assignment]:
    """Return the assignments that make a held task final, or available with all attempts if it continues.

    A task continues if it was enqueued again while it ran, or moves to another stage.
    """
    spec, lives = fence.spec, lives_on(fence, status, stage)
    told: list[Assignment] = [] if error is None else [(spec["error"], error)]
    if lives is None:
        return [*ending(spec, status), *told, *fence.written()]
    return [
        *_ended(spec, ~lives),
        (spec["status"], case((lives, state(Status.AVAILABLE)), else_=state(status))),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], case((lives, null()), else_=utcnow())),
        (spec["max_attempts"], case((lives, fence.fresh_budget), else_=spec["max_attempts"])),
        clearing(spec) if status is not Status.DISCARDED else clearing(spec, lives),
        *told,
        *assigned(kind.moved(fence, lives, stage, failed=error is not None) for kind in kinds_of(spec)),
        *fence.written(),
    ]


def failing(fence: Fence, delays: Mapping[int, timedelta]) -> list[Assignment]:
    """Return the assignments of a failure: retryable after its attempt's delay, or discarded if no attempt is left."""
    spec, again = fence.spec, fence.runs_again
    more = fence.attempt < spec["max_attempts"]
    seconds = {attempt: _seconds(delay) for attempt, delay in delays.items()}
    *_, longest = seconds.values()
    delay = longest if len(seconds) == 1 else case(seconds, value=tries(fence), else_=longest)
    fresh = [] if again is None else [(again, state(Status.AVAILABLE))]
    lives = more if again is None else or_(more, again)
    return [
        *_claimed_now(fence),
        *_ended(spec, ~lives),
        clearing(spec),
        (spec["status"], case((more, state(Status.RETRYABLE)), *fresh, else_=state(Status.DISCARDED))),
        (spec["available_at"], case((more, utcnow(delay)), else_=utcnow())),
        (spec["finished_at"], case((lives, null()), else_=utcnow())),
        *_restarting(fence, spec["max_attempts"]),
        *fence.written(),
    ]


def _restarting(fence: Fence, budget: ColumnElement[int]) -> list[Assignment]:
    """Give all attempts to tasks that were enqueued again while they ran; set ``max_attempts`` of others to
    ``budget``."""
    spec, again = fence.spec, fence.runs_again
    if again is None:
        return []
    return [
        (spec["max_attempts"], case((again, fence.fresh_budget), else_=budget)),
        *assigned(kind.rerun(fence, again) for kind in kinds_of(spec)),
    ]


def handing_back(fence: Fence, delay: timedelta | None) -> list[Assignment]:
    """Return the assignments of a release: available now or scheduled after ``delay``; the attempt does not count."""
    status = Status.AVAILABLE if delay is None else Status.SCHEDULED
    return _unsettled(fence, status, utcnow(delay), NONE)


def returning(fence: Fence, crashes: ColumnElement[int]) -> list[Assignment]:
    """Return the assignments of a worker's release: the attempt does not count, and the task is claimed before others.

    The task was claimed before those that are waiting, and must not wait behind them again.  The claim has overwritten
    the original ``available_at``; the task's creation replaces it, which is never later.
    """
    return _unsettled(fence, Status.AVAILABLE, _before_others(fence.spec), crashes)


def abandoned(fence: Fence) -> list[Assignment]:
    """Return the assignments that release tasks whose lease has expired, see :func:`taking_over` and
    :func:`returning`."""
    spec = fence.spec
    (_, budget), suspect = taking_over(spec)
    return [
        *_restarting(fence, budget),
        suspect,
        (spec["status"], state(Status.AVAILABLE)),
        (spec["available_at"], _before_others(spec)),
        (spec["claimed_by"], null()),
        (spec["claimed_at"], null()),
    ]


def _before_others(spec: QueueSpec) -> ColumnElement[datetime]:
    created, now = spec["created_at"], utcnow()
    return case((created < now, created), else_=now)


def _unsettled(
    fence: Fence, status: Status, moment: ColumnElement[datetime], crashes: ColumnElement[int]
) -> list[Assignment]:
    spec = fence.spec
    back: list[Assignment] = [
        *_claimed_now(fence),
        (spec["crashes"], crashes),
        (spec["status"], state(status)),
        (spec["available_at"], moment),
    ]
    if fence.only_locked:
        return [*back, (spec["max_attempts"], raised(spec["max_attempts"])), *fence.written()]
    return [
        *back,
        *_restarting(fence, raised(spec["max_attempts"])),
        (spec["claimed_by"], null()),
        (spec["claimed_at"], null()),
    ]


def extending(fence: Fence, lease: timedelta) -> list[Assignment]:
    """Return the assignments that extend a lease to ``lease`` from now."""
    return [(fence.spec["available_at"], utcnow(lease))]


def _seconds(delay: timedelta) -> ColumnElement[float]:
    return bindparam(None, delay.total_seconds(), type_=Float(53))


# -- assignments that reactivate an existing row: for an insert of the same key, and for a retry by an operator -------
#
# Their order matters, see :mod:`.transitions`.


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
