"""Settlements as values: what to write to the rows of claimed tasks."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Final

from sqlalchemy import literal_column, null
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_dict
from sqlalchemy.orm.util import identity_key

from .._support.claim import Claim
from .._support.exc import ArgumentError
from .._support.json_values import check_json
from ..lifecycle.fence import Fence
from ..lifecycle.fenced import FencedClaims
from ..lifecycle.kind import keeps_results, kinds_of, recurs, renewed
from ..lifecycle.transitions import (
    abandoned,
    earlier_attempts,
    extending,
    failing,
    finishing,
    handing_back,
    lives_on,
    returning,
    suspected,
)
from ..queue.history import AttemptOutcome, HistoryOptions
from ..queue.retries import DEFAULT_RETRY, RetryPolicy, delay_after, policy_for
from ..queue.spec import Identity, QueueSpec
from ..queue.status import Status
from ..sql.changes import LARGEST, Assignment, raised
from .attempts import Attempt
from .recording import ABANDONED, Told, Traced, stored_traceback


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
    planned = {"scheduled_for": UNKNOWN} if recurs(fence.spec) else {}
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
        going_on, fenced = renewed(fenced, [(spec["error"], null()), *self._kept(spec)])
        if spec.options.on_complete == "keep":
            return going_on | fenced.update(self.assignments, like=like)
        lives = lives_on(fenced.fence, Status.COMPLETED, self.stage)
        gone = fenced.delete(like=("deleted", self.stage), spared=lives)
        _expunge(fenced.session, spec, gone)
        if lives is None:  # rows that were skipped as locked may be free by now: do not write to them
            return going_on | gone
        return going_on | gone | fenced.without(gone).update(self.assignments, like=like, only=lives)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if earlier_attempts(fence.spec) is not None:
            return None  # it may have a next stage or run
        result = {} if self.result is None else {"result": UNKNOWN}  # as JSON returns it
        return _ended(fence, shown, Status.COMPLETED) | result

    def _kept(self, spec: QueueSpec) -> list[Assignment]:
        return [] if self.result is None else [(spec["result"], self.result)]

    def _check(self, spec: QueueSpec) -> None:
        if self.result is not None and not keeps_results(spec):
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
        going_on, fenced = renewed(fenced, [(spec["error"], self.text)], spent=not given_up)
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
        if recurs(spec):
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
    if earlier_attempts(spec) is None or not attempts:
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
    if fence.only_locked:
        return back | ({"scheduled_for": UNKNOWN} if recurs(fence.spec) else {})
    budget = min(shown["max_attempts"] + 1, LARGEST) if "max_attempts" in shown else UNKNOWN
    return back | {"max_attempts": budget, "claimed_by": None, "claimed_at": None}


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
        going_on, fenced = renewed(fenced, [(fenced.spec["error"], self.text)])
        return going_on | super().apply(fenced)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if recurs(fence.spec) else super().shows(fence, shown)


@dataclass(frozen=True)
class Snoozing(Settlement):
    """Postpone tasks, without counting the attempt."""

    how = "snoozed"
    outcome = AttemptOutcome.SNOOZED
    delay: timedelta
    text: str | None = None
    """The error because of which they are postponed, if it was one."""

    def assignments(self, fence: Fence, claims: Sequence[Claim]) -> Sequence[Assignment]:
        spec, back = fence.spec, handing_back(fence, self.delay)
        if self.text is None:
            return back
        if fence.only_locked:  # so that the next attempt tells that it follows this one
            back += [(spec["max_attempts"], raised(spec["max_attempts"])), *fence.written()]
        return [*back, (spec["error"], self.text)]

    def told(self, options: HistoryOptions) -> Told:
        return Told(self.outcome, self.text)

    def shows(self, fence: Fence, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
        back = _handed_back(fence, shown, Status.SCHEDULED)
        if self.text is None:
            return back
        counted = {"max_attempts": UNKNOWN, **_claimed(fence, shown)} if fence.only_locked else {}
        return back | {"error": self.text} | counted


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
        for kind in kinds_of(fenced.spec) if kept else ():
            mine = fenced.of([claim for claim in fenced.claims if claim.identity in kept])
            kept -= kind.extend(mine, self.lease or fenced.spec.options.lease)
        return kept
