"""What a worker asks and does between claims and settlements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import and_, func, literal_column, null, select
from sqlalchemy.orm import Session

from .._support.checks import count
from .._support.claim import Claim
from ..dialects.base import Adapter
from ..lifecycle.fenced import Fenced
from ..lifecycle.held import Held
from ..lifecycle.kind import kinds_of, recurs
from ..lifecycle.transitions import earlier_attempts
from ..model.mixins import QueueMixin
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.selection import (
    Pick,
    exhausted_picks,
    has_come,
    is_available,
    is_due,
    is_early,
    picks,
    present_status,
    state,
    write,
)
from ..transaction.connection import Access, AnySession, open_, session_of
from .session_criteria import within
from .settlements import Extending
from .settling import settle_some


def next_due(session: AnySession, entity: type[QueueMixin], *where: Where) -> timedelta | None:
    """Return the time until a claim may find a task: zero if it may now, ``None`` if no task is waiting.

    By the database's clock, in one statement that locks nothing.  Tasks that others are about to claim count.
    """
    return look(session, entity, *where).due


class Look(NamedTuple):
    """The result of :func:`look`."""

    due: timedelta | None
    """See :func:`next_due`."""
    early: bool
    """Whether tasks are available for a later moment: :func:`postpone` is for them.  Unknown if a task is ready."""


def look(session: AnySession, entity: type[QueueMixin], *where: Where) -> Look:
    """Return what :func:`next_due` returns, and whether there is something to postpone, in one statement."""
    spec = spec_of(entity)
    session = session_of(session)
    adapter = open_(session, spec)
    ready, due = (step(1) for step in picks(spec, within(session, spec, where), ()))
    waiting = replace(due, state=(*_waits(spec), spec["attempt"] < spec["max_attempts"]))
    first = ready.select(spec["available_at"]).limit(1).scalar_subquery()
    # looked for only if none is ready: there may be very many of those, and then few others
    early = select(func.min(spec["available_at"])).where(is_early(spec), *ready.where).scalar_subquery()
    moment = waiting.select(spec["available_at"]).limit(1).scalar_subquery()
    asked = select(func.coalesce(first, early, type_=spec["available_at"].type), moment, utcnow())
    row: Any = adapter.rows.execute(session, spec, asked).one()
    available, scheduled, now = row
    waits = [max(each - now, timedelta(0)) for each in (available, scheduled) if each is not None]
    return Look(min(waits, default=None), early=available is not None and available > now)


def promote(session: AnySession, entity: type[QueueMixin], *, limit: int = 1_000) -> int:
    """Make up to ``limit`` scheduled or retryable tasks that have come due ``available``.  Returns how many.

    They keep the time at which they came due, which orders them.  Claims take due tasks too, but only when available
    ones run short; under load, promoting them gives them the place that their priority asks for.  Locked rows are
    skipped.
    """
    spec = spec_of(entity)
    session = session_of(session)
    count("limit", limit)
    adapter = open_(session, spec, Access.CLAIM)
    _, due = picks(spec, within(session, spec), ())
    waits = (*_waits(spec), has_come(spec), present_status(spec) != state(Status.RUNNING))
    pick = replace(due(limit), state=waits)
    keys = adapter.claims.lock(session, pick)
    return sum(_become(Status.AVAILABLE, session, adapter, pick, some) for some in adapter.keys.batches(spec, keys))


def postpone(session: AnySession, entity: type[QueueMixin], *where: Where, limit: int = 1_000) -> int:
    """Make tasks ``scheduled`` that are ``available`` for a later time, as other programs insert them.  Returns how
    many.

    A claim skips such a task, but reads it each time until it is scheduled.  Only the first ``limit`` available tasks
    in claim order by ``where`` are read, without a lock: rows behind claimable tasks delay no claim.  Locked rows are
    skipped.
    """
    spec = spec_of(entity)
    session = session_of(session)
    count("limit", limit)
    adapter = open_(session, spec, Access.CLAIM)
    ready, _ = picks(spec, within(session, spec, where), ())
    keys = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
    available = replace(ready(limit), state=(is_available(spec),))
    first = adapter.locking.looking(available, *keys, spec["available_at"].label("moment")).subquery("first_available")
    early = select(*(first.c[key.name] for key in keys)).where(first.c.moment > utcnow())
    postponed = 0
    for some in adapter.keys.batches(spec, adapter.rows.keys(session, spec, early)):
        named = (adapter.keys.key_in(spec, some),)
        pick = Pick(spec=spec, state=(is_early(spec),), where=named, order=(), limit=len(some), index=None, exact=True)
        locked = adapter.claims.lock(session, pick)
        postponed += _become(Status.SCHEDULED, session, adapter, pick, locked) if locked else 0
    return postponed


def _become(status: Status, session: Session, adapter: Adapter, pick: Pick, keys: Sequence[Identity]) -> int:
    """Give the rows of ``keys``, which ``pick`` has locked, another status; how many."""
    # by more than the key: MySQL would read, and wait for, all rows of a small table whose key alone is asked for
    named = and_(adapter.keys.key_in(pick.spec, keys), *pick.state)
    statement = write(pick.spec, named, [(pick.spec["status"], state(status))])
    return len(adapter.rows.change(session, pick.spec, statement, keys))


class Crashed(NamedTuple):
    """A task whose claimers crashed in every attempt."""

    claim: Claim
    tries: int
    """The number of the last attempt."""
    recurs: bool
    """Whether it has a next run."""


def exhausted(session: Session, entity: type[QueueMixin], *, limit: int) -> list[Crashed]:
    """Return up to ``limit`` tasks that :func:`.rescue` would give up.  Locks nothing."""
    spec = spec_of(entity)
    adapter = open_(session, spec)
    pick = exhausted_picks(spec, within(session, spec), by_claims=adapter.schema.indexes_all)(limit)
    column = earlier_attempts(spec)
    before = literal_column("0") if column is None else column
    schedule = spec["schedule"] if recurs(spec) else null()
    read = pick.select(*spec.primary_key, before, spec["attempt"], schedule).limit(limit)
    rows: Any = adapter.rows.execute(session, spec, read)
    return [
        Crashed(Claim(spec.entity, tuple(identity), attempt), attempt - earlier, text is not None)
        for *identity, earlier, attempt, text in rows
    ]


def still_held(session: Session, claims: Sequence[Claim]) -> set[Claim]:
    """Return those of the claims of one model that hold their rows, as far as can be seen without locks."""
    if not claims:
        return set()
    spec = spec_of(claims[0].entity)
    adapter, held = open_(session, spec), Held(spec=spec)
    found: set[tuple[Any, ...]] = set()
    for some in adapter.keys.batches(spec, claims):
        mine = Fenced(adapter, session, held, some).fence()
        read = select(*spec.primary_key, spec["attempt"], spec["claim_token"]).where(mine)
        found.update(tuple(row) for row in adapter.rows.execute(session, spec, adapter.keys.by_key(spec, read)))
    return {claim for claim in claims if (*claim.identity, claim.attempt, claim.token) in found}


def extend(session: Session, claims: Sequence[Claim], lease: timedelta) -> list[Claim]:
    """Extend the leases of claims of one model to ``lease`` from now.  Returns the lost claims.

    Locked rows are skipped: only their own handler can have locked them, and its transaction cannot be taken over.
    Waiting for them would let the other leases expire.
    """
    rest = settle_some(session, claims, Extending(lease), waits=False)
    still = still_held(session, rest)
    spec = spec_of(claims[0].entity)
    for kind in kinds_of(spec) if still else ():
        mine = [claim for claim in rest if claim in still]
        lost = kind.extend(Fenced(open_(session, spec), session, Held(spec=spec, waits=False), mine), lease)
        still = {claim for claim in still if claim.identity not in lost}
    return [claim for claim in rest if claim not in still]


def _waits(spec: QueueSpec) -> tuple[Criterion, ...]:
    return (spec["finished_at"].is_(None), is_due(spec))
