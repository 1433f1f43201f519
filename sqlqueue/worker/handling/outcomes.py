"""The outcomes of attempts, and how they are written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from ..._support.errors import Claim
from ..._support.texts import ascii_text, error_text
from ...operations import settling
from ...operations.settling import Settlement, settle_some
from ...operations.upkeep import still_held, too_many_crashes
from ...queue.retries import DEFAULT_RETRY
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
    is_last: bool = field(default=False, compare=False)
    """Whether no attempt is left after this one, so that a failure needs no delay."""

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


def outcome_of(error: BaseException, *, is_last: bool = False) -> Outcome:
    """Return the outcome that an exception of a handler stands for.

    ``is_last``: whether it was the last attempt.
    """
    match error:
        case Retry():
            return Outcome("failed", str(error), error.in_, is_last=is_last)
        case Snooze():
            return Outcome("snoozed", delay=error.in_)
        case Discard():
            return Outcome("discarded", str(error))
        case Cancel():
            return Outcome("cancelled")
    return Outcome("failed", error_text(error), cause=type(error), is_last=is_last)


def plain_failure(outcome: Outcome, error: BaseException, attempt: int) -> Outcome:
    """Return what to write instead of ``outcome``, which cannot be written because of ``error``.

    It is a failure that every database can store, and depends on nothing that the application provides: the text is
    ASCII, the delay is that of the default policy, and there is no traceback.  An error that does not count as an
    attempt keeps its delay, and still does not count.
    """
    if outcome.kind == "snoozed" and outcome.error is not None:
        return Outcome("snoozed", ascii_text(outcome.error), outcome.delay)
    kind: OutcomeKind = outcome.kind if outcome.kind in _KEPT else "failed"
    text = ascii_text(outcome.error or error_text(error))
    return Outcome(kind, text, DEFAULT_RETRY(attempt) if kind == "failed" else None)


_KEPT: Collection[OutcomeKind] = ("discarded", "suspected", "crashed")
"""The kinds of outcomes, besides failures, that consist of an error text alone."""


def is_signal(error: BaseException) -> bool:
    """Return whether ``error`` is a signal of a handler, such as :class:`.Retry`, instead of a failure."""
    return isinstance(error, Signal)


_SETTLEMENTS: dict[OutcomeKind, Callable[[Outcome, frozenset[Claim]], Settlement]] = {
    "completed": lambda outcome, _: settling.completed(outcome.result and outcome.result.value),
    "failed": lambda outcome, last: settling.failed(
        outcome.error or "",
        cause=outcome.cause,
        retry_in=outcome.delay,
        traceback=outcome.traceback,
        last=last,
    ),
    "discarded": lambda outcome, _: settling.discarded(outcome.error or ""),
    "cancelled": lambda *_: settling.CANCELLED,
    "released": lambda *_: settling.RETURNED,
    "uncounted": lambda *_: settling.CLEARED,
    "suspected": lambda outcome, _: settling.released_after_crash(outcome.error or ""),
    "crashed": lambda outcome, _: settling.discarded_after_crashes(outcome.error or ""),
    "snoozed": lambda outcome, _: settling.snoozed(outcome.delay or timedelta(0), outcome.error),
}


def write_outcomes(session: Session, outcomes: Iterable[tuple[Claim, Outcome]], *, waits: bool = True) -> list[Claim]:
    """Settle the claims in the session's transaction, equal outcomes in one statement.  Returns the lost claims.

    A lost claim changes nothing and does not keep the others from being settled.  Without ``waits``, claims whose rows
    others have locked are returned as well.
    """
    alike: defaultdict[tuple[Any, Outcome], list[Claim]] = defaultdict(list)
    last: list[Claim] = []
    for claim, outcome in outcomes:
        alike[claim.entity, outcome].append(claim)
        if outcome.is_last:
            last.append(claim)
    spent = frozenset(last)
    return [
        claim
        for (_, outcome), claims in alike.items()
        for claim in settle_some(session, claims, _SETTLEMENTS[outcome.kind](outcome, spent), waits=waits)
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
