"""What is not bound to a claim: whole sets of tasks, and their failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Executable, and_, func, literal_column, or_, select
from sqlalchemy.orm import Session

from ..checks import count, duration
from ..claims import Claim
from ..clock import utcnow
from ..exc import ArgumentError
from ..lives import redriving
from ..mixins import QueueMixin
from ..spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..statements import Assignment, is_exhausted, is_final, is_held, is_hung, only, picks, remove, state, write
from ..states import Status
from ..transitions import Held, ending, finishing
from ..wakeups import announce
from ._connection import AnySession, open_, session_of
from ._duplicates import translating
from .applying import updating
from .recurring import Renewals
from .slots import Slots

CRASHED = "crashed in every attempt: its lease ended each time with nothing settled"


def retry(session: AnySession, entity: type[QueueMixin], *where: Where) -> int:
    """Redrive: tasks that are ``retryable``, ``discarded`` or hung and satisfy ``where`` are ``available`` now.

    Each gets the model's full number of attempts again.  In the session's transaction; returns how many.  A hung task
    is one whose lease has ended: its claimer, should it come back, has lost it.  :class:`.DuplicateTaskError` if
    another task has taken the ``unique_key`` of a discarded one.
    """
    spec = spec_of(entity)
    failed = or_(spec["status"].in_([state(status) for status in (Status.RETRYABLE, Status.DISCARDED)]), is_hung(spec))
    session = session_of(session)
    redriven = change(session, spec, only(spec, failed, *where), redriving(spec))
    if redriven:
        announce(session, spec)
    return redriven


def cancel_where(session: Session, spec: QueueSpec, where: Sequence[Where]) -> int:
    """All tasks that satisfy ``where`` and are not final are ``cancelled``."""
    return _end(session, spec, where, ending(spec, Status.CANCELLED))


def discard_where(session: Session, spec: QueueSpec, where: Sequence[Where], text: str) -> int:
    """All tasks that satisfy ``where`` and are not final are ``discarded``."""
    return _end(session, spec, where, [*ending(spec, Status.DISCARDED), (spec["error"], text)])


def _end(session: Session, spec: QueueSpec, where: Sequence[Where], values: Sequence[Assignment]) -> int:
    """Those that hold slots give them up with that."""
    chosen = only(spec, ~is_final(spec), *where)
    if spec.options.slots is None:
        return change(session, spec, chosen, values)
    waiting = change(session, spec, and_(chosen, ~is_held(spec)), values)
    running = Slots(session, open_(session, spec), spec).end(chosen, values)
    if running:
        announce(session, spec)
    return waiting + running + change(session, spec, chosen, values)  # what has changed hands in the meantime


def rescue(session: AnySession, entity: type[QueueMixin]) -> int:
    """Discard tasks whose claimers crashed in every attempt, with an error that says so; returns how many.

    Recurring ones are not discarded: their next run is scheduled, with that error.  A crashed task with attempts left
    needs no rescue: it can be claimed as soon as its lease ends.
    """
    spec = spec_of(entity)
    values = finishing(Held(spec=spec), Status.DISCARDED, error=CRASHED)
    if spec.has("schedule"):
        return _rescue_recurring(session_of(session), spec, values)
    return change(session_of(session), spec, only(spec, is_exhausted(spec)), values)


def _rescue_recurring(session: Session, spec: QueueSpec, values: Sequence[Assignment]) -> int:
    adapter = open_(session, spec, claims=True)
    _, due = picks(spec, (), ())
    keys = adapter.lock(session, replace(due(adapter.batch), state=(is_exhausted(spec),)))
    if not keys:
        return 0
    read = select(*spec.primary_key, spec["attempt"]).where(adapter.key_in(spec, keys))
    rows = adapter.execute(session, spec, adapter.by_key(spec, read))
    claims = [Claim(spec.entity, tuple(row[:-1]), row[-1]) for row in rows]
    renewals = Renewals(adapter, session, Held(spec=spec))
    return len(renewals.renew(claims, [(spec["error"], CRASHED)], updating(lambda *_: values)))


def prune(
    session: AnySession, entity: type[QueueMixin], older_than: timedelta | None = None, *, limit: int | None = None
) -> int:
    """Delete final tasks that became so longer than ``older_than`` ago; if not given, as the model says.

    That is by its ``retention``, and by its ``discarded_retention`` for dead letters if it has one.  At most ``limit``
    of them, for transactions that stay short.  In the session's transaction; returns how many.
    """
    spec = spec_of(entity)
    session = session_of(session)
    if older_than is not None:
        duration("older_than", older_than, zero=True)
    if limit is not None:
        count("limit", limit)
    old = only(spec, is_final(spec), is_old(spec, older_than))
    adapter = open_(session, spec)
    if any(len(mapper.tables) > 1 for mapper in spec.mapper.self_and_descendants):
        return _delete_instances(session, spec, old, limit)
    return adapter.sweep(session, spec, remove(spec, old), limit)


def is_old(spec: QueueSpec, older_than: timedelta | None) -> Criterion:
    """Final for so long, or for as long as the model says; :class:`.ArgumentError` if it does not."""
    age = spec.options.retention if older_than is None else older_than
    dead_age = spec.options.discarded_retention if older_than is None else None
    ages = [each for each in (age, dead_age) if each is not None]
    if not ages:
        raise ArgumentError(
            f"{spec.entity.__name__} has no retention: give older_than=timedelta(...), or QueueOptions(retention=...)"
        )
    if dead_age is None:
        return spec["finished_at"] <= utcnow(-ages[0])
    is_dead = spec["status"] == state(Status.DISCARDED)
    dead = and_(is_dead, spec["finished_at"] <= utcnow(-dead_age))
    return dead if age is None else or_(and_(~is_dead, spec["finished_at"] <= utcnow(-age)), dead)


def _delete_instances(session: Session, spec: QueueSpec, criterion: Criterion, limit: int | None) -> int:
    """The rows of an inheriting class are in several tables; the mapper knows the order in which they go."""
    tasks = session.scalars(select(spec.entity).where(criterion).limit(limit)).all()
    for task in tasks:
        session.delete(task)
    session.flush()
    return len(tasks)


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failures with the same text: how many tasks, and when the first and the last of them was claimed."""

    message: str
    count: int
    first_seen: datetime | None
    last_seen: datetime | None
    example: Identity
    """The primary key of one of them, the last by key."""


