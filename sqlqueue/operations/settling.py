"""Settlements: how attempts end, and what that writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias, overload

from sqlalchemy import and_, literal_column
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstanceState, Session
from sqlalchemy.orm.attributes import instance_dict, set_committed_value

from .._support.checks import check_json, duration
from .._support.errors import ArgumentError, Claim, ClaimLostError, IllegalTransitionError
from .._support.texts import ascii_text, error_group, error_text
from ..dialects.base import Adapter
from ..kinds.limits import Slots
from ..kinds.recurring import schedule_next_runs
from ..lifecycle.kind import kinds_of
from ..lifecycle.transitions import (
    Fence,
    FencedClaims,
    error_assignments,
    expire_assignments,
    fail_assignments,
    finish_assignments,
    lives_on,
    release_assignments,
    return_assignments,
    suspect_crashes,
    wait_assignments,
)
from ..model.companions import history_of
from ..model.declaration import QueueMixin
from ..queue.options import EXPIRED, AttemptOutcome, Status
from ..queue.retries import DEFAULT_RETRY, delay_after, policy_for
from ..queue.spec import Identity, QueueSpec, Where, spec_of
from ..sql import LARGEST, Assignment, has_expired, is_available, leased
from ..transaction import Access, AnySession, HeldClaim, announce, held_claims_of, ledger_of, open_, session_of
from .bulk import cancel_where, discard_where
from .latches import is_latch_open
from .recording import ABANDONED, Attempt, AttemptRecord, Traceback, record, stored_traceback

# -- settlements as values: how attempts end, and what that writes to the rows of claimed tasks -----------------------

Shown: TypeAlias = Mapping[str, Any]
"""Values that an instance shows, by role."""
UNKNOWN: Final = object()
"""A value that only the database knows, such as its time."""
KNOWN = frozenset({"result", "stage", "unique_key", "former_key", "scheduled_for", "attempts_before"})
"""The roles of kinds that :attr:`Settlement.shows` takes care of.  Those of other kinds are unknown after any write."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Settlement:
    """The change that a settling operation makes to claimed tasks."""

    write: Callable[[FencedClaims], set[Identity]]
    """Writes to the rows that the claims still hold; returns their primary keys."""
    record: AttemptRecord | None = None
    """How the attempts end, as the history records it; ``None`` if the claims continue."""
    status: Status | None = None
    """The status of tasks that do not go on to a next stage or run; of a failure, the one before the last attempt."""
    shows: Callable[[QueueSpec, Shown], Shown | None] = lambda spec, shown: None
    """Returns what changes in an instance that shows these values, with the number of the attempt, by role.

    ``UNKNOWN`` stands for values that only the database knows; ``None`` if those are all.  Not among them is the claim,
    which the settlement of one with ``lease=None`` writes as well.  A task that was enqueued again while it ran is not
    recognized.
    """


def _update(
    assignments: Callable[[Fence], Sequence[Assignment]], key: Hashable | None = None
) -> Callable[[FencedClaims], set[Identity]]:
    """Return a :attr:`Settlement.write` of one statement, cached under ``key``."""
    return lambda fenced: fenced.update(lambda: assignments(fenced.fence), key=key)


def completed(result: object = None, stage: str | None = None) -> Settlement:
    """Complete tasks: schedule the next run of recurring ones; complete the others, or delete them if the model's
    options say so.

    Raises :class:`.ArgumentError` if ``result`` cannot be stored as JSON.
    """
    if result is not None:
        check_json("result", result)

    def write(fenced: FencedClaims) -> set[Identity]:
        spec = fenced.fence.spec
        if result is not None or stage is not None:
            _check_completion(spec, result, stage)
        values: list[Assignment] = [] if result is None else [(spec["result"], result)]
        key = ("completed", stage) if result is None else None
        fence, going_on = fenced.fence, set[Identity]()
        if spec.recurs:
            going_on, fenced = schedule_next_runs(fenced, [*error_assignments(spec, None), *values])
        gone, lives = set[Identity](), None
        if spec.options.on_complete == "delete":
            lives = lives_on(fence, Status.COMPLETED, stage)
            gone = fenced.update(None, key=("deleted", stage), only=None if lives is None else ~lives)
            _expunge(fenced.session, spec, gone)
            if lives is None:  # rows that were skipped as locked may be free by now: do not write to them
                return going_on | gone
            fenced = fenced.of([claim for claim in fenced.claims if claim.identity not in gone])
        finish = fenced.update(
            lambda: [*values, *finish_assignments(fence, Status.COMPLETED, stage=stage)],
            key=key,
            only=lives,
        )
        return going_on | gone | finish

    def shows(spec: QueueSpec, shown: Shown) -> Shown | None:
        if "attempts_before" in spec.columns:
            return None  # it may have a next stage or run
        final = _final(spec, shown, Status.COMPLETED)
        return final if result is None else final | {"result": UNKNOWN}  # as JSON returns it

    return Settlement(write=write, record=_COMPLETED, status=Status.COMPLETED, shows=shows)


