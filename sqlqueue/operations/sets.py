"""What is not bound to a claim: whole sets of tasks, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import Executable, case, func, literal_column, select
from sqlalchemy.orm import Session

from ..checks import count, duration
from ..clock import utcnow
from ..exc import ArgumentError
from ..mixins import QueueMixin
from ..spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..statements import is_exhausted, is_final, is_hung, only, remove, state, write
from ..states import FINAL, Status
from ..transitions import Held, ending, finishing, redriving
from ..wakeups import announce
from ._connection import AnySession, open_, session_of

CRASHED = "crashed in every attempt: its lease ended each time with nothing settled"


def retry(session: AnySession, entity: type[QueueMixin], *where: Where) -> int:
    """Redrive: tasks that are ``retryable`` or ``discarded`` and satisfy ``where`` are ``available`` now.

    Each gets the model's full number of attempts again.  In the session's transaction; returns how many.
    """
    spec = spec_of(entity)
    failed = spec["status"].in_([state(status) for status in (Status.RETRYABLE, Status.DISCARDED)])
    session = session_of(session)
    redriven = _change(session, spec, only(spec, failed, *where), redriving(spec))
    if redriven:
        announce(session, spec)
    return redriven


def cancel_where(session: Session, spec: QueueSpec, where: Sequence[Where]) -> int:
    """All tasks that satisfy ``where`` and are not final are ``cancelled``."""
    return _change(session, spec, only(spec, ~is_final(spec), *where), ending(spec, Status.CANCELLED))


def discard_where(session: Session, spec: QueueSpec, where: Sequence[Where], text: str) -> int:
    """All tasks that satisfy ``where`` and are not final are ``discarded``."""
    values = [*ending(spec, Status.DISCARDED), (spec["error"], text)]
    return _change(session, spec, only(spec, ~is_final(spec), *where), values)


def rescue(session: AnySession, entity: type[QueueMixin]) -> int:
    """Discard tasks whose claimers crashed in every attempt, with an error that says so; returns how many.

    A crashed task with attempts left needs no rescue: it can be claimed as soon as its lease ends.
    """
    spec = spec_of(entity)
    values = [*finishing(Held(spec=spec), Status.DISCARDED), (spec["error"], CRASHED)]
    return _change(session_of(session), spec, only(spec, is_exhausted(spec)), values)


def prune(
    session: AnySession, entity: type[QueueMixin], older_than: timedelta | None = None, *, limit: int | None = None
) -> int:
    """Delete final tasks that became so longer than ``older_than`` ago, the model's ``retention`` if not given.

    Dead letters included; at most ``limit`` of them, for transactions that stay short.  In the session's transaction;
    returns how many.
    """
    spec = spec_of(entity)
    session = session_of(session)
    age = spec.options.retention if older_than is None else older_than
    if age is None:
        raise ArgumentError(
            f"{entity.__name__} has no retention: give older_than=timedelta(...), or QueueOptions(retention=...)"
        )
    duration("older_than", age, zero=True)
    if limit is not None:
        count("limit", limit)
    adapter = open_(session, spec)
    old = only(spec, is_final(spec), spec["finished_at"] <= utcnow(-age))
    if any(len(mapper.tables) > 1 for mapper in spec.mapper.self_and_descendants):
        return _delete_instances(session, spec, old, limit)
    return adapter.sweep(session, spec, remove(spec, old), limit)


def _delete_instances(session: Session, spec: QueueSpec, criterion: Criterion, limit: int | None) -> int:
    """The rows of an inheriting class are in several tables; the mapper knows the order in which they go."""
    tasks = session.scalars(select(spec.entity).where(criterion).limit(limit)).all()
    for task in tasks:
        session.delete(task)
    session.flush()
    return len(tasks)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many tasks there are in each state."""

    counts: Mapping[Status, int]
    hung: int = 0
    """How many of those that are running have been so for longer than their lease."""

    def __getitem__(self, status: str) -> int:
        return self.counts[Status(status)]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def unfinished(self) -> int:
        return sum(count for status, count in self.counts.items() if status not in FINAL)


def stats(session: AnySession, entity: type[QueueMixin], *where: Where) -> QueueStats:
    """The number of tasks in each state, those without any included."""
    spec = spec_of(entity)
    session = session_of(session)
    adapter = open_(session, spec)
    hung = func.count(case((is_hung(spec), literal_column("1"))))
    counted = select(spec["status"], func.count(), hung).where(only(spec, spec["status"].is_not(None), *where))
    rows: Any = adapter.execute(session, spec, counted.group_by(spec["status"])).all()
    found = {Status(name): number for name, number, _ in rows}
    return QueueStats(MappingProxyType(dict.fromkeys(Status, 0) | found), sum(number for *_, number in rows))


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


def _change(session: Session, spec: QueueSpec, criterion: Criterion, assignments: Any) -> int:
    """Update all rows that satisfy ``criterion``; instances of this session show it when they are next looked at."""
    adapter = open_(session, spec)
    count = adapter.sweep(session, spec, write(spec, criterion, assignments))
    for task in session:
        if isinstance(task, spec.entity):
            session.expire(task, list(spec.attributes.values()))
    return count
