"""What is not bound to a claim: whole sets of tasks, and their failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Executable, and_, func, literal_column, or_, select
from sqlalchemy.orm import Session

from .._support import checks
from .._support.claim import Claim
from ..dialects.base import Adapter
from ..lifecycle.fenced import Fenced
from ..lifecycle.held import Held
from ..lifecycle.kind import holding_slots, recurs, renewed
from ..lifecycle.reactivation import redriving
from ..lifecycle.transitions import ending, finishing
from ..model.mixins import QueueMixin
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..queue.status import FINAL, Status
from ..sql.selection import (
    Assignment,
    exhausted_picks,
    is_exhausted,
    is_final,
    is_held,
    is_hung,
    only,
    state,
    write,
)
from ..transaction.connection import Access, AnySession, open_, session_of
from ..transaction.notifications import announce
from .batches import limited
from .duplicates import translating
from .session_criteria import within

CRASHED = "crashed in every attempt: its lease ended each time with nothing settled"


def retry(session: AnySession, entity: type[QueueMixin], *where: Where, limit: int | None = None) -> int:
    """Retry tasks that are ``retryable``, ``discarded`` or hung and satisfy ``where``: they are ``available`` now.
    Returns how many.

    Each gets the model's full number of attempts again.  A hung task is one whose lease has expired; its claimer,
    should it come back, has lost it.  Raises :class:`.DuplicateTaskError` if another task has taken the ``unique_key``
    of a discarded one.  For the transaction, its locks and ``limit`` see :func:`cancel`.
    """
    spec = spec_of(entity)
    failed = or_(spec["status"].in_([state(status) for status in (Status.RETRYABLE, Status.DISCARDED)]), is_hung(spec))
    session = session_of(session)
    redriven = limited(
        session,
        spec,
        only(spec, failed, *within(session, spec, where)),
        limit,
        lambda chosen: change(session, spec, chosen, redriving(spec)),
        among=(Status.RETRYABLE, Status.RUNNING, Status.DISCARDED),
    )
    if redriven:
        announce(session, spec)
    return redriven


def cancel_where(session: Session, spec: QueueSpec, where: Sequence[Where], limit: int | None) -> int:
    """Make tasks that satisfy ``where`` and are not final ``cancelled``; returns how many."""
    return _end_limited(session, spec, where, ending(spec, Status.CANCELLED), limit)


def discard_where(session: Session, spec: QueueSpec, where: Sequence[Where], text: str, limit: int | None) -> int:
    """Make tasks that satisfy ``where`` and are not final ``discarded``; returns how many."""
    return _end_limited(session, spec, where, [*ending(spec, Status.DISCARDED), (spec["error"], text)], limit)


def _end_limited(
    session: Session, spec: QueueSpec, where: Sequence[Where], values: Sequence[Assignment], limit: int | None
) -> int:
    unfinished = only(spec, ~is_final(spec), *within(session, spec, where))
    among = [status for status in Status if status not in FINAL]
    return limited(session, spec, unfinished, limit, lambda some: _end(session, spec, some, values), among=among)


def _end(session: Session, spec: QueueSpec, chosen: Criterion, values: Sequence[Assignment]) -> int:
    """Those that hold slots give them up with that."""
    holding = holding_slots(spec)
    if holding is None:
        return change(session, spec, chosen, values)
    waiting = change(session, spec, and_(chosen, ~is_held(spec)), values)
    # or waiting again, in the meantime
    running = holding.end_running(open_(session, spec), session, spec, chosen, values)
    if running:
        announce(session, spec)
        _expire(session, spec)
    return waiting + running


def rescue(session: AnySession, entity: type[QueueMixin], *, limit: int | None = None) -> int:
    """Discard tasks whose claimers crashed in every attempt, with an error that says so.  Returns how many.

    Recurring tasks are not discarded: their next run is scheduled, with that error; those that others have locked are
    left to the next call.  A crashed task with attempts left needs no rescue: it can be claimed as soon as its lease
    expires.  For the transaction, its locks and ``limit`` see :func:`cancel`.
    """
    spec = spec_of(entity)
    session = session_of(session)
    values = finishing(Held(spec=spec), Status.DISCARDED, error=CRASHED)
    if recurs(spec):
        return _rescue_recurring(session, spec, values, limit)
    crashed = only(spec, is_exhausted(spec), *within(session, spec))
    discard = partial(change, session, spec, assignments=values)
    return limited(session, spec, crashed, limit, discard, among=(Status.RUNNING,))


def _rescue_recurring(session: Session, spec: QueueSpec, values: Sequence[Assignment], limit: int | None) -> int:
    """A statement's worth at a time, each of which locks what it renews."""
    if limit is not None:
        checks.count("limit", limit)
    adapter = open_(session, spec, Access.CLAIM)
    rescued = 0
    while limit is None or rescued < limit:
        number = adapter.keys.most(spec) if limit is None else min(limit - rescued, adapter.keys.most(spec))
        renewed = _renew_crashed(adapter, session, spec, values, number)
        rescued += renewed
        if renewed < number:
            break
    return rescued


