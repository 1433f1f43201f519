"""What becomes of a row: the assignments of claims, of settling and of enqueueing anew.

MySQL and MariaDB evaluate assignments from left to right, each seeing those before it, where the standard has them all
see the old row.  So what others read (``max_attempts``, ``attempt``, ``status``) is assigned after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import (
    ColumnElement,
    Float,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    null,
    or_,
)

from .._support.claim import Claim
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from .clock import utcnow
from .selection import Assignment, is_final, present_status, state

ATTEMPT = "sqlqueue_attempt"
TOKEN = "sqlqueue_token"


def taking(spec: QueueSpec, claimed_by: str, lease: timedelta, token: int | None = None) -> tuple[Assignment, ...]:
    """What a claim with a lease writes.  Its token is the parameter ``TOKEN`` if it is not given here."""
    column = spec["claim_token"]
    return (
        *_planned(spec),
        (spec["status"], state(Status.RUNNING)),
        (spec["available_at"], utcnow(lease)),
        (column, bindparam(TOKEN, type_=column.type) if token is None else literal(token, column.type)),
        *_stamp(spec, claimed_by),
    )


def consuming(spec: QueueSpec, claimed_by: str) -> tuple[Assignment, ...]:
    """What a claim writes that is its own completion."""
    return (*ending(spec, Status.COMPLETED), *_stamp(spec, claimed_by))


def _planned(spec: QueueSpec) -> list[Assignment]:
    """A run keeps the moment for which it was planned, while ``available_at`` says when its lease or a retry is due."""
    if not spec.has("scheduled_for"):
        return []
    return [(spec["scheduled_for"], func.coalesce(spec["scheduled_for"], spec["available_at"]))]


def _stamp(spec: QueueSpec, claimed_by: str) -> list[Assignment]:
    return [
        (spec["claimed_by"], literal(claimed_by, spec["claimed_by"].type)),
        (spec["claimed_at"], utcnow()),
        (spec["attempt"], spec["attempt"] + literal_column("1")),
    ]


@dataclass(frozen=True, kw_only=True)
class Held:
    """How the claims being settled hold their rows: by a lease written to the row, or by its lock alone."""

    spec: QueueSpec
    claimed_by: str | None = None
    """Who claims, where nothing of the claim is written yet (``lease=None``)."""
    waits: bool = True
    """Whether a row that others have locked is waited for; it is passed over otherwise."""

    @property
    def only_locked(self) -> bool:
        return self.claimed_by is not None

    @property
    def attempt(self) -> ColumnElement[int]:
        """The attempt that is being settled."""
        return self.spec["attempt"] + literal_column("1") if self.only_locked else self.spec["attempt"]

    @property
    def tries(self) -> ColumnElement[int]:
        """How often it has been tried in its present stage or run."""
        return self.attempt - self.spec["attempts_before"] if self.spec.has("attempts_before") else self.attempt

    @property
    def fresh_budget(self) -> ColumnElement[int]:
        """The ``max_attempts`` of a new life."""
        return self.attempt + literal_column(str(self.spec.options.max_attempts))

    def lives_on(self, status: Status, stage: str | None = None) -> Criterion | None:
        """What holds for tasks that do not end by becoming ``status``; ``None`` if all of them do."""
        if status is Status.CANCELLED:
            return None
        if stage is not None:
            return self.spec["stage"].is_not(None)  # always so, and said in a way that every engine takes in a CASE
        ways = [] if self.runs_again is None else [self.runs_again]
        if status is Status.COMPLETED and self.spec.moves:
            ways.append(self.spec["stage"].in_(list(self.spec.moves)))
        return or_(*ways) if ways else None

    @property
    def runs_again(self) -> Criterion | None:
        """Was the task enqueued anew while it ran?  Then its ``claimed_at`` has been taken away."""
        return None if self.only_locked else self.spec["claimed_at"].is_(None)

    def marks(self, claim: Claim) -> tuple[int, ...]:
        """What its row has in :attr:`marked` while ``claim`` holds it."""
        return (claim.attempt,) if self.only_locked else (claim.attempt, claim.token)

    @property
    def marked(self) -> tuple[ColumnElement[int], ...]:
        """What tells a claim from others of the same row, which may have the same attempt."""
        return (self.attempt,) if self.only_locked else (self.attempt, self.spec["claim_token"])

    def unsettled(self, mine: Criterion) -> Criterion:
        """Holds for the rows that are ``mine`` by their keys and marks, and still held."""
        if self.only_locked:
            return and_(mine, ~is_final(self.spec))
        return and_(mine, present_status(self.spec) == state(Status.RUNNING))

    def planned(self) -> list[Assignment]:
        """What a claim that only locks has not written yet of the moment that it was planned for."""
        return _planned(self.spec) if self.only_locked else []

    def written(self) -> list[Assignment]:
        """What the claim itself left unwritten."""
        return _stamp(self.spec, self.claimed_by) if self.claimed_by is not None else []


def ending(spec: QueueSpec, status: Status) -> list[Assignment]:
    """Final at once, whatever it was."""
    return [
        *_giving_up_key(spec),
        (spec["status"], state(status)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], utcnow()),
    ]


def _giving_up_key(spec: QueueSpec, final: Criterion | None = None) -> list[Assignment]:
    """Tasks that become final, all or those that are said to, free their unique keys and remember them."""
    if not spec.has("unique_key"):
        return []
    key, former = spec["unique_key"], spec["former_key"]
    kept = func.coalesce(key, former)
    if final is None:
        return [(former, kept), (key, null())]
    return [(former, case((final, kept), else_=former)), (key, case((final, null()), else_=key))]


def finishing(held: Held, status: Status, *, stage: str | None = None, error: str | None = None) -> list[Assignment]:
    """Final at once; or available again, with a budget of its own, if it is to run again or goes on to a stage."""
    spec, lives = held.spec, held.lives_on(status, stage)
    told: list[Assignment] = [] if error is None else [(spec["error"], error)]
    if lives is None:
        return [*ending(spec, status), *told, *held.written()]
    if error is None and spec.has("stage"):
        told = [(spec["error"], case((lives, null()), else_=spec["error"]))]
    return [
        *_giving_up_key(spec, ~lives),
        (spec["status"], case((lives, state(Status.AVAILABLE)), else_=state(status))),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], case((lives, null()), else_=utcnow())),
        (spec["max_attempts"], case((lives, held.fresh_budget), else_=spec["max_attempts"])),
        *told,
        *_moving(held, lives, stage),
        *held.written(),
    ]


def _moving(held: Held, lives: Criterion, stage: str | None) -> list[Assignment]:
    """On to the named or the next stage; if the whole is to run again, it is where that begins already."""
    spec, again = held.spec, held.runs_again
    if not spec.has("stage"):
        return []
    on: ColumnElement[str] = spec["stage"]
    if stage is not None:
        on = literal(stage, spec["stage"].type)
    elif spec.moves:
        # of its type: what is any text to SQLAlchemy loses characters on its way to SQL Server
        moves = ([literal(each, on.type) for each in move] for move in spec.moves.items())
        on = case(*((before, after) for before, after in moves), value=on, else_=on)
    stays = [] if again is None else [(again, spec["stage"])]
    return [
        (spec["attempts_before"], case((lives, held.attempt), else_=spec["attempts_before"])),
        (spec["stage"], case(*stays, (lives, on), else_=spec["stage"])),
    ]


def renewing(held: Held, moment: datetime | None) -> list[Assignment]:
    """A recurring task's next run: at ``moment``, or at once."""
    spec = held.spec
    at = utcnow() if moment is None else literal(moment, spec["available_at"].type)
    return [
        (spec["status"], state(Status.AVAILABLE if moment is None else Status.SCHEDULED)),
        (spec["available_at"], at),
        (spec["finished_at"], null()),
        (spec["scheduled_for"], null()),
        (spec["max_attempts"], held.fresh_budget),
        (spec["attempts_before"], held.attempt),
        *held.written(),
    ]


