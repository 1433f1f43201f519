"""What becomes of a task after its handler, and how that is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy.orm import Session

from .. import operations
from ..claims import Claim
from ..exc import ClaimLostError
from ..operations.settling import fail_because
from ..operations.upkeep import lock_own
from ..spec import spec_of
from ..texts import error_text
from .signals import Cancel, Discard, Retry, Signal, Snooze

Kind = Literal["completed", "failed", "discarded", "cancelled", "released", "snoozed"]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a handler returned, which is like no other's: each is written on its own."""

    value: object


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended."""

    kind: Kind
    error: str | None = None
    delay: timedelta | None = None
    cause: type[BaseException] | None = None
    """The class of the exception, by which a retry policy may go."""
    result: Result | None = None


COMPLETED = Outcome("completed")
RELEASED = Outcome("released")


def completed(result: object) -> Outcome:
    return COMPLETED if result is None else Outcome("completed", result=Result(result))


def outcome_of(error: BaseException) -> Outcome:
    """What an exception of a handler means."""
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
    return isinstance(error, Signal)


_WRITE: dict[Kind, Callable[[Session, Sequence[Claim], Outcome], None]] = {
    "completed": lambda session, claims, how: operations.complete(session, claims, how.result and how.result.value),
    "failed": lambda session, claims, how: fail_because(session, claims, how.error or "", how.cause, how.delay),
    "discarded": lambda session, claims, how: operations.discard(session, claims, how.error or ""),
    "cancelled": lambda session, claims, _: operations.cancel(session, claims),
    "released": lambda session, claims, _: operations.release(session, claims),
    "snoozed": lambda session, claims, how: operations.snooze(session, claims, how.delay or timedelta(0)),
}


def write_outcomes(session: Session, outcomes: Iterable[tuple[Claim, Outcome]]) -> list[Claim]:
    """Settle all of them in the session's transaction, those alike in one statement; returned are claims lost.

    A claim that is lost changes nothing, and keeps none of the others from being settled.
    """
    alike: defaultdict[tuple[Any, Outcome], list[Claim]] = defaultdict(list)
    for claim, outcome in outcomes:
        alike[spec_of(claim.entity).table, outcome].append(claim)
    lost: list[Claim] = []
    for (_, outcome), claims in alike.items():
        try:
            _WRITE[outcome.kind](session, claims, outcome)
        except ClaimLostError as error:
            lost += error.claims
    return lost


class Written(NamedTuple):
    """What became of outcomes that were to be written."""

    lost: set[Claim]
    locked: set[Claim]
    """Nothing is written of these: others have their rows locked."""


def write_what_is_free(session: Session, outcomes: Sequence[tuple[Claim, Outcome]]) -> Written:
    """:func:`write_outcomes` of one queue's claims with leases, but that no lock is waited for."""
    standing = lock_own(session, [claim for claim, _ in outcomes])
    free = set(standing.free)
    lost = write_outcomes(session, ((claim, outcome) for claim, outcome in outcomes if claim in free))
    return Written({*standing.lost, *lost}, set(standing.locked))
