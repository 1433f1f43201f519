"""Claims that are settled by the same call: consume, and the block of claiming()."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql.base import ExecutableOption

from .._support.checks import count
from .._support.errors import Claim, ClaimLostError, UnsettledClaimError, new_token
from .._support.texts import error_text, logger_of
from ..lifecycle.kind import kinds_of
from ..lifecycle.transitions import TOKEN, consume_assignments
from ..model.companions import history_of
from ..model.declaration import T
from ..queue.options import AttemptOutcome
from ..queue.spec import QueueSpec, Where, spec_of
from ..sql import LARGEST
from ..transaction import AnySession, claim_in, claim_of, is_unsettled, ledger_of, open_, session_of
from .claiming import ClaimCall, ClaimQuery, Lease, OrderBy, claim, claim_matching, claimer_name, scoped
from .recording import Attempt, AttemptRecord, brief, record
from .settling import complete, fail

# -- consumes tasks: claims and completes them at once ----------------------------------------------------------------


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
        tasks = claim_matching(session, query, limit, claimed_by=claimed_by, locks_only=True)
        return _complete_at_once(session, spec, tasks)
    count("limit", limit)
    name, deletes = claimer_name(claimed_by), spec.options.on_complete == "delete"
    query = scoped(session, query)
    call = ClaimCall(session, query, name)
    if deletes:
        tasks = call.take(query, limit, delete=True)
    else:
        assignments = spec.made.get(("consume", name), lambda: consume_assignments(spec, name))
        tasks = call.take(query, limit, assignments, {TOKEN: new_token()})
    _record_consumed(session, spec, tasks, name if deletes else None)
    ledger_of(session).wrote(session, [instance_state(task) for task in tasks])
    for task in tasks if deletes else ():
        session.expunge(task)
    return tasks


def _record_consumed(session: Session, spec: QueueSpec, tasks: Sequence[Any], claimer: str | None) -> None:
    """Record that tasks are completed; ``claimer``: the name of the claimer that deleted them, since deleted rows do
    not show it."""
    if history_of(spec.table.metadata) is None:
        return
    if claimer is None:
        claims = [claim_in(task) for task in tasks]
    else:
        tried = [getattr(task, spec.attributes["attempt"]) for task in tasks]
        numbers = (min(attempt + 1, LARGEST) for attempt in tried)
        claims = [
            Claim(type(task), spec.identity_of(task), number, claimed_by=claimer)
            for task, number in zip(tasks, numbers, strict=True)
        ]
    record(open_(session, spec), session, claims, AttemptRecord(AttemptOutcome.COMPLETED))


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


# -- a `with` block that claims a task and settles it -----------------------------------------------------------------

logger = logger_of("sqlqueue")


@contextmanager
def claiming(
    session: AnySession,
    entity: type[T],
    *where: Where,
    lease: Lease = "default",
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
    claimed_by: str | None = None,
) -> Generator[T | None]:
    """Claim a task, run the block in a savepoint, and settle the task: ``with claiming(session, Task) as task:``.

    Leaving the block completes the task, unless the block settled it.  An exception rolls the block's writes back to
    the savepoint, is recorded by :func:`fail`, logged, and suppressed.  :class:`.ClaimLostError`, and exceptions that
    do not derive from :class:`Exception`, are raised.  The target is ``None`` if no task is free.
    """
    session = session_of(session)
    task = claim(session, entity, *where, lease=lease, order_by=order_by, options=options, claimed_by=claimed_by)
    if task is None:
        yield None
        return
    held = claim_of(task)
    attempt = Attempt.of(spec_of(entity), held, dict(instance_state(task).dict))
    savepoint = session.begin_nested()
    try:
        yield task
        savepoint.commit()
    except BaseException as error:
        if session.get_nested_transaction() is savepoint:
            savepoint.rollback()  # raises if the engine has ended the whole transaction, as after a deadlock
        if isinstance(error, (ClaimLostError, UnsettledClaimError)) or not isinstance(error, Exception):
            raise
        prospect, reason = attempt.failing(type(error), None), brief(error_text(error))
        logger.log(prospect.level, "%s failed (%s), %s", attempt, reason, prospect.text, exc_info=error)
        fail(session, held, error)
    else:
        if is_unsettled(task):
            complete(session, held)
