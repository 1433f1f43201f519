"""Operations on sets of tasks, without claims: cancel, discard and rescue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import and_, select
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state, set_committed_value

from .._support import checks
from ..dialects.base import Adapter
from ..lifecycle.fence import Fence
from ..lifecycle.fenced import FencedClaims
from ..lifecycle.kind import holding_slots, kinds_of, recurs, renewed
from ..lifecycle.transitions import ending, finishing
from ..model.history import history_of
from ..model.mixins import QueueMixin
from ..queue.history import AttemptOutcome
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..queue.status import FINAL, Status
from ..sql.changes import Assignment, write
from ..sql.criteria import only
from ..sql.selection import exhausted_picks
from ..sql.states import is_exhausted, is_final, is_held
from ..transaction.connection import Access, AnySession, open_, session_of
from ..transaction.notifications import announce
from .batches import limited
from .duplicates import translating
from .recording import Told, last_claims, record
from .session_criteria import within

CRASHED = "crashed in every attempt: its lease expired each time without a settlement"


def cancel_where(session: Session, spec: QueueSpec, where: Sequence[Where], limit: int | None) -> int:
    """Cancel all tasks that satisfy ``where`` and are not final; return how many."""
    told = Told(AttemptOutcome.CANCELLED)
    return _end_limited(session, spec, where, partial(end_all, values=ending(spec, Status.CANCELLED), told=told), limit)


def discard_where(session: Session, spec: QueueSpec, where: Sequence[Where], text: str, limit: int | None) -> int:
    """Discard all tasks that satisfy ``where`` and are not final; return how many."""
    values, told = [*ending(spec, Status.DISCARDED), (spec["error"], text)], Told(AttemptOutcome.DISCARDED, text)
    return _end_limited(session, spec, where, partial(end_all, values=values, told=told), limit)


def _end_limited(
    session: Session, spec: QueueSpec, where: Sequence[Where], end: Callable[..., int], limit: int | None
) -> int:
    unfinished = only(spec, ~is_final(spec), *within(session, spec, where))
    among = [status for status in Status if status not in FINAL]
    return limited(session, spec, unfinished, limit, partial(end, session, spec), among=among)


def end_all(session: Session, spec: QueueSpec, chosen: Criterion, values: Sequence[Assignment], told: Told) -> int:
    """End the chosen tasks, free the slots that they hold, and record the attempts that this ends."""
    if holding_slots(spec) is None and history_of(spec.table.metadata) is None:
        return change(session, spec, chosen, values)
    waiting = change(session, spec, and_(chosen, ~is_held(spec)), values)
    # some of these may have returned to waiting since
    return waiting + _end_running(session, spec, chosen, values, told)


def _end_running(session: Session, spec: QueueSpec, chosen: Criterion, values: Sequence[Assignment], told: Told) -> int:
    """Write ``values`` to the chosen tasks, free the slots that they hold, and record the attempts that this ends.

    The attempts, which identify the holder of a slot, are read after the rows are locked: until then, a task may be
    released and claimed again.
    """
    adapter, ended = open_(session, spec, Access.CHANGE), 0

    def end(some: Sequence[Identity], criterion: Criterion) -> list[Identity]:
        writing = write(spec, and_(adapter.keys.key_in(spec, some), criterion), values)
        return list(adapter.rows.change(session, spec, writing, some))

    for some in adapter.keys.batches(spec, adapter.rows.keys(session, spec, select(*spec.primary_key).where(chosen))):
        changed = end(some, and_(chosen, is_held(spec)))
        if changed:
            claims = last_claims(adapter, session, spec, adapter.keys.key_in(spec, changed))
            for kind in kinds_of(spec):
                kind.settled(adapter, session, spec, claims)
            record(adapter, session, claims, told)
        rest = set(some).difference(changed)  # these may have returned to waiting
        ended += len(changed) + (len(end(list(rest), chosen)) if rest else 0)
    if ended:
        announce(session, spec)
        _reread(session, adapter, spec)
    return ended


def rescue(session: AnySession, entity: type[QueueMixin], *, limit: int | None = None) -> int:
    """Discard tasks whose claimers crashed in every attempt, with an error that says so.  Returns how many.

    Recurring tasks are not discarded: their next run is scheduled, with that error; locked ones are left to the next
    call.  A crashed task with attempts left needs no rescue: it can be claimed as soon as its lease expires.  For the
    transaction, its locks and ``limit`` see :func:`cancel`.
    """
    spec = spec_of(entity)
    session = session_of(session)
    values = finishing(Fence(spec=spec), Status.DISCARDED, error=CRASHED)
    if recurs(spec):
        return _rescue_recurring(session, spec, values, limit)
    crashed = only(spec, is_exhausted(spec), *within(session, spec))
    discard = partial(end_all, session, spec, values=values, told=Told(AttemptOutcome.CRASHED, CRASHED))
    return limited(session, spec, crashed, limit, discard, among=(Status.RUNNING,))


def _rescue_recurring(session: Session, spec: QueueSpec, values: Sequence[Assignment], limit: int | None) -> int:
    """Rescue recurring tasks in batches of one statement, each of which locks the rows that it reschedules."""
    if limit is not None:
        checks.count("limit", limit)
    adapter = open_(session, spec, Access.CLAIM)
    rescued = 0
    while limit is None or rescued < limit:
        number = adapter.keys.most(spec) if limit is None else min(limit - rescued, adapter.keys.most(spec))
        changed = _renew_crashed(adapter, session, spec, values, number)
        rescued += changed
        if changed < number:
            break
    return rescued


def _renew_crashed(
    adapter: Adapter, session: Session, spec: QueueSpec, values: Sequence[Assignment], number: int
) -> int:
    crashed = exhausted_picks(spec, within(session, spec), by_claims=adapter.schema.indexes_all)
    keys = adapter.claims.lock(session, crashed(number))
    if not keys:
        return 0
    claims = last_claims(adapter, session, spec, adapter.keys.key_in(spec, keys))
    mine, others = renewed(FencedClaims(adapter, session, Fence(spec=spec), claims), [(spec["error"], CRASHED)])
    others.write(values)
    record(adapter, session, claims, Told(AttemptOutcome.CRASHED, CRASHED))
    return len(mine)


def change(session: Session, spec: QueueSpec, criterion: Criterion, assignments: Any) -> int:
    """Update all rows that satisfy ``criterion``, and read the instances of this session anew.  Return how many."""
    adapter = open_(session, spec, Access.CHANGE)  # with an old snapshot, MariaDB and PostgreSQL change no row
    with translating(adapter, spec):
        changed = adapter.rows.sweep(session, spec, write(spec, criterion, assignments))
    _reread(session, adapter, spec)
    return changed


def _reread(session: Session, adapter: Adapter, spec: QueueSpec) -> None:
    """Show the new values in the instances of this session, any of which may have changed: asyncio cannot load them
    lazily."""
    status = spec.attributes["status"]
    tasks = {spec.identity_of(task): task for task in session.identity_map.values() if isinstance(task, spec.entity)}
    loaded = [key for key, task in tasks.items() if status in instance_state(task).dict]
    names = [spec.attributes[role] for role in spec.columns]
    for some in adapter.keys.batches(spec, loaded):
        read = select(*spec.primary_key, *spec.columns.values()).where(adapter.keys.key_in(spec, some))
        rows: Any = adapter.rows.execute(session, spec, adapter.keys.by_key(spec, read))
        width = len(spec.primary_key)
        for row in rows:
            task = tasks.pop(tuple(row[:width]))
            for name, value in zip(names, row[width:], strict=True):
                set_committed_value(task, name, value)
    for task in tasks.values():
        session.expire(task, names)