_COMPLETED = AttemptRecord(AttemptOutcome.COMPLETED)


def _check_completion(spec: QueueSpec, result: object, stage: str | None) -> None:
    if result is not None and not spec.keeps_results:
        raise ArgumentError(f"{spec.entity.__name__} has no column for a result: derive it from ResultMixin")
    if stage is not None and stage not in spec.options.stages:
        stages = ", ".join(spec.options.stages) or "none: that is for models that derive from StageMixin"
        raise ArgumentError(f"stage={stage!r}: the stages of {spec.entity.__name__} are {stages}")


def _expunge(session: Session, spec: QueueSpec, identities: Iterable[Identity]) -> None:
    for identity in identities:
        task = session.identity_map.get(spec.mapper.identity_key_from_primary_key(identity))
        if task is not None:
            session.expunge(task)


def failed(
    error: str,
    *,
    cause: type[BaseException] | None = None,
    retry_in: timedelta | None = None,
    traceback: Traceback = None,
    last: Collection[Claim] = (),
) -> Settlement:
    """Record a failure: schedule the next run of recurring tasks without attempts left; retry or discard the others.

    ``cause``: the exception's class, which a retry policy may depend on.  ``last``: claims known to have no attempt
    left: the policy is not asked for their delays, which nothing uses.
    """

    def write(fenced: FencedClaims) -> set[Identity]:
        spec = fenced.fence.spec
        policy = policy_for(spec.options.retry, cause)
        gives_up = policy is None and retry_in is None
        going_on, fenced = schedule_next_runs(fenced, error_assignments(spec, error), spent=not gives_up)
        spent = {*last, *_last(fenced)}
        numbers = _tries(spec, [claim for claim in fenced.claims if claim not in spent])
        if retry_in is not None:
            delays = dict.fromkeys(numbers, retry_in)
        elif policy is not None:
            delays = {number: delay_after(policy, number, spec.entity.__name__) for number in numbers}
        else:
            return going_on | fenced.write(finish_assignments(fenced.fence, Status.DISCARDED, error=error))
        values = [*fail_assignments(fenced.fence, delays or {1: DEFAULT_RETRY(1)}), *error_assignments(spec, error)]
        return going_on | fenced.write(values)

    def shows(spec: QueueSpec, shown: Shown) -> Shown | None:
        if "max_attempts" not in shown:
            return None
        gives_up = retry_in is None and policy_for(spec.options.retry, cause) is None
        if not gives_up and shown["attempt"] < shown["max_attempts"]:
            return {"status": Status.RETRYABLE.value, "available_at": UNKNOWN, "crashes": 0} | _told(error)
        if spec.recurs:
            return None
        # a failure after the last attempt clears the suspicion, which giving up at once does not
        crashes = {} if gives_up else {"crashes": 0}
        return _final(spec, shown, Status.DISCARDED) | _told(error) | crashes

    record = AttemptRecord(AttemptOutcome.FAILED, error, traceback)
    return Settlement(write=write, record=record, status=Status.RETRYABLE, shows=shows)


def _last(fenced: FencedClaims) -> Iterator[Claim]:
    """Yield the claims that have no attempt left, according to instances of the session."""
    spec, present = fenced.fence.spec, fenced.session.identity_map
    for claim in fenced.claims if present else ():
        task = present.get(spec.mapper.identity_key_from_primary_key(claim.identity))
        if task is not None and Attempt.of(spec, claim, instance_dict(task)).is_last:
            yield claim


def _tries(spec: QueueSpec, claims: Sequence[Claim]) -> Iterable[int]:
    """Return the attempt numbers that need a delay.  Numbers beyond the last use the last one's delay."""
    attempts = sorted({claim.attempt for claim in claims})
    if "attempts_before" not in spec.columns or not attempts:
        return attempts
    return range(1, min(attempts[-1], max(1, spec.options.max_attempts - 1)) + 1)


