"""Claims tasks for processing, and consumes them at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, and_
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
from ..lifecycle.transitions import consuming, taking, taking_over
from ..model.columns import LONGEST_NAME
from ..model.history import history_of
from ..model.mixins import T
from ..queue.history import AttemptOutcome
from ..queue.spec import QueueSpec, Where, spec_of
from ..queue.status import Status
from ..sql.selection import Assignment, Pick, is_held, named_picks, picks, write
from ..transaction.claims import Hold, claim_of, guard, is_unsettled, ledger_of, settle
from ..transaction.connection import AnySession, default_claimer, open_, open_to_claim, session_of
from .attempts import Attempt, brief
from .recording import HUNG, Told, last_claims, record
from .session_criteria import scope_of
from .settling import complete, fail

Lease: TypeAlias = timedelta | Literal["default"] | None
OrderTerm: TypeAlias = ColumnElement[Any] | InstrumentedAttribute[Any]
OrderBy: TypeAlias = OrderTerm | Sequence[OrderTerm]
logger = logger_of("sqlqueue")
ABANDONED = Told(AttemptOutcome.CRASHED, HUNG)
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
    a claim could be wrong: ``lease=None`` is refused on clusters of several primaries, which ignore each other's locks.
    """
    wanted = Wanted(spec_of(entity), where, order_by, options)
    return claim_wanted(session, wanted, limit, lease=lease, claimed_by=claimed_by)


class Wanted:
    """Reusable claim parameters; caches the statements of repeated claims."""

    def __init__(
        self,
        spec: QueueSpec,
        where: Sequence[Where] = (),
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
    ) -> None:
        """Raise :class:`.ArgumentError` for invalid ``options`` or ``order_by``."""
        if not isinstance(options, Sequence):
            raise ArgumentError(f"options={options!r}: give a sequence of loader options")
        self.spec = spec
        self.where = where
        self.order = _order(spec, order_by)
        self.options = options
        self.steps = picks(spec, where, self.order)

    def narrowed(self, where: Sequence[Where], *, named: bool = False) -> Wanted:
        """Return a copy restricted to rows that satisfy ``where``; ``named``: ``where`` selects by primary key."""
        narrowed = Wanted(self.spec, where, self.order, self.options)
        narrowed.steps = named_picks(self.spec, where) if named else narrowed.steps[: len(self.steps)]
        return narrowed

    @cached_property
    def ready(self) -> Wanted:
        """A copy that claims available rows only, for a caller that has just found no due rows."""
        ready = copy(self)
        ready.steps = self.steps[:1]
        return ready


def claim_wanted(
    session: AnySession,
    wanted: Wanted,
    limit: int,
    *,
    lease: Lease = "default",
    claimed_by: str | None = None,
    tokens: Callable[[], int] = new_token,
    holds: bool = False,
) -> Sequence[Any]:
    """Claim as :func:`claim_many` does, with a token of ``tokens`` for each statement that claims.

    ``holds``: limits are kept by the locks of the open transaction alone.
    """
    _check(limit, lease)
    session = session_of(session)
    wanted = _scoped(session, wanted)
    until = wanted.spec.options.lease if lease == "default" else lease
    claimer = Claimer(_claimer(claimed_by), until, tokens)
    if holding_slots(wanted.spec) is None:
        return _claim_due(session, wanted, limit, claimer)
    return _claim_together(session, wanted, limit, claimer, holds=holds or until is None)


class Claimer(NamedTuple):
    """What claims write: who claims, until when, and by which token."""

    name: str
    lease: timedelta | None
    tokens: Callable[[], int] = new_token


def _scoped(session: Session, wanted: Wanted) -> Wanted:
    """Restrict ``wanted`` to the rows that the session's loader criteria allow."""
    scope = scope_of(session, wanted.spec, wanted.options)
    return wanted.narrowed([*wanted.where, *scope]) if scope else wanted


def _claim_due(session: Session, wanted: Wanted, limit: int, claimer: Claimer) -> list[Any]:
    if recurs(wanted.spec):
        return _claim_runs(session, wanted, limit, claimer)
    return _hold(session, wanted, limit, claimer)


def _claim_runs(session: Session, wanted: Wanted, limit: int, claimer: Claimer) -> list[Any]:
    """Claim recurring tasks.  Schedule those that must not run now for a later time, and claim others instead."""
    spec = wanted.spec
    kept: list[Any] = []
    while True:
        tasks = _hold(session, wanted, limit - len(kept), claimer)
        held = Held(spec=spec, claimed_by=claimer.name if claimer.lease is None else None)
        fenced = Fenced(open_(session, spec), session, held, [claim_of(task) for task in tasks])
        skipped = set().union(*(kind.skip(fenced, tasks) for kind in kinds_of(spec)))
        kept += [task for task in tasks if spec.identity_of(task) not in skipped]
        for task in tasks:
            if spec.identity_of(task) in skipped:
                settle(session, task, "skipped")
        if not skipped:
            return kept


