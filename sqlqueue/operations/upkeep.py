"""What a worker asks and does between claims and settlements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import and_, literal_column, select
from sqlalchemy.orm import Session

from ..checks import count
from ..claims import Claim
from ..clock import utcnow
from ..mixins import QueueMixin
from ..spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..statements import is_due, picks, state, write
from ..states import Status
from ..transitions import Held
from ._connection import AnySession, open_, session_of
from .settlements import extending_by
from .settling import settle_some
from .slots import Slots


def next_due(session: AnySession, entity: type[QueueMixin], *where: Where) -> timedelta | None:
    """How long until a claim may find a task: nothing if it may now, ``None`` if no task waits for its time.

    By the database's clock, in one statement that locks nothing.  A task that others are about to claim counts.
    """
    spec = spec_of(entity)
    session = session_of(session)
    adapter = open_(session, spec)
    ready, due = (step(1) for step in picks(spec, where, ()))
    waiting = replace(due, state=(*_waits(spec), spec["attempt"] < spec["max_attempts"]))
    first = ready.select(literal_column("1")).limit(1).scalar_subquery()
    moment = waiting.select(spec["available_at"]).limit(1).scalar_subquery()
    asked = select(first, moment, utcnow())
    row: tuple[int | None, datetime | None, datetime] = tuple(adapter.execute(session, spec, asked).one())
    is_ready, at, now = row
    if is_ready is not None:
        return timedelta(0)
    return None if at is None else max(at - now, timedelta(0))


def promote(session: AnySession, entity: type[QueueMixin], *, limit: int = 1_000) -> int:
    """Make up to ``limit`` tasks ``available`` that were scheduled or retryable and have come due; returns how many.

    They keep the moment at which they came due, by which they are ordered.  A claim takes due tasks as they are, but
    only when available ones run short; under load this gives them the place that their priority says.  What others
    have locked is passed over.
    """
    spec = spec_of(entity)
    session = session_of(session)
    count("limit", limit)
    adapter = open_(session, spec, claims=True)
    _, due = picks(spec, (), ())
    waits = (*_waits(spec), spec["available_at"] <= utcnow(), spec["status"] != state(Status.RUNNING))
    keys = adapter.lock(session, replace(due(limit), state=waits))
    available = [(spec["status"], state(Status.AVAILABLE))]
    return sum(
        # by more than the key: MySQL would read, and wait for, all rows of a small table whose key alone is asked for
        len(adapter.change(session, spec, write(spec, and_(adapter.key_in(spec, some), *waits), available), some))
        for some in adapter.batches(keys)
    )


def still_held(session: Session, claims: Sequence[Claim]) -> set[Claim]:
    """Those of claims of one model that hold their rows, as far as can be seen without locks."""
    if not claims:
        return set()
    spec = spec_of(claims[0].entity)
    adapter, held = open_(session, spec), Held(spec=spec)
    found: set[Identity] = set()
    for some in adapter.batches(claims):
        mine = select(*spec.primary_key, spec["attempt"]).where(held.fence(some, adapter.key_in))
        found.update(tuple(row) for row in adapter.execute(session, spec, mine))
    return {claim for claim in claims if (*claim.identity, claim.attempt) in found}


def extend(session: Session, claims: Sequence[Claim], lease: timedelta) -> list[Claim]:
    """Let the leases of claims of one model end ``lease`` from now; returned are those that are lost.

    A row that is locked is passed over: by whom else than its own handler, whose transaction nobody can take over?  To
    wait for it would let the other leases end.
    """
    rest = settle_some(session, claims, extending_by(lease), waits=False)
    still = still_held(session, rest)
    spec = spec_of(claims[0].entity)
    if still and spec.options.slots is not None:
        slots = Slots(session, open_(session, spec), spec)
        still.difference_update(slots.extend([claim for claim in rest if claim in still], lease, waits=False))
    return [claim for claim in rest if claim not in still]


def _waits(spec: QueueSpec) -> tuple[Criterion, ...]:
    return (spec["finished_at"].is_(None), is_due(spec))