def discarded(error: str, *, traceback: Traceback = None) -> Settlement:
    """Discard tasks with an error."""
    return Settlement(
        write=_update(lambda fence: finish_assignments(fence, Status.DISCARDED, error=error)),
        record=AttemptRecord(AttemptOutcome.DISCARDED, error, traceback),
        status=Status.DISCARDED,
        shows=lambda spec, shown: _final(spec, shown, Status.DISCARDED) | _told(error),
    )


def discarded_after_crashes(error: str) -> Settlement:
    """Discard tasks that have crashed too many processes; schedule the next run of recurring ones."""

    def write(fenced: FencedClaims) -> set[Identity]:
        going_on, fenced = schedule_next_runs(fenced, error_assignments(fenced.fence.spec, error))
        return going_on | discarding.write(fenced)

    discarding = discarded(error)
    return replace(
        discarding,
        write=write,
        record=AttemptRecord(AttemptOutcome.CRASHED, error),
        shows=lambda spec, shown: None if spec.recurs else discarding.shows(spec, shown),
    )


CANCELLED = Settlement(
    write=_update(lambda fence: finish_assignments(fence, Status.CANCELLED), key="cancelled"),
    record=AttemptRecord(AttemptOutcome.CANCELLED),
    status=Status.CANCELLED,
    shows=lambda spec, shown: _final(spec, shown, Status.CANCELLED),
)
"""Cancels tasks."""


EXPIRY = Settlement(
    write=lambda fenced: fenced.update(
        lambda: finish_assignments(fenced.fence, Status.CANCELLED, error=EXPIRED),
        key=EXPIRED,
        only=has_expired(fenced.fence.spec),
    ),
    record=AttemptRecord(AttemptOutcome.CANCELLED, EXPIRED),
    status=Status.CANCELLED,
    shows=lambda spec, shown: _final(spec, shown, Status.CANCELLED) | _told(EXPIRED),
)
"""Cancels tasks that were claimed too late; all others are returned as lost."""


def _final(spec: QueueSpec, shown: Shown, status: Status) -> dict[str, Any]:
    """Return what instances of tasks that become final show."""
    final: dict[str, Any] = {"status": status.value, "available_at": UNKNOWN, "finished_at": UNKNOWN}
    if status is not Status.DISCARDED:
        final["crashes"] = 0
    if spec.has_unique_keys:
        key = shown.get("unique_key", UNKNOWN)
        final |= {"unique_key": None, "former_key": shown.get("former_key", UNKNOWN) if key is None else key}
    return final


def _told(error: str) -> dict[str, Any]:
    return {"error": error, "error_group": error_group(error)}


def snoozed(delay: timedelta, error: str | None = None) -> Settlement:
    """Postpone tasks, without counting the attempt.  ``error``: because of which they are postponed, if it was one."""

    def assignments(fence: Fence) -> Sequence[Assignment]:
        back = release_assignments(fence, delay)
        return back if error is None else [*back, *error_assignments(fence.spec, error)]

    def shows(spec: QueueSpec, shown: Shown) -> Shown:
        back = _handed_back(shown, Status.SCHEDULED)
        return back if error is None else back | _told(error)

    record = AttemptRecord(AttemptOutcome.SNOOZED, error)
    return Settlement(write=_update(assignments), record=record, status=Status.SCHEDULED, shows=shows)


def waiting(latch: str, within: timedelta | None) -> Settlement:
    """Let tasks wait until a latch opens, at most ``within`` that time, without counting the attempt."""

    def assignments(fence: Fence) -> Sequence[Assignment]:
        return wait_assignments(fence, latch, is_latch_open(fence.spec, latch), within)

    record = AttemptRecord(AttemptOutcome.SNOOZED)
    return Settlement(write=_update(assignments), record=record, status=Status.WAITING)


def _released(assignments: Callable[[Fence], Sequence[Assignment]], key: str) -> Settlement:
    record = AttemptRecord(AttemptOutcome.RELEASED)
    return Settlement(write=_update(assignments, key=key), record=record, status=Status.AVAILABLE)