def _hold(session: Session, wanted: Wanted, limit: int, claimer: Claimer) -> list[Any]:
    spec, (name, lease, tokens) = wanted.spec, claimer
    token = tokens()
    if lease is None:
        tasks = _lock(session, wanted, limit)
    else:
        tasks = _take(session, wanted, limit, _taking(spec, name, lease), {TOKEN: token})
    attempt, claimed_at = spec.attributes["attempt"], spec.attributes["claimed_at"]
    more, locked_by = lease is None, name if lease is None else None
    holds: list[tuple[InstanceState[Any], Hold]] = []
    for task in tasks:
        number, since = getattr(task, attempt) + more, None if more else instance_state(task).dict.get(claimed_at)
        held = Claim(type(task), spec.identity_of(task), number, token, name, since)
        holds.append((instance_state(task), Hold(held, locked_by)))
    ledger_of(session).remember(session, holds)
    return tasks


def _lock(session: Session, wanted: Wanted, limit: int) -> list[Any]:
    """Take tasks by their locks alone.  Only where a worker that held one has crashed is something written."""
    spec = wanted.spec
    tasks = _take(session, wanted, limit)
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


def _claim_together(session: Session, wanted: Wanted, limit: int, claimer: Claimer, *, holds: bool) -> list[Any]:
    """Claim tasks together with the slots that they need."""

    def take(where: Sequence[Where], limit: int, *, named: bool = False) -> list[tuple[Any, Claim]]:
        tasks = _claim_due(session, wanted.narrowed(where, named=named), limit, claimer)
        return [(task, claim_of(task)) for task in tasks]

    adapter, spec = open_to_claim(session, wanted.spec, holds=holds), wanted.spec
    (together,) = filter(
        None, (kind.claim_together(adapter, session, spec, take, claimer.lease) for kind in kinds_of(spec))
    )
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
        tasks = claim_wanted(session, wanted, limit, claimed_by=claimed_by, holds=True)
        return _complete_at_once(session, spec, tasks)
    _check(limit, "default")
    deletes = spec.options.on_complete == "delete"
    assignments = () if deletes else _consuming(spec, _claimer(claimed_by))
    tasks = _take(session, _scoped(session, wanted), limit, assignments, delete=deletes)
    _record_consumed(session, spec, tasks, None if not deletes else _claimer(claimed_by))
    ledger_of(session).wrote(session, [instance_state(task) for task in tasks])
    for task in tasks if deletes else ():
        session.expunge(task)
    return tasks


def _record_consumed(session: Session, spec: QueueSpec, tasks: Sequence[Any], claimer: str | None) -> None:
    """Record that tasks are completed; ``claimer``: who has deleted them, so that their rows do not show the claim."""
    if history_of(spec.table.metadata) is None:
        return
    attempt, by, at = (spec.attributes[role] for role in ("attempt", "claimed_by", "claimed_at"))
    claims = [
        Claim(type(task), spec.identity_of(task), getattr(task, attempt) + 1, 0, claimer)
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
            savepoint.rollback()  # raises if the engine has ended the whole transaction, as after a deadlock
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
    """Take available rows first, then due rows if there are fewer than ``limit``."""
    adapter = open_to_claim(session, wanted.spec, holds=not assignments and not delete)
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
            records = pick.takes_over and (assignments or delete) and history_of(wanted.spec.table.metadata)
            tasks += _take_recorded(session, adapter, taking) if records else adapter.claims.take(session, taking)
    return tasks


def _take_recorded(session: Session, adapter: Adapter, taking: Taking) -> list[Any]:
    """Take tasks as :meth:`.Claims.take` does, and record the attempts of those whose claimers have crashed.

    The rows are locked first: afterwards they show only the new claim.
    """
    pick, tasks = taking.pick, list[Any]()
    spec = pick.spec
    for some in adapter.keys.batches(spec, adapter.claims.lock(session, pick)):
        named = adapter.keys.key_in(spec, some)
        crashed = last_claims(adapter, session, spec, and_(named, is_held(spec)))
        chosen = replace(pick, where=(named,), limit=len(some), index=None, divided=None, exact=True)
        taken = adapter.claims.take(session, replace(taking, pick=chosen))
        found = {spec.identity_of(task) for task in taken}
        record(adapter, session, [claim for claim in crashed if claim.identity in found], ABANDONED)
        tasks += taken
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
            f"{name} locks every row that it sorts, so it can claim only in the order of an index: declare the order in"
            f" {pick.spec.entity.__name__}.__queue__ = QueueOptions(order_by=...), which creates that index"
        )


def _check(limit: int, lease: Lease) -> None:
    count("limit", limit)
    if lease is not None and lease != "default":
        duration("lease", lease)


def _claimer(claimed_by: str | None) -> str:
    return default_claimer() if claimed_by is None else checks.name("claimed_by", claimed_by, LONGEST_NAME)