def errors(session: AnySession, entity: type[QueueMixin], *where: Where) -> list[ErrorGroup]:
    """The failures of tasks that are not completed, grouped by their text, the most frequent first."""
    spec = spec_of(entity)
    session = session_of(session)
    adapter = open_(session, spec)
    statement = _grouped(
        spec, only(spec, spec["error"].is_not(None), spec["status"] != state(Status.COMPLETED), *where)
    )
    rows: Any = adapter.execute(session, spec, statement)
    return [ErrorGroup(text, tasks, first, last, tuple(key)) for text, tasks, first, last, *key in rows]


def _grouped(spec: QueueSpec, criterion: Criterion) -> Executable:
    # by window functions and not GROUP BY, so that the example is a row's whole key, however many columns it has
    alike: Any = {"partition_by": spec["error"]}
    claimed = spec["claimed_at"]
    failures = (
        select(
            spec["error"].label("message"),
            func.count().over(**alike).label("tasks"),
            func.min(claimed).over(**alike).label("first_seen"),
            func.max(claimed).over(**alike).label("last_seen"),
            *(column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)),
            func.row_number().over(**alike, order_by=[key.desc() for key in spec.primary_key]).label("position"),
        )
        .where(criterion)
        .subquery("failures")
    )
    *shown, position = failures.c
    return select(*shown).where(position == literal_column("1")).order_by(failures.c.tasks.desc(), failures.c.message)


def change(session: Session, spec: QueueSpec, criterion: Criterion, assignments: Any) -> int:
    """Update all rows that satisfy ``criterion``; instances of this session show it when they are next looked at."""
    adapter = open_(session, spec, meets=True)  # of an older snapshot, MariaDB and PostgreSQL would change no row
    with translating(adapter, spec):
        count = adapter.sweep(session, spec, write(spec, criterion, assignments))
    for task in session:
        if isinstance(task, spec.entity):
            session.expire(task, list(spec.attributes.values()))
    return count