RELEASED = replace(
    _released(lambda fence: release_assignments(fence, None), "released"),
    shows=lambda spec, shown: _handed_back(shown, Status.AVAILABLE),
)
"""Returns tasks unfinished, without counting the attempt."""
RETURNED = _released(lambda fence: return_assignments(fence, fence.spec["crashes"]), "returned")
"""Releases tasks that were not started; whether they crash a process remains unknown."""
CLEARED = _released(lambda fence: return_assignments(fence, fence.spec["crashes"] - literal_column("1")), "uncounted")
"""Releases suspects whose process did not crash, or not because of them: takes back :data:`CRASH_COUNTED`."""


def _handed_back(shown: Shown, status: Status) -> dict[str, Any]:
    budget = min(shown["max_attempts"] + 1, LARGEST) if "max_attempts" in shown else UNKNOWN
    claim = {"claimed_by": None, "claimed_at": None}
    return {"status": status.value, "available_at": UNKNOWN, "crashes": 0, "max_attempts": budget, **claim}


def released_after_crash(error: str) -> Settlement:
    """Release tasks whose process has crashed while they ran: the attempt does not count, but the crash does."""
    return Settlement(
        write=_update(
            lambda fence: [
                *return_assignments(fence, suspect_crashes(fence.spec)),
                *error_assignments(fence.spec, error),
            ]
        ),
        record=AttemptRecord(AttemptOutcome.CRASHED, error),
        status=Status.AVAILABLE,
    )


RELEASED_AFTER_LEASE = Settlement(
    write=_update(expire_assignments, key="abandoned"),
    record=ABANDONED,
    status=Status.AVAILABLE,
)
"""Releases tasks whose claimers left them until the lease expired; the attempt counts as if a claim took them over."""


def released_from_worker(reason: str) -> Settlement:
    """Release tasks as if the leases of their claimers had expired, for a ``reason`` that the history shows."""
    return replace(RELEASED_AFTER_LEASE, record=AttemptRecord(AttemptOutcome.CRASHED, reason))


CRASH_COUNTED = Settlement(
    write=_update(lambda fence: [(fence.spec["crashes"], fence.spec["crashes"] + literal_column("1"))], key="counted")
)
"""Counts the crash of suspects in advance, because a process that they crash may not be able to write it.  The claims
continue."""


def extended(lease: timedelta | None) -> Settlement:
    """Extend leases, by default to the model's; the claims continue."""

    def write(fenced: FencedClaims) -> set[Identity]:
        until = lease or fenced.fence.spec.options.lease
        kept = fenced.write([leased(fenced.fence.spec, until)])
        if kept and fenced.fence.spec.is_limited:
            mine = [claim for claim in fenced.claims if claim.identity in kept]
            slots = Slots(fenced.session, fenced.adapter, fenced.fence.spec)
            kept -= {claim.identity for claim in slots.extend(mine, until, waits=fenced.fence.waits)}
        return kept

    return Settlement(write=write, shows=lambda spec, shown: {"available_at": UNKNOWN})


def _told_by_handler(role: str, document: Mapping[str, Any]) -> Settlement:
    """Write what a handler reports or keeps; the claims continue."""
    return Settlement(write=_update(lambda fence: [(fence.spec[role], document)]), shows=lambda spec, shown: {})


def report_some(
    session: Session, reports: Iterable[tuple[Claim, Mapping[str, Any]]], *, waits: bool = True
) -> list[Claim]:
    """Write what handlers report.  Returns the claims that are lost or, without ``waits``, whose rows are locked."""
    return [
        lost
        for claim, document in reports
        for lost in settle_some(session, claim, _told_by_handler("progress", document), waits=waits)
    ]


def keep_steps(session: Session, claim: Claim, document: Mapping[str, Any]) -> None:
    """Write what a task keeps of its steps.  Raises :class:`.ClaimLostError`."""
    if lost := settle_some(session, claim, _told_by_handler("steps", document)):
        raise ClaimLostError(lost)


# -- settles claims. Each operation takes a claimed task, a :class:`.Claim`, or an iterable of them -------------------

Tasks: TypeAlias = QueueMixin | Claim | Iterable[QueueMixin] | Iterable[Claim]
HeldClaims: TypeAlias = Sequence[tuple[HeldClaim, InstanceState[Any] | None]]


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
    _settle(session, tasks, completed(result, stage))


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
    _settle_with_error(session, tasks, error, partial(failed, cause=cause, retry_in=retry_in))


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
    _settle_with_error(session, tasks, reason, discarded)
    return None


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
    _settle(session, tasks, CANCELLED)
    return None