def failing(held: Held, delays: Mapping[int, timedelta]) -> list[Assignment]:
    """To be tried again after the delay of its attempt, or discarded once attempts are used up."""
    spec, again = held.spec, held.runs_again
    more = held.attempt < spec["max_attempts"]
    seconds = {attempt: _seconds(delay) for attempt, delay in delays.items()}
    *_, longest = seconds.values()
    delay = longest if len(seconds) == 1 else case(seconds, value=held.tries, else_=longest)
    fresh = [] if again is None else [(again, state(Status.AVAILABLE))]
    lives = more if again is None else or_(more, again)
    return [
        *held.planned(),
        *_giving_up_key(spec, ~lives),
        (spec["status"], case((more, state(Status.RETRYABLE)), *fresh, else_=state(Status.DISCARDED))),
        (spec["available_at"], case((more, utcnow(delay)), else_=utcnow())),
        (spec["finished_at"], case((lives, null()), else_=utcnow())),
        *_beginning_anew(held, spec["max_attempts"]),
        *held.written(),
    ]


def _beginning_anew(held: Held, budget: ColumnElement[int]) -> list[Assignment]:
    """A task that is to run again has all the attempts of a new life; others have this ``budget``."""
    spec, again = held.spec, held.runs_again
    if again is None:
        return []
    anew: list[Assignment] = [(spec["max_attempts"], case((again, held.fresh_budget), else_=budget))]
    if spec.has("attempts_before"):
        before = spec["attempts_before"]
        anew.append((before, case((again, held.attempt), else_=before)))
    return anew


def handing_back(held: Held, delay: timedelta | None) -> list[Assignment]:
    """Available now, or scheduled after ``delay``; it does not count as an attempt."""
    spec = held.spec
    status = Status.AVAILABLE if delay is None else Status.SCHEDULED
    now: list[Assignment] = [(spec["status"], state(status)), (spec["available_at"], utcnow(delay))]
    back = [*held.planned(), *now]
    if held.only_locked:
        return back
    return [
        *back,
        *_beginning_anew(held, spec["max_attempts"] + literal_column("1")),
        (spec["claimed_by"], null()),
        (spec["claimed_at"], null()),
    ]


def extending(held: Held, lease: timedelta) -> list[Assignment]:
    return [(held.spec["available_at"], utcnow(lease))]


def _seconds(delay: timedelta) -> ColumnElement[float]:
    return bindparam(None, delay.total_seconds(), type_=Float(53))
