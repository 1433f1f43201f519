"""The outcomes of attempts, and how they are written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from ..._support.claim import Claim
from ..._support.error_text import error_text
from ...operations.crashes import too_many_crashes
from ...operations.settlements import (
    Cancelling,
    Completing,
    Discarding,
    DiscardingCrashed,
    Failing,
    ReleasingCrashed,
    Returning,
    Settlement,
    Snoozing,
    UncountingCrash,
)
from ...operations.settling import settle_some
from ...operations.upkeep import still_held
from ...queue.spec import spec_of
from .signals import Cancel, Discard, Retry, Signal, Snooze

OutcomeKind = Literal[
    "completed", "failed", "discarded", "cancelled", "released", "snoozed", "uncounted", "suspected", "crashed"
]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The return value of a handler.  No two are equal, so each is written separately."""

    value: object


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt."""

    kind: OutcomeKind
    error: str | None = None
    delay: timedelta | None = None
    cause: type[BaseException] | None = None
    """The class of the exception, for retry policies."""
    result: Result | None = None
    traceback: str | None = None
    """For the history."""

    def __hash__(self) -> int:
        if self.error is None and self.result is None:  # nearly always one of two objects
            return hash(self.kind)
        return hash((self.kind, self.error, self.delay, self.cause, self.result))


COMPLETED = Outcome("completed")
RELEASED = Outcome("released")
UNCOUNTED = Outcome("uncounted")
"""The outcome of a suspect that is released although it was started."""


def crashed_too_often(task: object, crashes: int) -> Outcome:
    """Return the outcome of a task that has crashed the maximum number of processes."""
    error = instance_state(task).dict.get(spec_of(type(task)).attributes["error"])
    return Outcome("crashed", too_many_crashes(crashes, error))


class Ended(NamedTuple):
    """The end of one call of a handler."""

    outcome: Outcome | None
    """The outcome of the attempt, or ``None`` if the task is lost."""
    error: BaseException | None = None
    """What the handler raised."""
    is_written: bool = False
    """Whether the handler's transaction has written the outcome."""


def completed(result: object) -> Outcome:
    """Return the outcome of a completion with the return value of the handler."""
    return COMPLETED if result is None else Outcome("completed", result=Result(result))


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome that an exception of a handler stands for."""
    match error:
        case Retry():
            return Outcome("failed", str(error), error.in_)
        case Snooze():
            return Outcome("snoozed", delay=error.in_)
        case Discard():
            return Outcome("discarded", str(error))
        case Cancel():
            return Outcome("cancelled")
    return Outcome("failed", error_text(error), cause=type(error))


def is_signal(error: BaseException) -> bool:
    """Return whether ``error`` is a signal of a handler, such as :class:`.Retry`, instead of a failure."""
    return isinstance(error, Signal)


_SETTLEMENTS: dict[OutcomeKind, Callable[[Outcome], Settlement]] = {
    "completed": lambda how: Completing(how.result and how.result.value),
    "failed": lambda how: Failing(how.error or "", how.cause, how.delay, how.traceback),
    "discarded": lambda how: Discarding(how.error or ""),
    "cancelled": lambda _: Cancelling(),
    "released": lambda _: Returning(),
    "uncounted": lambda _: UncountingCrash(),
    "suspected": lambda how: ReleasingCrashed(how.error or ""),
    "crashed": lambda how: DiscardingCrashed(how.error or ""),
    "snoozed": lambda how: Snoozing(how.delay or timedelta(0)),
}


def write_outcomes(session: Session, outcomes: Iterable[tuple[Claim, Outcome]], *, waits: bool = True) -> list[Claim]:
    """Settle the claims in the session's transaction, equal outcomes in one statement.  Returns the lost claims.

    A lost claim changes nothing and does not keep the others from being settled.  Without ``waits``, claims whose rows
    others have locked are returned as well.
    """
    alike: defaultdict[tuple[Any, Outcome], list[Claim]] = defaultdict(list)
    for claim, outcome in outcomes:
        alike[claim.entity, outcome].append(claim)
    return [
        claim
        for (_, outcome), claims in alike.items()
        for claim in settle_some(session, claims, _SETTLEMENTS[outcome.kind](outcome), waits=waits)
    ]


class Written(NamedTuple):
    """The claims whose outcomes could not be written."""

    lost: set[Claim]
    locked: set[Claim]
    """Claims whose rows other transactions have locked; nothing was written."""


def write_what_is_free(session: Session, outcomes: Sequence[tuple[Claim, Outcome]]) -> Written:
    """Call :func:`write_outcomes` for leased claims of one queue, without waiting for locks."""
    rest = write_outcomes(session, outcomes, waits=False)
    locked = still_held(session, rest)
    return Written(set(rest) - locked, locked)