def release(session: AnySession, tasks: Tasks) -> None:
    """Return tasks unfinished: they become ``available`` at once, and the attempt does not count.

    For the transaction and errors see :func:`complete`.
    """
    _settle(session, tasks, RELEASED)


def snooze(session: AnySession, tasks: Tasks, delay: timedelta) -> None:
    """Postpone tasks: they become ``scheduled`` for ``delay`` from now, and the attempt does not count.

    For the transaction and errors see :func:`complete`.
    """
    duration("delay", delay, zero=True)
    _settle(session, tasks, snoozed(delay))


def heartbeat(session: AnySession, tasks: Tasks, lease: timedelta | None = None) -> None:
    """Extend the leases of tasks to ``lease`` from now; the model's lease by default.

    For the transaction and errors see :func:`complete`.
    """
    if lease is not None:
        duration("lease", lease)
    _settle(session, tasks, extended(lease))


_UNTOUCHED = ("priority", "created_at")
"""Column roles that settling never writes, besides those that the kinds declare."""


def _settle(session: AnySession, tasks: Tasks, settlement: Settlement) -> None:
    """Settle all tasks, or raise :class:`.ClaimLostError`."""
    session = session_of(session)
    lost = _settle_held(session, held_claims_of(session, tasks), settlement)
    if lost:
        raise ClaimLostError(lost)


def _settle_with_error(
    session: AnySession, tasks: Tasks, error: BaseException | str, settlement_of: Callable[..., Settlement]
) -> None:
    """Settle all tasks; if the database cannot store the text of the error, with one in ASCII and no traceback.

    A character that its character set lacks would otherwise replace the failure, which would never count.
    """
    session = session_of(session)
    held_claims = held_claims_of(session, tasks)
    if not held_claims:
        return
    spec, text = spec_of(held_claims[0][0].claim.entity), error_text(error)
    history = history_of(spec.table.metadata)
    traceback = stored_traceback(error, history.options) if history and isinstance(error, BaseException) else None
    settlement = settlement_of(text, traceback=traceback)
    if f"{text}{traceback}".isascii():
        lost = _settle_held(session, held_claims, settlement)
    else:
        adapter = open_(session, spec, Access.SETTLE)
        connection = session.connection(spec.bind_arguments)
        # to release the outermost savepoint would commit on SQLite
        adapter.connections.begin_to_claim(connection, spec, fresh=False)
        try:
            with connection.begin_nested():  # an error ends a transaction of PostgreSQL
                lost = _settle_held(session, held_claims, settlement)
        except Exception as rejection:
            if not adapter.connections.is_rejection(rejection):
                if isinstance(rejection, DBAPIError):  # after a deadlock on MySQL, the savepoint is missing
                    raise adapter.connections.reason(rejection) from rejection.orig
                raise
            lost = _settle_held(session, held_claims, settlement_of(ascii_text(text)))
    if lost:
        raise ClaimLostError(lost)


def settle_some(session: AnySession, tasks: Tasks, settlement: Settlement, *, waits: bool = True) -> list[Claim]:
    """Apply a settlement to the rows of ``tasks``, fenced, and record it in the ledger.  Returns the lost claims.

    Without ``waits``, rows that others have locked are skipped, and their claims are returned as well.
    """
    session = session_of(session)
    return _settle_held(session, held_claims_of(session, tasks), settlement, waits=waits)


def _settle_held(
    session: Session, held_claims: HeldClaims, settlement: Settlement, *, waits: bool = True
) -> list[Claim]:
    if not held_claims:
        return []
    if settlement.record is None and any(held.locked_by for held, _ in held_claims):
        raise IllegalTransitionError("a claim made with lease=None has no lease: its row is locked until the commit")
    spec = spec_of(held_claims[0][0].claim.entity)
    adapter = open_(session, spec, Access.SETTLE if waits else Access.SKIP)
    lost: list[Claim] = []
    alike = defaultdict[tuple[Any, str | None, int], list[Claim]](list)
    counts = Counter[Identity]()
    for held, _ in held_claims:
        # of several claims of one row, the database decides which holds it: no statement contains two of them
        counts[held.claim.identity] += 1
        alike[held.claim.entity, held.locked_by, counts[held.claim.identity]].append(held.claim)
    for (entity, locked_by, _), claims in alike.items():
        fence = Fence(spec=spec_of(entity), locked_by=locked_by, waits=waits)
        lost += _apply(adapter, session, fence, claims, settlement)
    if lost:
        gone = set(lost)
        held_claims = [(held, state) for held, state in held_claims if held.claim not in gone]
    present = [(held, state) for held, state in held_claims if state is not None]
    if settlement.record is not None:
        outcome = settlement.record.outcome.value
        ledger_of(session).remember(session, [(state, held._replace(settled=outcome)) for held, state in present])
    else:
        ledger_of(session).wrote(session, [state for _, state in present])
    _show(session, present, settlement)
    if held_claims and _makes_claimable(session, adapter, spec, held_claims, settlement):
        announce(session, spec)
    return lost


