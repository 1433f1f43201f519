"""Settlements: how attempts end, and what that writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, Final, TypeAlias, overload

from sqlalchemy import and_, literal_column, null
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstanceState, Session
from sqlalchemy.orm.attributes import instance_dict, instance_state, set_committed_value
from sqlalchemy.orm.util import identity_key

from .._support.checks import check_json, duration
from .._support.errors import ArgumentError, Claim, ClaimLostError, IllegalTransitionError
from .._support.texts import ascii_text, error_text
from ..dialects.base import Adapter
from ..kinds.limits import Slots
from ..kinds.recurring import schedule_next_runs
from ..lifecycle.fence import Fence, FencedClaims
from ..lifecycle.kind import kinds_of
from ..lifecycle.transitions import (
    abandoned,
    extending,
    failing,
    finishing,
    handing_back,
    lives_on,
    returning,
    suspected,
)
from ..model.companions import history_of
from ..model.declaration import QueueMixin
from ..queue.options import AttemptOutcome, HistoryOptions, Status
from ..queue.retries import DEFAULT_RETRY, RetryPolicy, delay_after, policy_for
from ..queue.spec import Identity, QueueSpec, Where, spec_of
from ..sql.rows import LARGEST, Assignment, is_available
from ..transaction.connection import Access, AnySession, open_, session_of
from ..transaction.ledger import Hold, holds_of, ledger_of
from ..transaction.notifications import announce
from .bulk import cancel_where, discard_where
from .recording import ABANDONED, Attempt, Told, Traced, record, stored_traceback

# -- settlements as values: what to write to the rows of claimed tasks ------------------------------------------------


class Settlement:
    """The change that a settling operation makes to claimed tasks."""

    how: ClassVar[str | None]
    """The name of the outcome, for the error of a second settlement; ``None`` if the claims continue."""

    outcome: ClassVar[AttemptOutcome]
    """The outcome that the history records; only settlements with a name have one."""

    like: ClassVar[Hashable | None] = None
    """The statement cache key, if the assignments depend on nothing but how the rows are held."""

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        """Return the assignments to the rows of ``claims``."""
        raise NotImplementedError

    def apply(self, fenced: FencedClaims) -> set[Identity]:
        """Write to the rows that the claims still hold; return their primary keys."""
        return fenced.update(self.assignments, like=self.like)

    def told(self, options: HistoryOptions) -> Told:
        """Return what the history records about the attempts."""
        return Told(self.outcome)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what changes in an instance that shows these values, with the number of the attempt, by role.

        ``UNKNOWN`` stands for values that only the database knows; ``None`` if those are all.  A task that was enqueued
        again while it ran is not recognized.
        """
        return None


UNKNOWN: Final = object()
"""A value that only the database knows, such as its time."""
KNOWN = frozenset({"result", "stage", "unique_key", "former_key", "scheduled_for", "attempts_before"})
"""The roles of kinds that :meth:`Settlement.shows` takes care of.  Those of other kinds are unknown after any write."""


