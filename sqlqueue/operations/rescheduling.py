"""Changes the schedules of recurring tasks, and ends their recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from .._support.exc import ArgumentError
from ..kinds.recurring import planning, stopping
from ..lifecycle.kind import recurs
from ..model.mixins import QueueMixin
from ..queue.schedules import Schedule, parse, text_of
from ..queue.spec import Criterion, QueueSpec, Where, spec_of
from ..sql.changes import Assignment
from ..sql.clock import utcnow
from ..sql.criteria import only
from ..sql.states import is_final, is_held
from ..transaction.connection import AnySession, open_, session_of
from ..transaction.ledger import ledger_of
from ..transaction.notifications import announce
from .bulk import change
from .session_criteria import within


def reschedule(
    session: AnySession,
    entity: type[QueueMixin],
    *where: Where,
    schedule: Schedule | str | None = None,
    drift: bool | None = None,
) -> int:
    """Give tasks that satisfy ``where`` a ``schedule``, or restart them on the one they have. Return how many.

    Waiting and ended tasks run next at the schedule's first time from now on.  A running task continues, and its next
    run follows the new schedule.  ``drift``: see :class:`.RecurringMixin`.  Without a ``schedule``, tasks that have
    none are not changed.  Runs in the session's transaction.  Raises :class:`.ArgumentError` for an invalid schedule.
    """
    spec = recurring_spec(entity)
    session = session_of(session)
    text = None if schedule is None else text_of(schedule)
    given: list[Assignment] = [] if drift is None else [(spec["drift"], drift)]
    chosen = only(spec, *within(session, spec, where))
    if text is not None:
        changed = plan(session, spec, chosen, text, [*given, (spec["schedule"], text)])
    else:
        own = schedules(session, spec, chosen)
        changed = sum(plan(session, spec, chosen & (spec["schedule"] == each), each, given) for each in own)
    if changed:
        announce(session, spec)
    return changed


def unschedule(session: AnySession, entity: type[QueueMixin], *where: Where) -> int:
    """End the recurrence of tasks that satisfy ``where``.  Return how many.

    Waiting tasks become ``cancelled`` and keep their ``schedule``, on which :func:`reschedule` restarts them.  A
    running task loses its schedule and ends like an ordinary task.  Runs in the session's transaction.
    """
    spec = recurring_spec(entity)
    session = session_of(session)
    chosen = only(spec, ~is_final(spec), spec["schedule"].is_not(None), *within(session, spec, where))
    return stop(session, spec, chosen)


def stop(session: Session, spec: QueueSpec, chosen: Criterion, given: Sequence[Assignment] = ()) -> int:
    """End the recurrence of the chosen tasks and apply the assignments in ``given``; return how many."""
    running, mine = is_held(spec), ledger_of(session).locked(spec.table)
    if mine:
        running = or_(running, open_(session, spec).keys.key_in(spec, mine))
    return change(session, spec, chosen, [*given, *stopping(spec, running)])


def plan(session: Session, spec: QueueSpec, chosen: Criterion, text: str, given: Sequence[Assignment]) -> int:
    """Schedule the next run for a schedule's first time from now on, and apply ``given``; return how many changed."""
    return change(session, spec, chosen, planning(spec, first_run(session, spec, text), given))


def schedules(session: Session, spec: QueueSpec, chosen: Criterion) -> Sequence[str]:
    """Return the different schedules of the chosen tasks."""
    own = select(spec["schedule"]).where(chosen, spec["schedule"].is_not(None)).distinct()
    found: Sequence[str] = open_(session, spec).rows.execute(session, spec, own).scalars().all()
    return found


def first_run(session: Session, spec: QueueSpec, text: str) -> datetime:
    """Return a schedule's first time from now on, by the database's clock."""
    schedule = parse(text)
    now: datetime = open_(session, spec).rows.execute(session, spec, select(utcnow())).scalar_one()
    return schedule.after(now)


def recurring_spec(entity: type[QueueMixin]) -> QueueSpec:
    """Return a model's queue; raise :class:`.ArgumentError` if its tasks cannot recur."""
    spec = spec_of(entity)
    if not recurs(spec):
        raise ArgumentError(f"{entity.__name__} has no schedules: derive it from RecurringMixin")
    return spec
