"""What becomes of a row: the assignments of claims, of settling and of enqueueing anew.

MySQL and MariaDB evaluate assignments from left to right, each seeing those before it, where the standard has them all
see the old row.  So what others read (``max_attempts``, ``attempt``, ``status``) is assigned after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import Column, ColumnElement, Float, bindparam, case, literal, literal_column, null, or_

from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.selection import Assignment, state
from .fenced import TOKEN
from .held import Held, stamp
from .kind import assigned, kinds_of


def taking(spec: QueueSpec, claimed_by: str, lease: timedelta, token: int | None = None) -> tuple[Assignment, ...]:
    """What a claim with a lease writes.  Its token is the parameter ``TOKEN`` if it is not given here."""
    column = spec["claim_token"]
    return (
        *_claimed(spec),
        (spec["status"], state(Status.RUNNING)),
        (spec["available_at"], utcnow(lease)),
        (column, bindparam(TOKEN, type_=column.type) if token is None else literal(token, column.type)),
        *stamp(spec, claimed_by),
    )


def consuming(spec: QueueSpec, claimed_by: str) -> tuple[Assignment, ...]:
    """What a claim writes that is its own completion."""
    return (*ending(spec, Status.COMPLETED), *stamp(spec, claimed_by))


def tries(held: Held) -> ColumnElement[int]:
    """How often the task has been tried in its present stage or run."""
    before = earlier_attempts(held.spec)
    return held.attempt if before is None else held.attempt - before


def earlier_attempts(spec: QueueSpec) -> Column[int] | None:
    """How many attempts of a task were made before its present stage or run, where there may be some."""
    found = (kind.earlier_attempts(spec) for kind in kinds_of(spec))
    return next((column for column in found if column is not None), None)


def lives_on(held: Held, status: Status, stage: str | None = None) -> Criterion | None:
    """What holds for tasks that do not end by becoming ``status``; ``None`` if all of them do."""
    if status is Status.CANCELLED:
        return None
    ways = [kind.goes_on(held.spec, status, stage) for kind in kinds_of(held.spec)]
    if stage is None:
        ways.insert(0, held.runs_again)
    found = [way for way in ways if way is not None]
    return or_(*found) if found else None


def _claimed(spec: QueueSpec) -> list[Assignment]:
    return assigned(kind.claimed(spec) for kind in kinds_of(spec))


def _claimed_now(held: Held) -> list[Assignment]:
    """What a claim that only locks has not written yet of its kinds' columns."""
    return _claimed(held.spec) if held.only_locked else []


def _ended(spec: QueueSpec, final: Criterion | None = None) -> list[Assignment]:
    return assigned(kind.ended(spec, final) for kind in kinds_of(spec))


def ending(spec: QueueSpec, status: Status) -> list[Assignment]:
    """Final at once, whatever it was."""
    return [
        *_ended(spec),
        (spec["status"], state(status)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], utcnow()),
    ]


def finishing(held: Held, status: Status, *, stage: str | None = None, error: str | None = None) -> list[Assignment]:
    """Final at once; or available again, with a budget of its own, if it is to run again or goes on to a stage."""
    spec, lives = held.spec, lives_on(held, status, stage)
    told: list[Assignment] = [] if error is None else [(spec["error"], error)]
    if lives is None:
        return [*ending(spec, status), *told, *held.written()]
    return [
        *_ended(spec, ~lives),
        (spec["status"], case((lives, state(Status.AVAILABLE)), else_=state(status))),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], case((lives, null()), else_=utcnow())),
        (spec["max_attempts"], case((lives, held.fresh_budget), else_=spec["max_attempts"])),
        *told,
        *assigned(kind.moved(held, lives, stage, failed=error is not None) for kind in kinds_of(spec)),
        *held.written(),
    ]


def failing(held: Held, delays: Mapping[int, timedelta]) -> list[Assignment]:
    """To be tried again after the delay of its attempt, or discarded once attempts are used up."""
    spec, again = held.spec, held.runs_again
    more = held.attempt < spec["max_attempts"]
    seconds = {attempt: _seconds(delay) for attempt, delay in delays.items()}
    *_, longest = seconds.values()
    delay = longest if len(seconds) == 1 else case(seconds, value=tries(held), else_=longest)
    fresh = [] if again is None else [(again, state(Status.AVAILABLE))]
    lives = more if again is None else or_(more, again)
    return [
        *_claimed_now(held),
        *_ended(spec, ~lives),
        (spec["status"], case((more, state(Status.RETRYABLE)), *fresh, else_=state(Status.DISCARDED))),
        (spec["available_at"], case((more, utcnow(delay)), else_=utcnow())),
        (spec["finished_at"], case((lives, null()), else_=utcnow())),
        *_beginning_anew(held, spec["max_attempts"]),
        *held.written(),
    ]


def _beginning_anew(held: Held, budget: ColumnElement[int]) -> list[Assignment]:
    """A task that is to run again has all the attempts of a new life; others have this ``budget``."""
    spec, again = held.spec, held.runs_again
    if again is None:
        return []
    return [
        (spec["max_attempts"], case((again, held.fresh_budget), else_=budget)),
        *assigned(kind.begun_anew(held, again) for kind in kinds_of(spec)),
    ]


def handing_back(held: Held, delay: timedelta | None) -> list[Assignment]:
    """Available now, or scheduled after ``delay``; it does not count as an attempt."""
    spec = held.spec
    status = Status.AVAILABLE if delay is None else Status.SCHEDULED
    now: list[Assignment] = [(spec["status"], state(status)), (spec["available_at"], utcnow(delay))]
    back = [*_claimed_now(held), *now]
    if held.only_locked:
        return back
    return [
        *back,
        *_beginning_anew(held, spec["max_attempts"] + literal_column("1")),
        (spec["claimed_by"], null()),
        (spec["claimed_at"], null()),
    ]


def extending(held: Held, lease: timedelta) -> list[Assignment]:
    return [(held.spec["available_at"], utcnow(lease))]


def _seconds(delay: timedelta) -> ColumnElement[float]:
    return bindparam(None, delay.total_seconds(), type_=Float(53))
