"""Claims: which tasks are wanted, in which order and by whom, and how they are locked and written."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import InstanceState, InstrumentedAttribute, Session
from sqlalchemy.orm.attributes import instance_dict, instance_state
from sqlalchemy.sql.base import ExecutableOption

from .._support.checks import count, duration
from .._support.errors import ArgumentError, Claim, ClaimLostError, UnsettledClaimError, new_token
from .._support.texts import error_text, logger_of
from ..dialects.base import Adapter
from ..dialects.statements import ClaimRequest, Parameters
from ..kinds.limits import Gate
from ..kinds.recurring import skip_runs
from ..lifecycle.kind import kinds_of
from ..lifecycle.transitions import (
    TOKEN,
    Fence,
    FencedClaims,
    claim_assignments,
    consume_assignments,
    takeover_assignments,
)
from ..model.companions import history_of
from ..model.declaration import T
from ..queue.options import AttemptOutcome, Status
from ..queue.spec import Identity, QueueSpec, Where, spec_of
from ..sql import (
    LARGEST,
    Assignment,
    Pick,
    Step,
    excluded,
    has_expired,
    is_held,
    is_token_of_worker,
    lane_picks,
    named_picks,
    picks,
    sequential_picks,
    utcnow,
    write,
)
from ..transaction import (
    Access,
    AnySession,
    HeldClaim,
    claim_in,
    claim_of,
    claimer_name,
    commits_alone,
    guard,
    is_unsettled,
    ledger_of,
    mark_settled,
    open_,
    scope_of,
    session_of,
)
from .latches import announce_look
from .recording import ABANDONED, Attempt, AttemptRecord, brief, last_claims, record, set_aside, task_facts
from .sequence import claim_in_sequence
from .settling import EXPIRY, RETURNED, complete, fail, settle_some
from .turns import LaneClaim, Rotation, rotation_of

# -- the parameters of claims: which tasks are wanted, in which order, and by whom ------------------------------------

Lease: TypeAlias = timedelta | Literal["default"] | None
OrderTerm: TypeAlias = ColumnElement[Any] | InstrumentedAttribute[Any]
OrderBy: TypeAlias = OrderTerm | Sequence[OrderTerm]


class ClaimQuery:
    """Reusable claim parameters; caches the statements of repeated claims."""

    def __init__(
        self,
        spec: QueueSpec,
        where: Sequence[Where] = (),
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        steps: tuple[Step, ...] | None = None,
        *,
        run: int = 1,
    ) -> None:
        """Raise :class:`.ArgumentError` for invalid ``options`` or ``order_by``.

        ``steps``: what to claim, one after another; by default available rows, then due rows.  ``run``: how many tasks
        of a key that keeps its order to claim at a time.
        """
        if not isinstance(options, Sequence):
            raise ArgumentError(f"options={options!r}: give a sequence of loader options")
        order: tuple[Any, ...] = tuple(order_by) if isinstance(order_by, Sequence) else (order_by,)
        are_columns = (hasattr(term, "__clause_element__") or isinstance(term, ColumnElement) for term in order)
        if isinstance(order_by, str) or not all(are_columns):
            raise ArgumentError(f"order_by={order_by!r}: give columns, as in {spec.entity.__name__}.priority.desc()")
        self.spec = spec
        self.where = where
        self.order = order
        self.options = options
        self.run = run
        if steps is None and spec.sequence is not None:
            steps = sequential_picks(spec, where, order, run=run)
        self.steps: tuple[Step, ...] = steps or (picks if spec.lane is None else lane_picks)(spec, where, order)
        self.rotations: dict[Any, Rotation] = {}
        """The rotations of these claims, if their criteria leave out rows of a key of a fair queue."""

    def narrowed(self, where: Sequence[Where], *, named: bool = False) -> ClaimQuery:
        """Return a copy restricted to rows that satisfy ``where``; ``named``: ``where`` selects by primary key."""
        steps: tuple[Step, ...] | None = named_picks(self.spec, where) if named else None
        narrowed = ClaimQuery(self.spec, where, self.order, self.options, steps, run=self.run)
        narrowed.steps = narrowed.steps[: len(self.steps)]
        return narrowed

    @cached_property
    def looked_at(self) -> Sequence[Where]:
        """Its criteria without those that exclude keys: to look for other tasks, a poll would read past theirs."""
        column = self.spec.keyed_by
        return [term for term in self.where if column is None or not excluded(term, column)]

    @cached_property
    def ready(self) -> ClaimQuery:
        """A copy that claims available rows only, for a caller that has just found no due rows."""
        ready = ClaimQuery(self.spec, self.where, self.order, self.options, self.steps[:1])
        ready.rotations = self.rotations
        return ready


def _check_order(adapter: Adapter, pick: Pick) -> None:
    """Raise :class:`.ArgumentError` for an order that no index has, on engines that lock the rows that they sort."""
    if pick.index is not None and not adapter.rows.locks_after_sorting:
        name = adapter.product.name
        raise ArgumentError(
            f"{name} locks every row that it sorts, so it can claim only in the order of an index: declare the order in"
            f" {pick.spec.entity.__name__}.__queue__ = QueueOptions(order_by=...), which creates that index"
        )


# -- claims tasks for processing --------------------------------------------------------------------------------------


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
    query = ClaimQuery(spec_of(entity), where, order_by, options)
    tasks = claim_matching(session, query, 1, lease=lease, claimed_by=claimed_by)
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
    claimer whose lease expired) by ``available_at``.  Fewer than ``limit`` means that no more are free, that setting
    aside rows that cannot be read, or cancelling tasks that have expired (:class:`.ExpiryMixin`), took more than a
    second, or that 8,192 keys were at their limits (:class:`.LimitMixin`), after which the next claim goes on.

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
    return claim_matching(session, query, count("limit", limit), lease=lease, claimed_by=claimed_by)


def claim_matching(
    session: AnySession,
    query: ClaimQuery,
    limit: int,
    *,
    lease: Lease = "default",
    claimed_by: str | None = None,
    tokens: Callable[[], int] = new_token,
    locks_only: bool = False,
    alone: bool = False,
) -> Sequence[Any]:
    """Claim as :func:`claim_many` does, with a new token from ``tokens`` for each claiming statement.

    ``locks_only``: only the locks of the open transaction enforce limits.  ``alone``: the claim is all that is written
    in the transaction, and may be committed before it; if what follows fails, the lease ends the claim.
    """
    if lease is not None and lease != "default":
        duration("lease", lease)
    spec, session = query.spec, session_of(session)
    if scope := scope_of(session, spec, query.options):
        query = query.narrowed([*query.where, *scope])
    until = spec.options.lease if lease == "default" else lease
    call = ClaimCall(session, query, claimer_name(claimed_by), until, tokens, alone=alone and commits_alone(session))
    if spec.is_limited:
        adapter = open_(session, spec, Access.HOLD if locks_only or until is None else Access.CLAIM)
        call.gate = Gate(session, adapter, spec, until)
    tasks = call.claim(query, limit)
    if call.gate is not None:
        ledger = ledger_of(session)
        ledger.used_up = call.gate.used_up() if len(tasks) < limit else ()
        ledger.has_rates = ledger.has_rates or call.gate.has_rates
    return tasks


PATIENCE = 1.0
"""Seconds for which a claim goes on after it has met a row that cannot be read, or a task that has expired.

