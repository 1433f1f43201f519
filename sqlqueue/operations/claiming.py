"""Claims tasks for processing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy.orm import InstanceState, Session
from sqlalchemy.orm.attributes import instance_dict, instance_state
from sqlalchemy.sql.base import ExecutableOption

from .._support.claim import Claim, new_token
from .._support.statement_cache import CACHE_SIZE
from ..lifecycle.fence import Fence
from ..lifecycle.fenced import TOKEN, FencedClaims
from ..lifecycle.kind import holding_slots, kinds_of, recurs
from ..lifecycle.transitions import taking, taking_over
from ..model.history import history_of
from ..model.mixins import T
from ..queue.spec import QueueSpec, Where, spec_of
from ..queue.status import Status
from ..sql.changes import LARGEST, write
from ..transaction.claims import claim_of, settle
from ..transaction.connection import AnySession, open_, open_to_claim, session_of
from ..transaction.ledger import Hold, guard, ledger_of
from .claim_query import ClaimQuery, Lease, OrderBy, check_claim, claimer_name, scoped
from .recording import ABANDONED, record
from .taking import Patience, take

_taking = lru_cache(CACHE_SIZE)(taking)


def claim(
    session: AnySession,
    entity: type[T],
    *where: Where,
    lease: Lease = "default",
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
    claimed_by: str | None = None,
) -> T | None:
    """Claim the first free task; return it, or ``None`` if none is free.

    For its arguments, locks and errors see :func:`claim_many`.
    """
    tasks = claim_many(
        session, entity, *where, limit=1, lease=lease, order_by=order_by, options=options, claimed_by=claimed_by
    )
    return tasks[0] if tasks else None


def claim_many(
    session: AnySession,
    entity: type[T],
    *where: Where,
    limit: int,
    lease: Lease = "default",
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
    claimed_by: str | None = None,
) -> Sequence[T]:
    """Claim up to ``limit`` free tasks in this session's transaction.

    Returns persistent instances in claim order: available rows by ``priority``, ``available_at`` and primary key (or
    the model's ``order_by``, or the call's), then rows that have come due (scheduled, to be retried, or abandoned by a
    claimer whose lease expired) by ``available_at``.  Fewer than ``limit`` means that no more are free, or that setting
    aside rows that cannot be read took more than a second.

    Each returned row is locked until the transaction ends, and no other row is.  A claim never waits for another claim.
    On SQLite it waits for the one writer, as long as the driver's timeout allows.

    With a ``lease``, the model's by default, the rows become ``running`` at once, and no other claim gets them until
    the lease has expired by the database's clock, even after the commit.  A rollback, or a crash before the commit,
    leaves no trace.  With ``lease=None`` nothing is written: settle the claims before the commit, which otherwise
    raises :class:`.UnsettledClaimError`.

    The claims of one call have the same token: whoever is given one of them, as a value, could settle the others.

    ``where``: any criteria on the model; ``options``: any loader options; ``claimed_by``: a name to store, ``host:pid``
    by default.

    Raises, before anything is sent, :class:`.ArgumentError` for invalid arguments and for a session that reads from a
    different engine than it writes to, and :class:`.UnsupportedIsolationError` or :class:`.UnsupportedDialectError`
    where a claim could be wrong: ``lease=None`` is rejected on clusters with several primaries, which ignore each
    other's locks.
    """
    query = ClaimQuery(spec_of(entity), where, order_by, options)
    return claim_matching(session, query, limit, lease=lease, claimed_by=claimed_by)


def claim_matching(
    session: AnySession,
    query: ClaimQuery,
    limit: int,
    *,
    lease: Lease = "default",
    claimed_by: str | None = None,
    tokens: Callable[[], int] = new_token,
    holds: bool = False,
) -> Sequence[Any]:
    """Claim as :func:`claim_many` does, with a new token from ``tokens`` for each claiming statement.

    ``holds``: only the locks of the open transaction enforce limits.
    """
    check_claim(limit, lease)
    session = session_of(session)
    query = scoped(session, query)
    until = query.spec.options.lease if lease == "default" else lease
    claimer = Claimer(claimer_name(claimed_by), until, tokens)
    if holding_slots(query.spec) is None:
        return _claim_due(session, query, limit, claimer)
    return _claim_together(session, query, limit, claimer, holds=holds or until is None)


@dataclass(frozen=True, slots=True)
class Claimer:
    """What the statements of one claim share: the values that they write, and the time for rows that cannot be read."""

    name: str
    lease: timedelta | None
    tokens: Callable[[], int] = new_token
    patience: Patience = field(default_factory=Patience)


def _claim_due(session: Session, query: ClaimQuery, limit: int, claimer: Claimer) -> list[Any]:
    if recurs(query.spec):
        return _claim_runs(session, query, limit, claimer)
    return _hold(session, query, limit, claimer)


def _claim_runs(session: Session, query: ClaimQuery, limit: int, claimer: Claimer) -> list[Any]:
    """Claim recurring tasks.  Schedule those that must not run now for a later time, and claim others instead."""
    spec = query.spec
    kept: list[Any] = []
    while True:
        tasks = _hold(session, query, limit - len(kept), claimer)
        fence = Fence(spec=spec, claimed_by=claimer.name if claimer.lease is None else None)
        fenced = FencedClaims(open_(session, spec), session, fence, [claim_of(task) for task in tasks])
        skipped = set().union(*(kind.skip(fenced, tasks) for kind in kinds_of(spec)))
        kept += [task for task in tasks if spec.identity_of(task) not in skipped]
        for task in tasks:
            if spec.identity_of(task) in skipped:
                settle(session, task, "skipped")
        if not skipped or claimer.patience.is_over:
            return kept


def _hold(session: Session, query: ClaimQuery, limit: int, claimer: Claimer) -> list[Any]:
    spec, name, lease, patience = query.spec, claimer.name, claimer.lease, claimer.patience
    token = claimer.tokens()
    if lease is None:
        tasks = _lock(session, query, limit, patience)
    else:
        tasks = take(session, query, limit, _taking(spec, name, lease), {TOKEN: token}, patience=patience)
    attempt, claimed_at = spec.attributes["attempt"], spec.attributes["claimed_at"]
    more, locked_by = lease is None, name if lease is None else None
    holds: list[tuple[InstanceState[Any], Hold]] = []
    for task in tasks:
        number, since = (
            min(getattr(task, attempt) + more, LARGEST),
            None if more else instance_dict(task).get(claimed_at),
        )
        made = Claim(type(task), spec.identity_of(task), number, token, name, since)
        holds.append((instance_state(task), Hold(made, locked_by)))
    ledger_of(session).remember(session, holds)
    return tasks


def _lock(session: Session, query: ClaimQuery, limit: int, patience: Patience) -> list[Any]:
    """Claim tasks by locking their rows. Writes only to rows whose worker has crashed."""
    spec = query.spec
    tasks = take(session, query, limit, patience=patience)
    if tasks:
        guard(session, session.connection(spec.bind_arguments))
    _record_abandoned(session, spec, tasks)
    crashed = [task for task in tasks if _is_held_by_worker(spec, task)]
    if crashed:
        _take_over(session, spec, crashed)
    return tasks


def _record_abandoned(session: Session, spec: QueueSpec, locked: Sequence[Any]) -> None:
    """Record the attempts of claimers that have crashed, which the rows still show."""
    names = [spec.attributes[role] for role in ("attempt", "claim_token", "claimed_by", "claimed_at")]
    if history_of(spec.table.metadata) is not None:
        left = [task for task in locked if getattr(task, spec.attributes["status"]) == Status.RUNNING]
        claims = [Claim(type(task), spec.identity_of(task), *(getattr(task, name) for name in names)) for task in left]
        record(open_(session, spec), session, claims, ABANDONED)


def _take_over(session: Session, spec: QueueSpec, crashed: Sequence[Any]) -> None:
    adapter = open_(session, spec)
    for some in adapter.keys.batches(spec, [spec.identity_of(task) for task in crashed]):
        taken_over = write(spec, adapter.keys.key_in(spec, some), taking_over(spec))
        adapter.rows.execute(session, spec, adapter.keys.by_key(spec, taken_over))
    for task in crashed:
        session.refresh(task, [spec.attributes["max_attempts"], spec.attributes["crashes"]])


def _is_held_by_worker(spec: QueueSpec, task: object) -> bool:
    status, token = (getattr(task, spec.attributes[role]) for role in ("status", "claim_token"))
    return bool(status == Status.RUNNING and token < 0)


def _claim_together(session: Session, query: ClaimQuery, limit: int, claimer: Claimer, *, holds: bool) -> list[Any]:
    """Claim tasks together with the slots that they need."""
    adapter, spec = open_to_claim(session, query.spec, holds=holds), query.spec
    taking_some = TakingSome(session, query, claimer)
    (together,) = filter(
        None, (kind.claim_together(adapter, session, spec, taking_some, claimer.lease) for kind in kinds_of(spec))
    )
    return together.claim(query.where, query.order, limit)


@dataclass(frozen=True, slots=True)
class TakingSome:
    """Claims those tasks of a query that also satisfy further criteria."""

    session: Session
    query: ClaimQuery
    claimer: Claimer

    def __call__(self, where: Sequence[Where], limit: int, *, named: bool = False) -> list[tuple[Any, Claim]]:
        tasks = _claim_due(self.session, self.query.narrowed(where, named=named), limit, self.claimer)
        return [(task, claim_of(task)) for task in tasks]

    @property
    def is_over(self) -> bool:
        return self.claimer.patience.is_over
