"""Claims."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement
from sqlalchemy.orm import InstanceState, InstrumentedAttribute, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql.base import ExecutableOption

from .._support import checks
from .._support.checks import count, duration
from .._support.claim import Claim, new_token
from .._support.error_text import error_text
from .._support.exc import ArgumentError, ClaimLostError, UnsettledClaimError
from .._support.logs import logger_of
from .._support.statement_cache import MOST
from ..dialects.base import Adapter
from ..dialects.parts.claims import Taking
from ..dialects.parts.rows import Parameters
from ..lifecycle.fenced import TOKEN, Fenced
from ..lifecycle.held import Held
from ..lifecycle.kind import holding_slots, kinds_of, recurs
from ..lifecycle.transitions import consuming, taking
from ..model.columns import LONGEST_NAME
from ..model.mixins import T
from ..queue.spec import QueueSpec, Where, spec_of
from ..sql.selection import Assignment, Pick, named_picks, picks
from ..transaction.claims import Hold, claim_of, guard, is_unsettled, ledger_of, settle
from ..transaction.connection import AnySession, default_claimer, open_, open_to_claim, session_of
from .attempts import Attempt, brief
from .session_criteria import scope_of
from .settling import complete, fail

Lease: TypeAlias = timedelta | Literal["default"] | None
OrderTerm: TypeAlias = ColumnElement[Any] | InstrumentedAttribute[Any]
OrderBy: TypeAlias = OrderTerm | Sequence[OrderTerm]
logger = logger_of("sqlqueue")
_taking, _consuming = lru_cache(MOST)(taking), lru_cache(MOST)(consuming)


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
    claimer whose lease expired) by ``available_at``.  Fewer than ``limit`` means that no more are free.

    Each returned row is locked until the transaction ends, and no other row is.  A claim never waits for another claim.
    On SQLite it waits for the one writer, as long as the driver's timeout allows.

    With a ``lease``, the model's by default, the rows become ``running`` at once, and no other claim gets them until
    the lease has expired by the database's clock, even after the commit.  A rollback, or a crash before the commit,
    leaves no trace.  With ``lease=None`` nothing is written: settle the claims before the commit, which otherwise
    raises :class:`.UnsettledClaimError`.

    ``where``: any criteria on the model; ``options``: any loader options; ``claimed_by``: a name to store, ``host:pid``
    by default.

    Raises, before anything is sent, :class:`.ArgumentError` for invalid arguments and for a session that reads from
    another engine than it writes to, and :class:`.UnsupportedIsolationError` or :class:`.UnsupportedDialectError` where
    a claim could be wrong.
    """
    wanted = Wanted(spec_of(entity), where, order_by, options)
    return claim_wanted(session, wanted, limit, lease=lease, claimed_by=claimed_by)


class Wanted:
    """The parameters of claims.  Reused for repeated claims, it caches their statements."""

    def __init__(
        self,
        spec: QueueSpec,
        where: Sequence[Where] = (),
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
    ) -> None:
        """:class:`.ArgumentError` for what makes no sense."""
        if not isinstance(options, Sequence):
            raise ArgumentError(f"options={options!r}: give a sequence of loader options")
        self.spec = spec
        self.where = where
        self.order = _order(spec, order_by)
        self.options = options
        self.steps = picks(spec, where, self.order)

    def narrowed(self, where: Sequence[Where], *, named: bool = False) -> Wanted:
        """The same of rows that satisfy ``where``; ``named``: which are those that it names by primary key."""
        narrowed = Wanted(self.spec, where, self.order, self.options)
        narrowed.steps = named_picks(self.spec, where) if named else narrowed.steps[: len(self.steps)]
        return narrowed

    @cached_property
    def ready(self) -> Wanted:
        """The same without rows that have come due: for who has just seen that there are none."""
        ready = copy(self)
        ready.steps = self.steps[:1]
        return ready


def claim_wanted(
    session: AnySession, wanted: Wanted, limit: int, *, lease: Lease = "default", claimed_by: str | None = None
) -> Sequence[Any]:
    """Claim as :func:`claim_many` does."""
    _check(limit, lease)
    session = session_of(session)
    wanted = _scoped(session, wanted)
    claim_now = _claim_due if holding_slots(wanted.spec) is None else _claim_together
    until = wanted.spec.options.lease if lease == "default" else lease
    return claim_now(session, wanted, limit, _claimer(claimed_by), until)


def _scoped(session: Session, wanted: Wanted) -> Wanted:
    """What is ``wanted``, of the rows that the session may see."""
    scope = scope_of(session, wanted.spec, wanted.options)
    return wanted.narrowed([*wanted.where, *scope]) if scope else wanted


def _claim_due(session: Session, wanted: Wanted, limit: int, claimer: str, lease: timedelta | None) -> list[Any]:
    if recurs(wanted.spec):
        return _claim_runs(session, wanted, limit, claimer, lease)
    return _hold(session, wanted, limit, claimer, lease)


def _claim_runs(session: Session, wanted: Wanted, limit: int, claimer: str, lease: timedelta | None) -> list[Any]:
    """Those that are not to be run now are scheduled for when they are, and others take their place."""
    spec = wanted.spec
    kept: list[Any] = []
    while True:
        tasks = _hold(session, wanted, limit - len(kept), claimer, lease)
        held = Held(spec=spec, claimed_by=claimer if lease is None else None)
        fenced = Fenced(open_(session, spec), session, held, [claim_of(task) for task in tasks])
        skipped = set().union(*(kind.skip(fenced, tasks) for kind in kinds_of(spec)))
        kept += [task for task in tasks if spec.identity_of(task) not in skipped]
        for task in tasks:
            if spec.identity_of(task) in skipped:
                settle(session, task, "skipped")
        if not skipped:
            return kept


