"""Changes to the schedules of recurring tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from ..claims import ledger_of
from ..clock import utcnow
from ..exc import ArgumentError
from ..lives import planning, stopping
from ..mixins import QueueMixin
from ..schedules import Schedule, parse
from ..spec import Criterion, QueueSpec, Where, spec_of
from ..statements import Assignment, is_final, is_held, only
from ..wakeups import announce
from ._connection import AnySession, open_, session_of
from .sets import change


def reschedule(
    session: AnySession,
    entity: type[QueueMixin],
    *where: Where,
    schedule: Schedule | str | None = None,
    drift: bool | None = None,
) -> int:
    """Give tasks that satisfy ``where`` a ``schedule``, or start them anew by their own; returns how many.

    Those that wait, or have ended, run next at the first time of it from now on.  One that is running goes on, and runs
    next by the new one.  ``drift``: see :class:`.RecurringMixin`.  Without a ``schedule``, tasks that have none of
    their own are left alone.  In the session's transaction.  Raises :class:`.ArgumentError` for what is no schedule.
    """
    spec = _recurring(entity)
    session = session_of(session)
    text = None if schedule is None else str(schedule)
    given: list[Assignment] = [] if drift is None else [(spec["drift"], drift)]
    chosen = only(spec, *where)
    if text is not None:
        changed = _plan(session, spec, chosen, text, [*given, (spec["schedule"], text)])
    else:
        own = select(spec["schedule"]).where(chosen, spec["schedule"].is_not(None)).distinct()
        texts: Any = open_(session, spec).execute(session, spec, own).scalars().all()
        changed = sum(_plan(session, spec, chosen & (spec["schedule"] == each), each, given) for each in texts)
    if changed:
        announce(session, spec)
    return changed


def unschedule(session: AnySession, entity: type[QueueMixin], *where: Where) -> int:
    """End the recurrence of tasks that satisfy ``where``: no further run; returns how many.

    Those that wait are ``cancelled``, and keep their ``schedule``, by which :func:`reschedule` starts them anew.  One
    that is running loses it: it goes on as an ordinary task, which its completion ends.  In the session's transaction.
    """
    spec = _recurring(entity)
    session = session_of(session)
    chosen = only(spec, ~is_final(spec), spec["schedule"].is_not(None), *where)
    running, mine = is_held(spec), ledger_of(session).locked(spec.table)
    if mine:
        running = or_(running, open_(session, spec).key_in(spec, mine))
    return change(session, spec, chosen, stopping(spec, running))


def _plan(session: Session, spec: QueueSpec, chosen: Criterion, text: str, given: list[Assignment]) -> int:
    schedule = parse(text)
    now: datetime = open_(session, spec).execute(session, spec, select(utcnow())).scalar_one()
    return change(session, spec, chosen, planning(spec, schedule.after(now), given))


def _recurring(entity: type[QueueMixin]) -> QueueSpec:
    spec = spec_of(entity)
    if not spec.has("schedule"):
        raise ArgumentError(f"{entity.__name__} has no schedules: derive it from RecurringMixin")
    return spec