def _renew_crashed(
    adapter: Adapter, session: Session, spec: QueueSpec, values: Sequence[Assignment], number: int
) -> int:
    crashed = exhausted_picks(spec, within(session, spec), by_claims=adapter.schema.indexes_all)
    keys = adapter.claims.lock(session, crashed(number))
    if not keys:
        return 0
    read = select(*spec.primary_key, spec["attempt"], spec["claim_token"]).where(adapter.keys.key_in(spec, keys))
    rows: Any = adapter.rows.execute(session, spec, adapter.keys.by_key(spec, read))
    claims = [Claim(spec.entity, tuple(identity), attempt, token) for *identity, attempt, token in rows]
    mine, ending = renewed(Fenced(adapter, session, Held(spec=spec), claims), [(spec["error"], CRASHED)])
    ending.write(values)
    return len(mine)


LAST = 20_000
"""Failures that are looked at to group them."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failures with the same text: the number of tasks, and when the first and the last of them was claimed."""

    message: str
    """The text of the error."""
    count: int
    """How many tasks failed with it."""
    first_seen: datetime | None
    """When the first of them was claimed."""
    last_seen: datetime | None
    """When the last of them was claimed."""
    example: Identity
    """The primary key of one of them, the last by key."""
    capped: bool = False
    """Whether there are more failures than were looked at, so that ``count`` is a lower bound."""


def errors(session: AnySession, entity: type[QueueMixin], *where: Where, cap: int | None = LAST) -> list[ErrorGroup]:
    """Return the failures of tasks that are not completed, grouped by their text, the most frequent first.

    Exact while there are fewer than ``cap`` failures.  Of more, the last ``cap`` by primary key are read, and
    :attr:`ErrorGroup.capped` says so.  ``cap=None`` reads all.  One query, which locks nothing.
    """
    spec = spec_of(entity)
    session = session_of(session)
    if cap is not None:
        checks.count("cap", cap)
    adapter = open_(session, spec)
    failed = (spec["error"].is_not(None), spec["status"] != state(Status.COMPLETED))
    statement = _grouped(spec, only(spec, *failed, *within(session, spec, where)), cap)
    rows: Any = adapter.rows.execute(session, spec, statement).all()
    is_capped = cap is not None and sum(row.tasks for row in rows) >= cap
    return [ErrorGroup(text, tasks, first, last, tuple(key), is_capped) for text, tasks, first, last, *key in rows]


def _grouped(spec: QueueSpec, criterion: Criterion, cap: int | None) -> Executable:
    key = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
    found = select(spec["error"].label("message"), spec["claimed_at"].label("claimed_at"), *key).where(criterion)
    if cap is not None:
        found = found.order_by(*(column.desc() for column in spec.primary_key)).limit(cap)
    last = found.cte("last_failures")
    # the example is the whole key of a row, however many columns that has; the moments are none of a window, to which
    # MariaDB gives a time that grows with the square of the rows
    newest = [last.c[column.name].desc() for column in key]
    position = func.row_number().over(partition_by=last.c.message, order_by=newest).label("position")
    examples = select(last, position).subquery("examples")
    tasks, first, last_seen = func.count(), func.min(last.c.claimed_at), func.max(last.c.claimed_at)
    groups = (
        select(last.c.message, tasks.label("tasks"), first.label("first_seen"), last_seen.label("last_seen"))
        .group_by(last.c.message)
        .subquery("message_groups")
    )
    return (
        select(*groups.c, *(examples.c[column.name] for column in key))
        .join_from(groups, examples, examples.c.message == groups.c.message)
        .where(examples.c.position == literal_column("1"))
        .order_by(groups.c.tasks.desc(), groups.c.message)
    )


def change(session: Session, spec: QueueSpec, criterion: Criterion, assignments: Any) -> int:
    """Update all rows that satisfy ``criterion``, and expire their instances in this session.  Returns how many."""
    adapter = open_(session, spec, Access.CHANGE)  # of an older snapshot, MariaDB and PostgreSQL would change no row
    with translating(adapter, spec):
        changed = adapter.rows.sweep(session, spec, write(spec, criterion, assignments))
    _expire(session, spec)
    return changed


def _expire(session: Session, spec: QueueSpec) -> None:
    for task in session:
        if isinstance(task, spec.entity):
            session.expire(task, list(spec.attributes.values()))