def _apply(
    adapter: Adapter, session: Session, fence: Fence, claims: Sequence[Claim], settlement: Settlement
) -> list[Claim]:
    """Apply the settlement in batches; return the lost claims."""
    spec, lost = fence.spec, list[Claim]()
    has_history = history_of(spec.table.metadata) is not None
    for some in adapter.rows.batches(spec, claims):
        kept = settlement.write(FencedClaims(adapter, session, fence, some))
        if len(kept) < len(some):
            lost += [claim for claim in some if claim.identity not in kept]
        if settlement.record is not None and has_history:
            record(adapter, session, [claim for claim in some if claim.identity in kept], settlement.record)
    if spec.is_limited and settlement.record is not None:
        # free the slots of lost claims as well, but not those of claims that were skipped because they are locked
        done = claims if fence.waits else [claim for claim in claims if claim not in lost]
        Slots(session, adapter, spec).free(done, unused=settlement.record.outcome is AttemptOutcome.RELEASED)
    return lost


def _makes_claimable(
    session: Session, adapter: Adapter, spec: QueueSpec, held_claims: HeldClaims, settlement: Settlement
) -> bool:
    """Return whether the settlement may have made a task claimable: one of these, or another.

    Of tasks that were enqueued again while they ran, only those of queues with unique keys are looked for.
    """
    if settlement.record is None:
        return False
    outcome = settlement.record.outcome
    if spec.sequence is not None:  # the next task of its key was waiting
        return True
    if settlement.status is Status.AVAILABLE or any(kind.announces(spec, outcome) for kind in kinds_of(spec)):
        return True
    if not spec.has_unique_keys or settlement.status in (Status.CANCELLED, Status.SCHEDULED):
        return False
    keys = [held.claim.identity for held, _ in held_claims]
    available = (and_(adapter.rows.key_in(spec, some), is_available(spec)) for some in adapter.rows.batches(spec, keys))
    return any(adapter.rows.exists(session, spec, each) for each in available)


_READ = ("max_attempts", "unique_key", "former_key")
"""The roles whose values :attr:`Settlement.shows` reads, besides that of the attempt."""


def _show(session: Session, present: Sequence[tuple[HeldClaim, InstanceState[Any]]], settlement: Settlement) -> None:
    """Show in instances what the settlement has written; attributes with a value that only the database knows expire.

    What is shown is found once for instances that are alike.
    """
    shown_alike: dict[Hashable, tuple[Mapping[str, Any], Sequence[str]]] = {}
    for held, state in present:
        task = state.obj()
        if task is None or state.session is not session:
            continue
        spec, values, attempt = spec_of(held.claim.entity), state.dict, held.claim.attempt
        shown = {role: values[name] for role in _READ if (name := spec.attributes.get(role)) in values}
        alike = spec, held.locked_by, attempt, *shown.items()
        if alike not in shown_alike:
            changes = settlement.shows(spec, {**shown, "attempt": attempt})
            if changes is None:
                shown_alike[alike] = {}, _written(spec, locked=held.locked_by is not None)
            else:
                if held.locked_by is not None:  # the settlement writes the claim as well
                    planned = {"scheduled_for": UNKNOWN} if spec.recurs else {}
                    claim = {"claimed_by": held.locked_by, "claimed_at": UNKNOWN, "attempt": attempt}
                    changes = {**changes, **claim, **planned}
                known = {spec.attributes[role]: value for role, value in changes.items() if value is not UNKNOWN}
                unknown = [spec.attributes[role] for role, value in changes.items() if value is UNKNOWN]
                shown_alike[alike] = known, [*unknown, *_generated(spec), *_of_other_kinds(spec)]
        new, expired = shown_alike[alike]
        for name, value in new.items():
            set_committed_value(task, name, value)
        session.expire(task, expired)


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