def _claimed(fence: Fence, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a claim with ``lease=None``, which its settlement writes."""
    if not fence.only_locked:
        return {}
    planned = {"scheduled_for": UNKNOWN} if fence.spec.recurs else {}
    return {"claimed_by": fence.claimed_by, "claimed_at": UNKNOWN, "attempt": shown["attempt"], **planned}


def _ended(fence: Fence, shown: Mapping[str, Any], status: Status) -> dict[str, Any]:
    """Return the values of :meth:`Settlement.shows` for tasks that become final."""
    ended: dict[str, Any] = {"status": status.value, "available_at": UNKNOWN, "finished_at": UNKNOWN}
    ended |= _claimed(fence, shown)
    if status is not Status.DISCARDED:
        ended["crashes"] = 0
    if "unique_key" in fence.spec.columns:
        key = shown.get("unique_key", UNKNOWN)
        ended |= {"unique_key": None, "former_key": shown.get("former_key", UNKNOWN) if key is None else key}
    return ended


@dataclass(frozen=True)
class Completing(Settlement):
    """Complete tasks.  Construction raises :class:`.ArgumentError` if ``result`` cannot be stored as JSON."""

    how = "completed"
    outcome = AttemptOutcome.COMPLETED
    result: object = None
    stage: str | None = None

    def __post_init__(self) -> None:
        check_json("result", self.result)

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return [*self._kept(fence.spec), *finishing(fence, Status.COMPLETED, stage=self.stage)]

    def apply(self, fenced: FencedClaims) -> set[Identity]:
        """Schedule the next run of recurring tasks; complete the others, or delete them if the model's options say
        so."""
        spec = fenced.spec
        self._check(spec)
        like = (self.how, self.stage) if self.result is None else None
        going_on, fenced = schedule_next_runs(fenced, [(spec["error"], null()), *self._kept(spec)])
        if spec.options.on_complete == "keep":
            return going_on | fenced.update(self.assignments, like=like)
        lives = lives_on(fenced.fence, Status.COMPLETED, self.stage)
        gone = fenced.delete(like=("deleted", self.stage), spared=lives)
        _expunge(fenced.session, spec, gone)
        if lives is None:  # rows that were skipped as locked may be free by now: do not write to them
            return going_on | gone
        return going_on | gone | fenced.without(gone).update(self.assignments, like=like, only=lives)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if "attempts_before" in fence.spec.columns:
            return None  # it may have a next stage or run
        result = {} if self.result is None else {"result": UNKNOWN}  # as JSON returns it
        return _ended(fence, shown, Status.COMPLETED) | result

    def _kept(self, spec: QueueSpec) -> list[Assignment]:
        return [] if self.result is None else [(spec["result"], self.result)]

    def _check(self, spec: QueueSpec) -> None:
        if self.result is not None and not spec.keeps_results:
            raise ArgumentError(f"{spec.entity.__name__} has no column for a result: derive it from ResultMixin")
        if self.stage is not None and self.stage not in spec.options.stages:
            stages = ", ".join(spec.options.stages) or "none: that is for models that derive from StageMixin"
            raise ArgumentError(f"stage={self.stage!r}: the stages of {spec.entity.__name__} are {stages}")


def _expunge(session: Session, spec: QueueSpec, identities: Iterable[Identity]) -> None:
    for identity in identities:
        task = session.identity_map.get(identity_key(spec.entity, identity))
        if task is not None:
            session.expunge(task)


@dataclass(frozen=True)
class Failing(Settlement):
    """Record a failure: retry the tasks, or discard them."""

    how = "failed"
    outcome = AttemptOutcome.FAILED
    text: str
    cause: type[BaseException] | None
    """The exception's class, which a retry policy may depend on."""
    retry_in: timedelta | None
    traceback: Traced = None
    last: Collection[Claim] = ()
    """Claims known to have no attempt left: the policy is not asked for their delays, which nothing uses."""

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        spec, policy = fence.spec, policy_for(fence.spec.options.retry, self.cause)
        if policy is None and self.retry_in is None:
            return finishing(fence, Status.DISCARDED, error=self.text)
        going_on = [claim for claim in claims if claim not in self.last]
        delays = {number: self._delay(spec, policy, number) for number in _tries(spec, going_on)}
        return [*failing(fence, delays or {1: DEFAULT_RETRY(1)}), (spec["error"], self.text)]

    def _delay(self, spec: QueueSpec, policy: RetryPolicy | None, number: int) -> timedelta:
        if self.retry_in is not None or policy is None:
            return self.retry_in or timedelta(0)
        return delay_after(policy, number, spec.entity.__name__)

    def apply(self, fenced: FencedClaims) -> set[Identity]:
        """Schedule the next run of recurring tasks without attempts left; retry or discard the others."""
        spec = fenced.spec
        given_up = self.retry_in is None and policy_for(spec.options.retry, self.cause) is None
        going_on, fenced = schedule_next_runs(fenced, [(spec["error"], self.text)], spent=not given_up)
        informed = replace(self, last={*self.last, *_last(fenced)})
        return going_on | fenced.update(informed.assignments)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        spec = fence.spec
        if "max_attempts" not in shown:
            return None
        is_given_up = self.retry_in is None and policy_for(spec.options.retry, self.cause) is None
        if not is_given_up and shown["attempt"] < shown["max_attempts"]:
            waiting = {"status": Status.RETRYABLE.value, "available_at": UNKNOWN, "crashes": 0, "error": self.text}
            return waiting | _claimed(fence, shown)
        if spec.recurs:
            return None
        # a failure after the last attempt clears the suspicion, which giving up at once does not
        crashes = {} if is_given_up else {"crashes": 0}
        return _ended(fence, shown, Status.DISCARDED) | {"error": self.text} | crashes

    def told(self, options: HistoryOptions) -> Told:
        return Told(self.outcome, self.text, stored_traceback(self.traceback, options))


def _last(fenced: FencedClaims) -> Iterator[Claim]:
    """Yield the claims that have no attempt left, according to instances of the session."""
    spec, present = fenced.spec, fenced.session.identity_map
    for claim in fenced.claims if present else ():
        task = present.get(identity_key(spec.entity, claim.identity))
        if task is not None and Attempt.of(spec, claim, instance_dict(task)).is_last:
            yield claim


def _tries(spec: QueueSpec, claims: Sequence[Claim]) -> Iterable[int]:
    """Return the attempt numbers that need a delay.  Numbers beyond the last use the last one's delay."""
    attempts = sorted({claim.attempt for claim in claims})
    if "attempts_before" not in spec.columns or not attempts:
        return attempts
    return range(1, min(attempts[-1], max(1, spec.options.max_attempts - 1)) + 1)


@dataclass(frozen=True)
class Discarding(Settlement):
    """Discard tasks with an error."""

    how = "discarded"
    outcome = AttemptOutcome.DISCARDED
    text: str
    traceback: Traced = None

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return finishing(fence, Status.DISCARDED, error=self.text)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return _ended(fence, shown, Status.DISCARDED) | {"error": self.text}

    def told(self, options: HistoryOptions) -> Told:
        return Told(self.outcome, self.text, stored_traceback(self.traceback, options))


class Cancelling(Settlement):
    """Cancel tasks."""

    how = like = "cancelled"
    outcome = AttemptOutcome.CANCELLED

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return finishing(fence, Status.CANCELLED)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return _ended(fence, shown, Status.CANCELLED)


class Releasing(Settlement):
    """Return tasks unfinished, without counting the attempt."""

    how = like = "released"
    outcome = AttemptOutcome.RELEASED

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return handing_back(fence, None)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return _handed_back(fence, shown, Status.AVAILABLE)


def _handed_back(fence: Fence, shown: Mapping[str, Any], status: Status) -> dict[str, Any]:
    back: dict[str, Any] = {"status": status.value, "available_at": UNKNOWN, "crashes": 0}
    budget = min(shown["max_attempts"] + 1, LARGEST) if "max_attempts" in shown else UNKNOWN
    claim = _claimed(fence, shown) if fence.only_locked else {"claimed_by": None, "claimed_at": None}
    return back | {"max_attempts": budget} | claim


class Returning(Settlement):
    """Release tasks that were not started; whether they crash a process remains unknown."""

    how, like = "released", "returned"
    outcome = AttemptOutcome.RELEASED

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return returning(fence, fence.spec["crashes"])


class CountingCrash(Settlement):
    """Count the crash of suspects in advance, because a process that they crash may not be able to write it."""

    how, like = None, "counted"

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return [(fence.spec["crashes"], fence.spec["crashes"] + literal_column("1"))]


class UncountingCrash(Settlement):
    """Release suspects whose process did not crash, or not because of them."""

    how, like = "released", "uncounted"
    outcome = AttemptOutcome.RELEASED

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return returning(fence, fence.spec["crashes"] - literal_column("1"))


@dataclass(frozen=True)
class ReleasingCrashed(Settlement):
    """Release tasks whose process has crashed while they ran: the attempt does not count, but the crash does."""

    how = "released"
    outcome = AttemptOutcome.CRASHED
    text: str

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return [*returning(fence, suspected(fence.spec)), (fence.spec["error"], self.text)]

    def told(self, options: HistoryOptions) -> Told:
        return Told(self.outcome, self.text)


class Abandoning(Settlement):
    """Release tasks whose claimers left them until the lease expired; the attempt counts as if a claim took them
    over."""

    how, like = "released", "abandoned"
    outcome = AttemptOutcome.CRASHED

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return abandoned(fence)

    def told(self, options: HistoryOptions) -> Told:
        return ABANDONED


@dataclass(frozen=True)
class DiscardingCrashed(Discarding):
    """Discard tasks that have crashed too many processes; schedule the next run of recurring ones."""

    outcome = AttemptOutcome.CRASHED

    def apply(self, fenced: FencedClaims) -> set[Identity]:
        going_on, fenced = schedule_next_runs(fenced, [(fenced.spec["error"], self.text)])
        return going_on | super().apply(fenced)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if fence.spec.recurs else super().shows(fence, shown)


@dataclass(frozen=True)
class Snoozing(Settlement):
    """Postpone tasks, without counting the attempt."""

    how = "snoozed"
    outcome = AttemptOutcome.SNOOZED
    delay: timedelta
    text: str | None = None
    """The error because of which they are postponed, if it was one."""

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        back = handing_back(fence, self.delay)
        return back if self.text is None else [*back, (fence.spec["error"], self.text)]

    def told(self, options: HistoryOptions) -> Told:
        return Told(self.outcome, self.text)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        back = _handed_back(fence, shown, Status.SCHEDULED)
        return back if self.text is None else back | {"error": self.text}


@dataclass(frozen=True)
class Extending(Settlement):
    """Extend leases; the claims continue."""

    how = None
    lease: timedelta | None
    """The new lease; the model's if ``None``."""

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return {"available_at": UNKNOWN}

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return extending(fence, self.lease or fence.spec.options.lease)

    def apply(self, fenced: FencedClaims) -> set[Identity]:
        kept = super().apply(fenced)
        if kept and fenced.spec.is_limited:
            mine = [claim for claim in fenced.claims if claim.identity in kept]
            slots = Slots(fenced.session, fenced.adapter, fenced.spec)
            lost = slots.extend(mine, self.lease or fenced.spec.options.lease, waits=fenced.fence.waits)
            kept -= {claim.identity for claim in lost}
        return kept


# -- settles claims. Each operation takes a claimed task, a :class:`.Claim`, or an iterable of them -------------------

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
    meets = Access.CHANGE if spec.is_limited else Access.READ
    return open_(session, spec, meets if waits else Access.SKIP)


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
    if spec.is_limited and settlement.how is not None:
        # free the slots of lost claims as well, but not those of claims that were skipped because they are locked
        done = claims if fenced.fence.waits else [claim for claim in claims if claim not in lost]
        Slots(fenced.session, adapter, spec).free(done)
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
    if how not in ("completed", "failed", "discarded") or not spec.has_unique_keys:
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
