"""Consumes tasks: claims and completes them at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql.base import ExecutableOption

from .._support.claim import Claim, new_token
from .._support.statement_cache import CACHE_SIZE
from ..lifecycle.fenced import TOKEN
from ..lifecycle.kind import kinds_of
from ..lifecycle.transitions import consuming
from ..model.history import history_of
from ..model.mixins import T
from ..queue.history import AttemptOutcome
from ..queue.spec import QueueSpec, Where, spec_of
from ..sql.changes import LARGEST
from ..transaction.claims import claim_of
from ..transaction.connection import AnySession, open_, session_of
from ..transaction.ledger import ledger_of
from .claim_query import ClaimQuery, OrderBy, check_claim, claimer_name, scoped
from .claiming import claim_matching
from .recording import Told, record
from .settling import complete
from .taking import take

_consuming = lru_cache(CACHE_SIZE)(consuming)


def consume(
    session: AnySession,
    entity: type[T],
    *where: Where,
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
    claimed_by: str | None = None,
) -> T | None:
    """Claim and complete the first free task; return it, or ``None`` if none is free.  See :func:`consume_many`."""
    tasks = consume_many(session, entity, *where, limit=1, order_by=order_by, options=options, claimed_by=claimed_by)
    return tasks[0] if tasks else None


def consume_many(
    session: AnySession,
    entity: type[T],
    *where: Where,
    limit: int,
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
    claimed_by: str | None = None,
) -> Sequence[T]:
    """Claim and complete up to ``limit`` tasks at once: each is done at most once, and nothing is left to settle.

    The rows become ``completed``, or are deleted if the model's ``on_complete`` says so; the instances are then
    detached. Limits hold only until the commit, since a completed task has no slot.  For the rows, their order, locks
    and errors see :func:`claim_many`.
    """
    return consume_matching(
        session, ClaimQuery(spec_of(entity), where, order_by, options), limit, claimed_by=claimed_by
    )


def consume_matching(
    session: AnySession, query: ClaimQuery, limit: int, *, claimed_by: str | None = None
) -> Sequence[Any]:
    """Claim and complete as :func:`consume_many` does."""
    spec, session = query.spec, session_of(session)
    if any(kind.continues(spec) for kind in kinds_of(spec)):
        tasks = claim_matching(session, query, limit, claimed_by=claimed_by, holds=True)
        return _complete_at_once(session, spec, tasks)
    check_claim(limit, "default")
    deletes = spec.options.on_complete == "delete"
    assignments = () if deletes else _consuming(spec, claimer_name(claimed_by))
    token = {} if deletes else {TOKEN: new_token()}
    tasks = take(session, scoped(session, query), limit, assignments, token, delete=deletes)
    _record_consumed(session, spec, tasks, None if not deletes else claimer_name(claimed_by))
    ledger_of(session).wrote(session, [instance_state(task) for task in tasks])
    for task in tasks if deletes else ():
        session.expunge(task)
    return tasks


def _record_consumed(session: Session, spec: QueueSpec, tasks: Sequence[Any], claimer: str | None) -> None:
    """Record that tasks are completed; ``claimer``: the name of the claimer that deleted them, since deleted rows do
    not show it."""
    if history_of(spec.table.metadata) is None:
        return
    attempt, by, at = (spec.attributes[role] for role in ("attempt", "claimed_by", "claimed_at"))
    claims = [
        Claim(type(task), spec.identity_of(task), min(getattr(task, attempt) + 1, LARGEST), 0, claimer)
        if claimer is not None
        else Claim(type(task), spec.identity_of(task), getattr(task, attempt), 0, getattr(task, by), getattr(task, at))
        for task in tasks
    ]
    record(open_(session, spec), session, claims, Told(AttemptOutcome.COMPLETED))


def _complete_at_once(session: Session, spec: QueueSpec, tasks: Sequence[T]) -> Sequence[T]:
    """Complete claimed tasks in the same transaction, for queues where completion does more than set a status."""
    claims = [claim_of(task) for task in tasks]
    if spec.options.on_complete == "delete":
        for task in tasks:
            session.expunge(task)
    complete(session, claims)
    for task in tasks:
        if task in session:  # so that no attribute is loaded lazily later, which asyncio does not allow
            session.refresh(task)
    return tasks
