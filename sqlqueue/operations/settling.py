"""Settles claims.  Each operation takes a claimed task, a :class:`.Claim`, or an iterable of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias, overload

from sqlalchemy import and_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstanceState, Session
from sqlalchemy.orm.attributes import instance_state, set_committed_value

from .._support.checks import duration
from .._support.claim import Claim
from .._support.error_text import ascii_text, error_text
from .._support.exc import ArgumentError, ClaimLostError, IllegalTransitionError
from ..dialects.base import Adapter
from ..lifecycle.fence import Fence
from ..lifecycle.fenced import FencedClaims
from ..lifecycle.kind import holding_slots, kinds_of, other_keys
from ..model.history import history_of
from ..model.mixins import QueueMixin
from ..queue.spec import QueueSpec, Where, spec_of
from ..sql.states import is_available
from ..transaction.claims import holds_of
from ..transaction.connection import Access, AnySession, open_, session_of
from ..transaction.ledger import Hold, ledger_of
from ..transaction.notifications import announce
from .bulk import cancel_where, discard_where
from .recording import record, stored_traceback
from .settlements import (
    KNOWN,
    UNKNOWN,
    Cancelling,
    Completing,
    Discarding,
    Extending,
    Failing,
    Releasing,
    Settlement,
    Snoozing,
)

Tasks: TypeAlias = QueueMixin | Claim | Iterable[QueueMixin] | Iterable[Claim]
Holds: TypeAlias = Sequence[tuple[Hold, InstanceState[Any] | None]]


def complete(session: AnySession, tasks: Tasks, result: object = None, *, stage: str | None = None) -> None:
    """Complete tasks: they become ``completed``, or are deleted if the model's ``on_complete`` says so.

    A task that was enqueued again while it ran (``on_conflict="rerun"``) becomes ``available`` instead.  A task of a
    :class:`.StageMixin` moves to its next stage, or to ``stage``; a task of a :class:`.RecurringMixin` to its next run.

    ``result`` is stored as JSON by models that derive from :class:`.ResultMixin`.

    An instance then shows the new state without a query, also with asyncio; the times, the next stage and the next run
    are loaded when they are read.  Whether the task was enqueued again while it ran, only a refresh shows.

    Runs in the session's transaction, in one statement for up to a few thousand tasks.  Raises :class:`.ClaimLostError`
    if a row no longer belongs to the claim: in that case, roll the transaction back, so that nothing done for a lost
    claim is committed.  Raises :class:`.IllegalTransitionError`, before anything is sent, for tasks that were not
    claimed or are settled already.
    """
    _settle(session, tasks, Completing(result, stage))


def fail(session: AnySession, tasks: Tasks, error: BaseException | str, retry_in: timedelta | None = None) -> None:
    """Record a failure: tasks become ``retryable`` after the model's backoff or ``retry_in``, and finally
    ``discarded``.

    A task is discarded at once where the model's :class:`.RetryByError` says so.  A recurring task is never discarded:
    its next run is scheduled instead, and the error stays until a run succeeds.  ``error`` is stored as text, an
    exception as ``"TypeName: message"``, in ASCII if the database cannot store it otherwise.  If the model's retry
    policy raises or returns no valid delay, that is logged, and the default backoff applies.  For the transaction and
    errors see :func:`complete`.
    """
    if retry_in is not None:
        duration("retry_in", retry_in, zero=True)
    cause = type(error) if isinstance(error, BaseException) else None
    _settle_with_text(session, tasks, Failing(error_text(error), cause, retry_in, _raised(error)))


@overload
def discard(session: AnySession, tasks: Tasks, /, error: BaseException | str) -> None: ...
@overload
def discard(
    session: AnySession,
    entity: type[QueueMixin],
    /,
    *where: Where,
    error: BaseException | str,
    limit: int | None = None,
) -> int: ...
def discard(
    session: AnySession,
    tasks: Any,
    /,
    *where: Any,
    error: BaseException | str | None = None,
    limit: int | None = None,
) -> int | None:
    """Give up tasks: they become ``discarded`` (dead letters) with the text of ``error``.

    With claims, it settles them; see :func:`complete`.  With a model, it discards all tasks that satisfy ``where`` and
    are not final, including running ones, whose claims are lost, and returns how many; without criteria, these are all
    tasks of the queue.  See :func:`cancel`.
    """
    if isinstance(tasks, type):
        if error is None:
            raise ArgumentError("discard() requires error=: discard(session, Task, Task.id == 7, error='...')")
        return discard_where(session_of(session), spec_of(tasks), where, error_text(error), limit)
    if len(where) + (error is not None) != 1 or limit is not None:
        raise ArgumentError(
            "discard claims with discard(session, tasks, error), and by criteria with"
            " discard(session, Task, Task.id == 7, error='...')"
        )
    reason: BaseException | str = where[0] if error is None else error
    _settle_with_text(session, tasks, Discarding(error_text(reason), _raised(reason)))
    return None


def _raised(error: BaseException | str) -> BaseException | None:
    return error if isinstance(error, BaseException) else None


@overload
def cancel(session: AnySession, tasks: Tasks, /) -> None: ...
@overload
def cancel(session: AnySession, entity: type[QueueMixin], /, *where: Where, limit: int | None = None) -> int: ...
def cancel(session: AnySession, tasks: Any, /, *where: Where, limit: int | None = None) -> int | None:
    """Cancel tasks that are no longer wanted: they become ``cancelled``.

    With claims, it settles them; see :func:`complete`.  With a model, it cancels all tasks that satisfy ``where`` and
    are not final, including running ones, whose claims are lost, and returns how many.  Without criteria, these are all
    tasks of the queue.

    Runs in the session's transaction, in one statement as far as the engine allows.  It waits for rows that others have
    locked, and all rows stay locked until the transaction ends.  For a large set, change at most ``limit`` rows per
    transaction; fewer are changed only when no more are left::

        while session.cancel(Email, Email.campaign_id == 12, limit=1_000):
            session.commit()
    """
    if isinstance(tasks, type):
        return cancel_where(session_of(session), spec_of(tasks), where, limit)
    if where or limit is not None:
        raise ArgumentError("criteria and limit= need a model: cancel(session, Task, Task.id == 7)")
    _settle(session, tasks, Cancelling())
    return None


def release(session: AnySession, tasks: Tasks) -> None:
    """Return tasks unfinished: they become ``available`` at once, and the attempt does not count.

    For the transaction and errors see :func:`complete`.
    """
    _settle(session, tasks, Releasing())


def snooze(session: AnySession, tasks: Tasks, delay: timedelta) -> None:
    """Postpone tasks: they become ``scheduled`` for ``delay`` from now, and the attempt does not count.

    For the transaction and errors see :func:`complete`.
    """
    duration("delay", delay, zero=True)
    _settle(session, tasks, Snoozing(delay))


def heartbeat(session: AnySession, tasks: Tasks, lease: timedelta | None = None) -> None:
    """Extend the leases of tasks to ``lease`` from now; the model's lease by default.

    For the transaction and errors see :func:`complete`.
    """
    if lease is not None:
        duration("lease", lease)
    _settle(session, tasks, Extending(lease))


_UNTOUCHED = ("priority", "created_at")
"""Column roles that settling never writes, besides those that the kinds declare."""


def _settle(session: AnySession, tasks: Tasks, settlement: Settlement) -> None:
    """Settle all tasks, or raise :class:`.ClaimLostError`."""
    lost = settle_some(session, tasks, settlement)
    if lost:
        raise ClaimLostError(lost)


def _settle_with_text(session: AnySession, tasks: Tasks, settlement: Failing | Discarding) -> None:
    """Settle all tasks; if the database cannot store the text of the error, with one in ASCII and no traceback.

    A character that its character set lacks would otherwise replace the failure, which would never count.
    """
    session = session_of(session)
    holds = holds_of(session, tasks)
    spec = spec_of(holds[0][0].claim.entity) if holds else None
    history = None if spec is None else history_of(spec.table.metadata)
    traced = None if history is None else stored_traceback(settlement.traceback, history.options)
    settlement = replace(settlement, traceback=traced)
    if spec is None or f"{settlement.text}{traced}".isascii():
        lost = _settle_holds(session, holds, settlement)
    else:
        adapter = _open(session, spec)
        connection = session.connection(spec.bind_arguments)
        # to release the outermost savepoint would commit on SQLite
        adapter.transactions.begin_to_claim(connection, spec, fresh=False)
        try:
            with connection.begin_nested():  # an error ends a transaction of PostgreSQL
                lost = _settle_holds(session, holds, settlement)
        except Exception as error:
            if not adapter.errors.is_rejection(error):
                if isinstance(error, DBAPIError):  # after a deadlock on MySQL, the savepoint is missing
                    raise adapter.errors.reason(error) from error.orig
                raise
            plain = replace(settlement, text=ascii_text(settlement.text), traceback=None)
            lost = _settle_holds(session, holds, plain)
    if lost:
        raise ClaimLostError(lost)


def settle_some(session: AnySession, tasks: Tasks, settlement: Settlement, *, waits: bool = True) -> list[Claim]:
    """Apply a settlement to the rows of ``tasks``, fenced, and record it in the ledger.  Returns the lost claims.

    Without ``waits``, rows that others have locked are skipped, and their claims are returned as well.
    """
    session = session_of(session)
    return _settle_holds(session, holds_of(session, tasks), settlement, waits=waits)


def _settle_holds(session: Session, holds: Holds, settlement: Settlement, *, waits: bool = True) -> list[Claim]:
    if not holds:
        return []
    if settlement.how is None and any(hold.locked_by for hold, _ in holds):
        raise IllegalTransitionError("a claim made with lease=None has no lease: its row is locked until the commit")
    spec = spec_of(holds[0][0].claim.entity)
    adapter = _open(session, spec, waits=waits)
    lost: list[Claim] = []
    alike = defaultdict[tuple[Any, str | None], list[Claim]](list)
    for hold, _ in holds:
        alike[hold.claim.entity, hold.locked_by].append(hold.claim)
    for (entity, locked_by), claims in alike.items():
        fence = Fence(spec=spec_of(entity), claimed_by=locked_by, waits=waits)
        lost += _apply(FencedClaims(adapter, session, fence, claims), settlement)
    if lost:
        gone = set(lost)
        holds = [(hold, state) for hold, state in holds if hold.claim not in gone]
    _note(session, holds, settlement)
    if holds and (_is_news(spec, settlement.how) or _runs_again(session, adapter, spec, holds, settlement.how)):
        announce(session, spec)
    return lost


def _open(session: Session, spec: QueueSpec, *, waits: bool = True) -> Adapter:
    # skipping locked rows needs the isolation level of claims; freeing slots needs the latest rows
    meets = Access.READ if holding_slots(spec) is None else Access.CHANGE
    return open_(session, spec, meets if waits else Access.CLAIM)


def _apply(fenced: FencedClaims, settlement: Settlement) -> list[Claim]:
    """Apply the settlement in batches; return the lost claims."""
    spec, adapter, claims = fenced.spec, fenced.adapter, fenced.claims
    history = None if settlement.how is None else history_of(spec.table.metadata)
    lost: list[Claim] = []
    for some in chain.from_iterable(adapter.keys.batches(spec, each) for each in _of_different_rows(claims)):
        kept = settlement.apply(fenced.of(some))
        if len(kept) < len(some):
            lost += [claim for claim in some if claim.identity not in kept]
        if history is not None:
            held = [claim for claim in some if claim.identity in kept]
            record(adapter, fenced.session, held, settlement.told(history.options))
    for kind in kinds_of(spec) if settlement.how is not None else ():
        # free the slots of lost claims as well, but not those of claims that were skipped because they are locked
        done = claims if fenced.fence.waits else [claim for claim in claims if claim not in lost]
        kind.settled(adapter, fenced.session, spec, done)
    return lost


def _of_different_rows(claims: Sequence[Claim]) -> Iterator[Sequence[Claim]]:
    """Split claims so that no part contains two claims of one row: the database decides which of them holds it."""
    while claims:
        part = {claim.identity: claim for claim in claims}
        yield list(part.values())
        claims = [claim for claim in claims if part[claim.identity] is not claim] if len(part) < len(claims) else ()


def _is_news(spec: QueueSpec, how: str | None) -> bool:
    """Return whether the settlement may have made a task claimable."""
    return how == "released" or (how is not None and any(kind.announces(spec, how) for kind in kinds_of(spec)))


def _runs_again(session: Session, adapter: Adapter, spec: QueueSpec, holds: Holds, how: str | None) -> bool:
    """Return whether one of the tasks was enqueued again while it ran.  Only queues with ``unique_key`` are checked."""
    if how not in ("completed", "failed", "discarded") or not other_keys(spec):
        return False
    keys = [hold.claim.identity for hold, _ in holds]
    available = (and_(adapter.keys.key_in(spec, some), is_available(spec)) for some in adapter.keys.batches(spec, keys))
    return any(adapter.rows.exists(session, spec, each) for each in available)


def _note(session: Session, holds: Holds, settlement: Settlement) -> None:
    """Record the settlement in the ledger, and show in the instances what it has written.

    Attributes with a value that only the database knows expire.
    """
    how, present = settlement.how, [(hold, state) for hold, state in holds if state is not None]
    if how is not None:
        settled = [(state, hold._replace(settled=how)) for hold, state in present]
        ledger_of(session).remember(session, settled)
    else:
        ledger_of(session).wrote(session, [state for _, state in present])
    for hold, state in present:
        task = state.obj()
        if task is not None and state.session is session:
            _show(session, task, hold, settlement)


def _show(session: Session, task: object, hold: Hold, settlement: Settlement) -> None:
    spec, shown = spec_of(hold.claim.entity), instance_state(task).dict
    values = {role: shown[name] for role, name in spec.attributes.items() if name in shown}
    fence = Fence(spec=spec, claimed_by=hold.locked_by)
    changes = settlement.shows(fence, {**values, "attempt": hold.claim.attempt})
    if changes is None:
        session.expire(task, _written(spec, locked=fence.only_locked))
        return
    unknown = [*_generated(spec), *_of_other_kinds(spec)]
    for role, value in changes.items():
        if value is UNKNOWN:
            unknown.append(spec.attributes[role])
        else:
            set_committed_value(task, spec.attributes[role], value)
    session.expire(task, unknown)


@lru_cache
def _written(spec: QueueSpec, *, locked: bool) -> Sequence[str]:
    """Return the attributes that a settlement may write.  Others stay loaded, since asyncio cannot load them lazily."""
    untouched = {*_UNTOUCHED, *(role for kind in kinds_of(spec) for role in kind.untouched)}
    roles = [role for role in spec.columns if role not in untouched and (role != "attempt" or locked)]
    return [*(spec.attributes[role] for role in roles), *_generated(spec)]


@lru_cache
def _of_other_kinds(spec: QueueSpec) -> Sequence[str]:
    """Return the attributes of kinds whose values settlements do not know."""
    kinds = kinds_of(spec)
    roles = [role for kind in kinds for role in kind.columns if role not in kind.untouched and role not in KNOWN]
    return [spec.attributes[role] for role in roles if role in spec.attributes]


@lru_cache
def _generated(spec: QueueSpec) -> Sequence[str]:
    """Return the attribute of the version that the server generates on each write, if there is one."""
    column = spec.mapper.version_id_col
    if column is None or spec.mapper.version_id_generator:
        return []
    return [spec.mapper.get_property_by_column(column).key]
