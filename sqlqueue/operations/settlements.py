"""What becomes of claimed tasks, as values that settling applies."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from sqlalchemy import null
from sqlalchemy.orm import Session
from sqlalchemy.orm.util import identity_key

from .._support.checks import duration
from .._support.claim import Claim
from .._support.exc import ArgumentError
from .._support.jsontext import check_json
from ..lifecycle.fenced import Fenced
from ..lifecycle.held import Held
from ..lifecycle.kind import keeps_results, kinds_of, renewed
from ..lifecycle.transitions import earlier_attempts, extending, failing, finishing, handing_back, lives_on
from ..queue.retries import policy_for
from ..queue.spec import Identity, QueueSpec
from ..queue.status import Status
from ..sql.selection import Assignment


class Settlement:
    """What is to become of claimed tasks."""

    how: ClassVar[str | None]
    """In a word, that refuses a second one; ``None`` if the claims go on."""

    like: ClassVar[Hashable | None] = None
    """Names the assignments, if they go by nothing but how the rows are held, so that their statement is kept."""

    def assignments(self, held: Held, claims: Sequence[Claim]) -> Sequence[Assignment]:
        """What is written to the rows of ``claims``."""
        raise NotImplementedError

    def apply(self, fenced: Fenced) -> set[Identity]:
        """Write to the rows of claims that are still theirs; returns which those are."""
        return fenced.update(self.assignments, like=self.like)


@dataclass(frozen=True)
class Completing(Settlement):
    """Making it raises :class:`.ArgumentError` for a result that is not JSON."""

    how = "completed"
    result: object = None
    stage: str | None = None

    def __post_init__(self) -> None:
        check_json("result", self.result)

    def assignments(self, held: Held, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return [*self._kept(held.spec), *finishing(held, Status.COMPLETED, stage=self.stage)]

    def apply(self, fenced: Fenced) -> set[Identity]:
        """Those that have a next run go on to it; of the others, those that end are deleted if the model says so."""
        spec = fenced.spec
        self._check(spec)
        like = (self.how, self.stage) if self.result is None else None
        going_on, fenced = renewed(fenced, [(spec["error"], null()), *self._kept(spec)])
        if spec.options.on_complete == "keep":
            return going_on | fenced.update(self.assignments, like=like)
        lives = lives_on(fenced.held, Status.COMPLETED, self.stage)
        gone = fenced.delete(like=("deleted", self.stage), spared=lives)
        _expunge(fenced.session, spec, gone)
        if lives is None:  # what was passed over may be free by now, and is not to be kept for that
            return going_on | gone
        return going_on | gone | fenced.without(gone).update(self.assignments, like=like, only=lives)

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
    how = "failed"
    text: str
    cause: type[BaseException] | None
    """The class of the exception, by which a retry policy may go."""
    retry_in: timedelta | None

    def assignments(self, held: Held, claims: Sequence[Claim]) -> Sequence[Assignment]:
        spec, policy = held.spec, policy_for(held.spec.options.retry, self.cause)
        if self.retry_in is not None:
            delays = dict.fromkeys(_tries(spec, claims), self.retry_in)
        elif policy is not None:
            delays = {number: policy(number) for number in _tries(spec, claims)}
        else:
            return finishing(held, Status.DISCARDED, error=self.text)
        for delay in delays.values():
            duration("retry", delay, zero=True)
        return [*failing(held, delays), (spec["error"], self.text)]

    def apply(self, fenced: Fenced) -> set[Identity]:
        """Those that have used up their attempts, and have a next run, go on to it."""
        spec = fenced.spec
        given_up = self.retry_in is None and policy_for(spec.options.retry, self.cause) is None
        going_on, fenced = renewed(fenced, [(spec["error"], self.text)], spent=not given_up)
        return going_on | super().apply(fenced)


def _tries(spec: QueueSpec, claims: Sequence[Claim]) -> Iterable[int]:
    """The numbers of attempts for which a delay is needed.  Those beyond the last have its."""
    attempts = sorted({claim.attempt for claim in claims})
    if earlier_attempts(spec) is None:
        return attempts
    return range(1, min(attempts[-1], spec.options.max_attempts) + 1)


@dataclass(frozen=True)
class Discarding(Settlement):
    how = "discarded"
    text: str

    def assignments(self, held: Held, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return finishing(held, Status.DISCARDED, error=self.text)


class Cancelling(Settlement):
    how = like = "cancelled"

    def assignments(self, held: Held, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return finishing(held, Status.CANCELLED)


class Releasing(Settlement):
    how = like = "released"

    def assignments(self, held: Held, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return handing_back(held, None)


@dataclass(frozen=True)
class Snoozing(Settlement):
    how = "snoozed"
    delay: timedelta

    def assignments(self, held: Held, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return handing_back(held, self.delay)


@dataclass(frozen=True)
class Extending(Settlement):
    how = None
    lease: timedelta | None
    """The model's if not given."""

    def assignments(self, held: Held, claims: Sequence[Claim]) -> Sequence[Assignment]:
        return extending(held, self.lease or held.spec.options.lease)

    def apply(self, fenced: Fenced) -> set[Identity]:
        kept = super().apply(fenced)
        for kind in kinds_of(fenced.spec) if kept else ():
            mine = fenced.of([claim for claim in fenced.claims if claim.identity in kept])
            kept -= kind.extend(mine, self.lease or fenced.spec.options.lease)
        return kept