def _hold(session: Session, wanted: Wanted, limit: int, claimer: str, lease: timedelta | None) -> list[Any]:
    spec = wanted.spec
    token = new_token()
    if lease is None:
        tasks = _take(session, wanted, limit)
    else:
        tasks = _take(session, wanted, limit, _taking(spec, claimer, lease), {TOKEN: token})
    if lease is None and tasks:
        guard(session, session.connection(spec.bind_arguments))
    attempt, more, locked_by = spec.attributes["attempt"], lease is None, claimer if lease is None else None
    holds: list[tuple[InstanceState[Any], Hold]] = []
    for task in tasks:
        held = Claim(type(task), spec.identity_of(task), getattr(task, attempt) + more, token)
        holds.append((instance_state(task), Hold(held, locked_by)))
    ledger_of(session).remember(session, holds)
    return tasks


def _claim_together(session: Session, wanted: Wanted, limit: int, claimer: str, lease: timedelta | None) -> list[Any]:
    """Each with the slot that it needs."""

    def take(where: Sequence[Where], limit: int, *, named: bool = False) -> list[tuple[Any, Claim]]:
        tasks = _claim_due(session, wanted.narrowed(where, named=named), limit, claimer, lease)
        return [(task, claim_of(task)) for task in tasks]

    adapter, spec = open_to_claim(session, wanted.spec), wanted.spec
    (together,) = filter(None, (kind.claim_together(adapter, session, spec, take, lease) for kind in kinds_of(spec)))
    return together.claim(wanted.where, wanted.order, limit)


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
    return consume_wanted(session, Wanted(spec_of(entity), where, order_by, options), limit, claimed_by=claimed_by)


def consume_wanted(session: AnySession, wanted: Wanted, limit: int, *, claimed_by: str | None = None) -> Sequence[Any]:
    """Claim and complete as :func:`consume_many` does."""
    spec, session = wanted.spec, session_of(session)
    if any(kind.continues(spec) for kind in kinds_of(spec)):
        return _complete_at_once(session, spec, claim_wanted(session, wanted, limit, claimed_by=claimed_by))
    _check(limit, "default")
    deletes = spec.options.on_complete == "delete"
    assignments = () if deletes else _consuming(spec, _claimer(claimed_by))
    tasks = _take(session, _scoped(session, wanted), limit, assignments, delete=deletes)
    ledger_of(session).wrote(session, [instance_state(task) for task in tasks])
    for task in tasks if deletes else ():
        session.expunge(task)
    return tasks


def _complete_at_once(session: Session, spec: QueueSpec, tasks: Sequence[T]) -> Sequence[T]:
    """In the same transaction, where completion is more than a state."""
    claims = [claim_of(task) for task in tasks]
    if spec.options.on_complete == "delete":
        for task in tasks:
            session.expunge(task)
    complete(session, claims)
    for task in tasks:
        if task in session:  # asyncio must not have to load anything later
            session.refresh(task)
    return tasks


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
    attempt = Attempt.of(spec_of(entity), held, task)
    savepoint = session.begin_nested()
    try:
        yield task
        savepoint.commit()
    except BaseException as error:
        if session.get_nested_transaction() is savepoint:
            savepoint.rollback()  # where the engine has ended the whole transaction, as for a deadlock, this raises
        if isinstance(error, (ClaimLostError, UnsettledClaimError)) or not isinstance(error, Exception):
            raise
        prospect, reason = attempt.failing(type(error), None), brief(error_text(error))
        logger.log(prospect.level, "%s failed (%s), %s", attempt, reason, prospect.text, exc_info=error)
        fail(session, held, error)
    else:
        if is_unsettled(task):
            complete(session, held)


def _take(
    session: Session,
    wanted: Wanted,
    limit: int,
    assignments: Sequence[Assignment] = (),
    parameters: Parameters | None = None,
    *,
    delete: bool = False,
) -> list[Any]:
    """Ready rows, and due ones if those run short."""
    adapter = open_to_claim(session, wanted.spec)
    held = ledger_of(session).locked(wanted.spec.table)
    tasks: list[Any] = []
    for step in wanted.steps:
        if len(tasks) < limit:
            pick = step(limit - len(tasks))
            if held:
                pick = pick.without(adapter.keys.key_in(wanted.spec, held))
            _check_order(adapter, pick, wanted.order)
            taking = Taking(
                pick=pick, assignments=assignments, parameters=parameters, delete=delete, options=wanted.options
            )
            tasks += adapter.claims.take(session, taking)
    return tasks


def _order(spec: QueueSpec, order_by: OrderBy) -> tuple[Any, ...]:
    order = tuple(order_by) if isinstance(order_by, Sequence) else (order_by,)
    if isinstance(order_by, str) or not all(
        hasattr(term, "__clause_element__") or isinstance(term, ColumnElement) for term in order
    ):
        raise ArgumentError(f"order_by={order_by!r}: give columns, as in {spec.entity.__name__}.priority.desc()")
    return order


def _check_order(adapter: Adapter, pick: Pick, order: Sequence[Any]) -> None:
    if order and pick.index is not None and not adapter.locking.orders_freely:
        name = adapter.product.name
        raise ArgumentError(
            f"{name} locks what it sorts, so it claims in the order of an index alone: declare the order in"
            f" {pick.spec.entity.__name__}.__queue__ = QueueOptions(order_by=...), which makes that index"
        )


def _check(limit: int, lease: Lease) -> None:
    count("limit", limit)
    if lease is not None and lease != "default":
        duration("lease", lease)


def _claimer(claimed_by: str | None) -> str:
    return default_claimer() if claimed_by is None else checks.name("claimed_by", claimed_by, LONGEST_NAME)