There can be any number of them, and a transaction that takes too long would be rolled back, and meet them again.
"""


AT_ONCE = 1_000
"""How many of the tasks that follow an expired one a claim looks through for others."""


@dataclass(slots=True)
class ClaimCall:
    """One call that claims: who claims from which queue, and for how long."""

    session: Session
    query: ClaimQuery
    claimed_by: str
    lease: timedelta | None = None
    """The lease; ``None`` if only the locks of the open transaction hold the tasks."""
    tokens: Callable[[], int] = new_token
    gate: Gate | None = None
    """The slots that the tasks need, if the queue has limits."""
    alone: bool = False
    """Whether the claim may be committed before the transaction."""
    _until: float = field(default=math.inf, init=False)
    """When to return without further tasks, see :data:`PATIENCE`."""

    _late: set[Identity] = field(default_factory=set, init=False)
    """The claimed tasks that follow one of their key that is set aside."""

    def is_over(self) -> bool:
        """Whether to take no more, because the claim has met rows that cannot be read for long enough."""
        return time.monotonic() >= self._until

    def claim(self, query: ClaimQuery, limit: int) -> list[Any]:
        """Claim tasks.  Schedule recurring ones that must not run now for a later time, cancel those that have expired,
        and claim others instead."""
        spec = query.spec
        if not (spec.recurs or spec.expires):
            tasks = self._claim_rows(query, limit)
            return tasks if self.gate is None else self._with_slots(tasks)
        skip, kept = self._skip_runs if spec.recurs else partial(self._end_expired, query), list[Any]()
        while True:
            tasks = self._claim_rows(query, limit - len(kept))
            skipped = skip(tasks)
            kept += self._with_slots([task for task in tasks if spec.identity_of(task) not in skipped])
            if not skipped or self.is_over():
                return kept

    def _skip_runs(self, tasks: Sequence[Any]) -> set[Identity]:
        spec = self.query.spec
        fence = Fence(spec=spec, locked_by=self.claimed_by if self.lease is None else None)
        fenced = FencedClaims(open_(self.session, spec), self.session, fence, [claim_of(task) for task in tasks])
        skipped = skip_runs(fenced, tasks)
        for task in tasks:
            if spec.identity_of(task) in skipped:
                mark_settled(self.session, task, "skipped")
        return skipped

    def _end_expired(self, query: ClaimQuery, tasks: Sequence[Any]) -> set[Identity]:
        """Cancel those of ``tasks``, just claimed, that have expired; return their primary keys.

        If there are any, cancel those among the next tasks too, :data:`AT_ONCE` at most.
        """
        spec = query.spec
        ended = self._cancel_expired(tasks)
        if not ended:
            return set()
        self._until = min(self._until, time.monotonic() + PATIENCE)
        number = len(ended) + self._end_following(query)
        ledger_of(self.session).expired += number
        announce_look(self.session, spec)
        text = "%s: %d tasks expired before they were started, and are cancelled"
        logger.info(text, spec.name, number, extra={"queue": spec.name, "expired": number})
        return ended

    def _end_following(self, query: ClaimQuery) -> int:
        """Cancel those of the next tasks that have expired; return how many."""
        spec, adapter, number = query.spec, open_(self.session, query.spec), 0
        # an expired task waits for no earlier one
        for step in query.steps if spec.sequence is None else picks(spec, query.where):
            pick = step(AT_ONCE)
            if pick.lanes is not None:
                pick = replace(pick.lanes.ordered, limit=AT_ONCE)
            names = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
            moment = spec["expires_at"].label("moment")
            following = adapter.rows.select_candidates(pick, *names, moment).subquery("following")
            late = select(*(following.c[name.name] for name in names)).where(following.c.moment <= utcnow())
            for some in adapter.rows.batches(spec, adapter.rows.keys(self.session, spec, late)):
                where = [*query.where, adapter.rows.key_in(spec, some), has_expired(spec)]
                named = query.narrowed(where, named=True)
                number += len(self._cancel_expired(replace(self, gate=None)._claim_rows(named, len(some))))
        return number

    def _cancel_expired(self, tasks: Sequence[Any]) -> set[Identity]:
        late = [task for task in tasks if self._may_have_expired(task)]
        claims = [claim_of(task) for task in late]
        others = set(settle_some(self.session, late, EXPIRY))
        return {claim.identity for claim in claims if claim not in others}

    def _may_have_expired(self, task: object) -> bool:
        """Return whether the task has expired, or only the database knows: its row shows the time of this claim, unless
        the claim only locks it or loader options have excluded an attribute."""
        shown, names = instance_dict(task), self.query.spec.attributes
        if names["expires_at"] not in shown:
            return True
        moment, since = (shown.get(names[role]) for role in ("expires_at", "claimed_at"))
        return moment is not None and (self.lease is None or since is None or moment <= since)

    def _with_slots(self, tasks: list[Any]) -> list[Any]:
        if self.gate is not None:
            self.gate.assign(map(claim_of, tasks))
        return tasks

    def _claim_rows(self, query: ClaimQuery, limit: int) -> list[Any]:
        """Lock tasks, write the claim to them unless only the locks hold them, and record it in the ledger."""
        spec, name, token = query.spec, self.claimed_by, self.tokens()
        attempt, claimed_at = spec.attributes["attempt"], spec.attributes["claimed_at"]
        held_claims: list[tuple[InstanceState[Any], HeldClaim]] = []
        if self.lease is None:
            tasks = self.take(query, limit)
            _prepare_locked(self.session, spec, tasks)
            for task in tasks:
                number = min(getattr(task, attempt) + 1, LARGEST)
                made = Claim(type(task), spec.identity_of(task), number, token, name)
                held_claims.append((instance_state(task), HeldClaim(made, locked_by=name)))
        else:
            lease = self.lease
            assignments = spec.made.get(("claim", name, lease), lambda: claim_assignments(spec, name, lease))
            tasks = self.take(query, limit, assignments, {TOKEN: token})
            for task in tasks:
                since = instance_dict(task).get(claimed_at)
                made = Claim(type(task), spec.identity_of(task), getattr(task, attempt), token, name, since)
                held_claims.append((instance_state(task), HeldClaim(made)))
        ledger_of(self.session).remember(self.session, held_claims)
        if self._late:  # they must wait for one before them that cannot be read
            late = [task for task in tasks if spec.identity_of(task) in self._late]
            settle_some(self.session, late, RETURNED)
            tasks = [task for task in tasks if task not in late]
        return tasks

    def take(
        self,
        query: ClaimQuery,
        limit: int,
        assignments: Sequence[Assignment] = (),
        parameters: Parameters | None = None,
        *,
        delete: bool = False,
    ) -> list[Any]:
        """Lock tasks, and write the assignments or delete them: available rows first, then due rows if there are fewer
        than ``limit``.

        Rows that cannot be read are set aside, and others taken instead, as long as there is time.
        """
        session, spec, tasks = self.session, query.spec, list[Any]()
        adapter = open_(session, spec, Access.CLAIM if assignments or delete else Access.HOLD)
        ledger = ledger_of(session)
        passed = ledger.locked(spec.table) if ledger.changes else []
        for step in query.steps:
            while len(tasks) < limit:
                pick = step(limit - len(tasks))
                if passed:
                    pick = pick.without(adapter.rows.key_in(spec, passed))
                if query.order and pick.lanes is None:
                    _check_order(adapter, pick)
                request = ClaimRequest(
                    pick=pick,
                    assignments=assignments,
                    parameters=parameters,
                    delete=delete,
                    options=query.options,
                    alone=self.alone,
                )
                records = pick.takes_over and (assignments or delete) and history_of(spec.table.metadata)
                writes = partial(_write_recorded, adapter) if records else None
                if pick.lanes is not None and pick.lanes.free is not None:
                    rotation = rotation_of(session, pick, query.rotations)
                    writing = writes or adapter.rows.write_locked
                    taken = claim_in_sequence(adapter, rotation, writing, session, request)
                elif pick.lanes is not None:
                    by_lanes = LaneClaim(adapter, session, request, self.gate, writes)
                    taken = by_lanes.claim(query.rotations)
                    ledger.is_cut = ledger.is_cut or by_lanes.is_cut
                elif writes is not None:
                    taken = writes(session, request, adapter.rows.lock(session, pick))
                else:
                    taken = adapter.rows.lock_and_write(session, request)
                if not request.unreadable:
                    tasks += taken
                    break
                self._until = min(self._until, time.monotonic() + PATIENCE)
                self._late.update(request.late)
                set_aside(adapter, session, spec, request.unreadable, claimed=bool(assignments))
                # a claim that has to search for its rows also finds those of the step before
                before = {spec.identity_of(task) for task in tasks}
                tasks += [task for task in taken if spec.identity_of(task) not in before]
                passed = [*passed, *map(spec.identity_of, tasks), *(each.identity for each in request.unreadable)]
                if self.is_over():
                    return tasks
        return tasks


def _write_recorded(adapter: Adapter, session: Session, request: ClaimRequest, locked: Sequence[Identity]) -> list[Any]:
    """Claim locked tasks as :meth:`.Rows.write_locked` does, and record the attempts of those whose claimers have
    crashed, which the rows do not show afterwards."""
    pick, tasks = request.pick, list[Any]()
    spec = pick.spec
    for some in adapter.rows.batches(spec, locked):
        named = adapter.rows.key_in(spec, some)
        crashed = last_claims(adapter, session, spec, and_(named, is_held(spec)))
        chosen = replace(pick.named(named, len(some)), where=(named,), order=pick.order, lanes=None)
        taken = adapter.rows.lock_and_write(session, replace(request, pick=chosen))
        found = {spec.identity_of(task) for task in taken}
        if request.assignments:  # otherwise, setting rows aside records them
            found.update(each.identity for each in request.unreadable)
        record(adapter, session, [claim for claim in crashed if claim.identity in found], ABANDONED)
        tasks += taken
    return tasks


def _prepare_locked(session: Session, spec: QueueSpec, tasks: Sequence[Any]) -> None:
    """Make a commit check that the locked ``tasks`` are settled, and record the attempts of claimers that have crashed,
    which the rows still show.

    Writes only to rows whose worker has crashed.
    """
    if not tasks:
        return
    guard(session, session.connection(spec.bind_arguments))
    left = [task for task in tasks if getattr(task, spec.attributes["status"]) == Status.RUNNING]
    adapter = open_(session, spec)
    if history_of(spec.table.metadata) is not None:
        record(adapter, session, [claim_in(task) for task in left], ABANDONED)
    crashed = [task for task in left if is_token_of_worker(getattr(task, spec.attributes["claim_token"]))]
    for some in adapter.rows.batches(spec, [spec.identity_of(task) for task in crashed]):
        taken_over = write(spec, adapter.rows.key_in(spec, some), takeover_assignments(spec))
        adapter.rows.execute(session, spec, adapter.rows.by_key(spec, taken_over))
    for task in crashed:
        session.refresh(task, [spec.attributes["max_attempts"], spec.attributes["crashes"]])


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
    query = ClaimQuery(spec_of(entity), where, order_by, options)
    return consume_matching(session, query, count("limit", limit), claimed_by=claimed_by)


def consume_matching(
    session: AnySession, query: ClaimQuery, limit: int, *, claimed_by: str | None = None
) -> Sequence[Any]:
    """Claim and complete as :func:`consume_many` does."""
    spec, session = query.spec, session_of(session)
    if spec.expires or any(kind.continues(spec) for kind in kinds_of(spec)):
        tasks = claim_matching(session, query, limit, claimed_by=claimed_by, locks_only=True)
        return _complete_at_once(session, spec, tasks)
    name, deletes = claimer_name(claimed_by), spec.options.on_complete == "delete"
    if scope := scope_of(session, spec, query.options):
        query = query.narrowed([*query.where, *scope])
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
        facts = task_facts(held, attempt.function) | {"outcome": prospect.kind, "retry_in": prospect.retry_in}
        text = "%s failed (%s), %s"
        logger.log(prospect.level, text, attempt, reason, prospect.text, exc_info=error, extra=facts)
        fail(session, held, error)
    else:
        if is_unsettled(task):
            complete(session, held)
