"""Makes tasks available again: retry, rerun, run_now, and the same for many tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import and_, case, null, or_, select
from sqlalchemy.orm import Session

from ..lifecycle.transitions import replace_assignments, retry_assignments
from ..model.companions import latches_of
from ..model.declaration import QueueMixin, check_values
from ..queue.options import FINAL, Status
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..sql import Assignment, is_abandoned, is_available, is_early, is_final, only, state, utcnow
from ..transaction import Access, AnySession, announce, open_, session_of, within
from .bulk import BATCH, Batch, Reactivated, change, end_all, in_batches, limited
from .conflicts import is_taken, warn_of_taken, with_free_keys
from .latches import MOST, Latches
from .recording import ABANDONED
from .schedules import plan, schedules
from .settling import cancel, discard

# -- makes tasks available again: failed ones, and finished ones that are to run again --------------------------------

Step: TypeAlias = tuple[Criterion, Callable[[Criterion], int]]
"""Rows, and the function that makes those that satisfy a criterion available, and returns how many."""


def retry(session: AnySession, entity: type[QueueMixin], *where: Where, limit: int | None = None) -> Reactivated:
    """Make ``retryable``, ``discarded`` and abandoned tasks that satisfy ``where`` ``available``.  Return how many.

    Each gets the model's full number of attempts again.  An abandoned task is one whose lease has expired; its claimer
    has lost the claim even if it resumes.  A discarded task whose ``unique_key`` another task has by now stays as it
    is, as ``taken`` of the result and a warning say.  For the transaction, its locks and ``limit`` see :func:`cancel`.

    A batch that has ended with the failure of such a task is unfinished again, and what the failure has cancelled, or
    made unnecessary, waits again, except tasks whose ``unique_key`` another one has by now, which a warning names. What
    it has started stays as it is.
    """
    spec, session = spec_of(entity), session_of(session)
    ended = spec["status"].in_([state(status) for status in (Status.RETRYABLE, Status.DISCARDED)])
    failed = or_(ended, is_abandoned(spec))
    redrive: Callable[[Criterion], int] = partial(end_all, session, spec, values=retry_assignments(spec), end=ABANDONED)
    members = partial(_redrive_members, session, spec, redrive=redrive)
    among = (Status.RETRYABLE, Status.RUNNING, Status.DISCARDED)
    return _reactivate(
        session,
        spec,
        only(spec, failed, *within(session, spec, where)),
        limit,
        members if latches_of(spec) is not None else lambda chosen: [(chosen, redrive)],
        among=among,
    )


def _redrive_members(
    session: Session, spec: QueueSpec, chosen: Criterion, redrive: Callable[[Criterion], int]
) -> Iterator[Step]:
    """Retry tasks, under the locks of the latches to which they report: whatever these show, others may be about to
    open them."""
    latches = Latches.of(session, spec, Access.CHANGE)
    latch, rows, width = spec["reports_to"], latches.adapter.rows, len(spec.primary_key)
    yield and_(chosen, latch.is_(None)), redrive
    asked = select(*spec.primary_key, latch).where(chosen, latch.is_not(None))
    found = rows.execute(session, spec, asked).all()
    size = min(MOST, rows.most(spec))
    for start in range(0, len(found), size):
        some = found[start : start + size]
        held = sorted({row[width] for row in some})
        latches.hold(held)
        mine = rows.key_in(spec, [tuple(row[:width]) for row in some])
        yield and_(mine, chosen, latch.in_(held)), redrive
        latches.reopen(held)
    latches.reread()


def rerun(session: AnySession, entity: type[QueueMixin], *where: Where, limit: int | None = None) -> Reactivated:
    """Make final tasks that satisfy ``where`` ``available``, to run again.  Return how many.

    These are ``completed``, ``cancelled`` and ``discarded`` tasks, and rows from before the table became a queue; no
    other task is changed.  Each gets the model's full number of attempts.  A task of a :class:`.StageMixin` starts at
    its first stage; one with a ``schedule`` is scheduled for its next time.  A task whose ``unique_key`` another task
    has by now stays as it is, as ``taken`` of the result and a warning say.  For the transaction, its locks and
    ``limit`` see :func:`cancel`.

    To run a task once more that may be running now, use :func:`enqueue` with ``on_conflict="rerun"``.
    """
    spec, session = spec_of(entity), session_of(session)
    ended = only(spec, is_final(spec), *within(session, spec, where))
    return _reactivate(session, spec, ended, limit, partial(_anew, session, spec), among=FINAL)


def _anew(session: Session, spec: QueueSpec, chosen: Criterion) -> Iterator[Step]:
    again = replace_assignments(spec, (), lambda _: null(), rerun=False)
    begin = partial(change, session, spec, assignments=again)
    if not spec.recurs:
        yield chosen, begin
        return
    for text in schedules(session, spec, chosen):
        yield and_(chosen, spec["schedule"] == text), partial(plan, session, spec, text=text, given=())
    yield and_(chosen, spec["schedule"].is_(None)), begin


def _reactivate(
    session: Session,
    spec: QueueSpec,
    criterion: Criterion,
    limit: int | None,
    steps: Callable[[Criterion], Iterable[Step]],
    *,
    among: Collection[Status],
) -> Reactivated:
    """Carry out ``steps`` for the rows that satisfy ``criterion``, except those whose key another task has."""
    taken: list[Identity] = []

    def reactivate(some: Criterion) -> int:
        changed = 0
        for chosen, step in steps(some):
            done, left = with_free_keys(session, spec, chosen, step)
            changed += done
            taken.extend(left)
        return changed

    has_keys = spec.has_unique_keys
    free = ~is_taken(spec) if has_keys else None
    changed = limited(session, spec, criterion, limit, reactivate, among=among, free=free)
    if has_keys and limit is not None and changed < limit:  # the others were not even tried
        left = select(*spec.primary_key).where(criterion, is_taken(spec)).limit(BATCH)
        taken = open_(session, spec, Access.CHANGE).rows.keys(session, spec, left)
    if changed:
        announce(session, spec)
    if taken:
        warn_of_taken(spec, taken)
    return Reactivated(changed, len(taken))


# -- makes waiting tasks due at once ----------------------------------------------------------------------------------

WAITING = (Status.SCHEDULED, Status.RETRYABLE)


def run_now(session: AnySession, entity: type[QueueMixin], *where: Where, limit: int | None = None) -> int:
    """Make tasks that satisfy ``where`` and wait for a later time ``available`` now. Return how many.

    These are ``scheduled`` and ``retryable`` tasks, and ``available`` ones with a later time.  The attempts that they
    have made still count; :func:`retry` allows all attempts again. The next run of a recurring task follows this one.
    ``waiting`` tasks are left: they start when what they wait for has ended, and :func:`why` says what that is.
    For the transaction, its locks and ``limit`` see :func:`cancel`.
    """
    spec = spec_of(entity)
    session = session_of(session)
    waiting = or_(spec["status"].in_([state(status) for status in WAITING]), is_early(spec))
    hastened = limited(
        session,
        spec,
        only(spec, waiting, *within(session, spec, where)),
        limit,
        lambda chosen: change(
            session, spec, chosen, [(spec["status"], state(Status.AVAILABLE)), (spec["available_at"], utcnow())]
        ),
        among=(*WAITING, Status.AVAILABLE),
    )
    if hastened:
        announce(session, spec)
    return hastened


# -- edits of tasks that are not running ------------------------------------------------------------------------------

_PENDING = (Status.AVAILABLE, *WAITING)
EDITABLE = (*_PENDING, Status.CANCELLED, Status.DISCARDED)
"""The states in which columns of the application may be changed: such a task may run, or run again."""


def set_priority(session: AnySession, entity: type[QueueMixin], *where: Where, priority: int) -> int:
    """Change the priority of tasks that satisfy ``where`` and have not begun.  Return how many."""
    spec = spec_of(entity)
    return _edit(session, spec, where, _PENDING, [(spec["priority"], priority)])


def set_time(session: AnySession, entity: type[QueueMixin], *where: Where, time: datetime) -> int:
    """Change when tasks that satisfy ``where`` and have not begun are due.  Return how many.

    Available tasks become ``scheduled``.  The next run of a recurring task follows this one.
    """
    spec = spec_of(entity)
    status = case((is_available(spec), state(Status.SCHEDULED)), else_=spec["status"])
    return _edit(session, spec, where, _PENDING, [(spec["status"], status), (spec["available_at"], time)])


def set_value(session: AnySession, entity: type[QueueMixin], *where: Where, name: str, value: Any) -> int:
    """Change an attribute of tasks that satisfy ``where``, in the states :data:`EDITABLE`.  Return how many."""
    spec = spec_of(entity)
    check_values(spec, {name: value})
    return _edit(session, spec, where, EDITABLE, [(spec.mapper.columns[name], value)])


def _edit(
    session: AnySession,
    spec: QueueSpec,
    where: Sequence[Where],
    states: Collection[Status],
    assignments: Sequence[Assignment],
) -> int:
    session = session_of(session)
    chosen = only(spec, in_states(spec, states, abandoned=False), *within(session, spec, where))
    changed = change(session, spec, chosen, assignments)
    if changed:
        announce(session, spec)
    return changed


# -- changes that operators make to all tasks that match some criteria, in batches that each commit -------------------

_UNFINISHED = tuple(status for status in Status if status not in FINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class MassChange:
    """A change, and the tasks that it applies to."""

    change: Callable[..., int]
    """The operation; takes a session, a model and criteria."""
    states: Collection[Status]
    """The states of the tasks that it changes."""
    abandoned: bool = False
    """Whether it also changes running tasks whose lease has expired."""
    early: bool = False
    """Whether it also changes available tasks with a later time, which count as scheduled."""

    def affected(self, spec: QueueSpec) -> Criterion:
        """Return the criterion of the tasks that it changes."""
        return in_states(spec, self.states, abandoned=self.abandoned, early=self.early)

    def in_batches(self, session: Session, chosen: Mapping[QueueSpec, Sequence[Criterion]]) -> Iterator[Batch]:
        """Change the ``chosen`` tasks of each queue, and commit after each batch."""
        for spec, where in chosen.items():
            affected = only(spec, self.affected(spec), *within(session, spec, where))
            yield from in_batches(
                session, spec, affected, partial(self.change, session, spec.entity, *where), size=BATCH
            )


def in_states(spec: QueueSpec, states: Iterable[Status], *, abandoned: bool, early: bool = False) -> Criterion:
    """Return the criterion of tasks in these states, of abandoned tasks if ``abandoned``, and of available ones with a
    later time if ``early``."""
    found: list[Criterion] = [spec["status"].in_([state(status) for status in states])]
    found += [is_abandoned(spec)] if abandoned else []
    found += [is_early(spec)] if early else []
    return or_(*found) if len(found) > 1 else found[0]


RETRY = MassChange(change=retry, states=(Status.RETRYABLE, Status.DISCARDED), abandoned=True)
RERUN = MassChange(change=rerun, states=FINAL)
CANCEL = MassChange(change=cancel, states=_UNFINISHED)
RUN_NOW = MassChange(change=run_now, states=WAITING, early=True)


def prioritizing(priority: int) -> MassChange:
    """Return the change of the priority of tasks."""
    return MassChange(change=partial(set_priority, priority=priority), states=_PENDING)


def timing(time: datetime) -> MassChange:
    """Return the change of the time at which tasks are due."""
    return MassChange(change=partial(set_time, time=time), states=_PENDING)


def discarding(reason: str) -> MassChange:
    """Return the change that discards tasks, with ``reason`` as their error."""
    change: Callable[..., int] = partial(discard, error=reason)  # type: ignore[assignment]
    return MassChange(change=change, states=_UNFINISHED)
