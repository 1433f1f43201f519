"""What becomes of a row: the assignments of claims, of settling and of enqueueing anew.

MySQL and MariaDB evaluate assignments from left to right, each seeing those before it, where the standard has them all
see the old row.  So what others read (``max_attempts``, ``attempt``, ``status``) is assigned after them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import ColumnElement, Float, and_, bindparam, case, literal, literal_column, null, or_

from .clock import utcnow
from .spec import Criterion, Identity, QueueSpec
from .statements import Assignment, is_final, is_ready, state
from .states import Status

if TYPE_CHECKING:
    from .claims import Claim

KeyIn: TypeAlias = Callable[[QueueSpec, Sequence[Identity]], Criterion]


def taking(spec: QueueSpec, claimed_by: str, lease: timedelta) -> list[Assignment]:
    """What a claim with a lease writes."""
    return [
        (spec["status"], state(Status.RUNNING)),
        (spec["available_at"], utcnow(lease)),
        *_stamp(spec, claimed_by),
    ]


def consuming(spec: QueueSpec, claimed_by: str) -> list[Assignment]:
    """What a claim writes that is its own completion."""
    return [
        (spec["status"], state(Status.COMPLETED)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], utcnow()),
        *_stamp(spec, claimed_by),
    ]


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

    @property
    def only_locked(self) -> bool:
        return self.claimed_by is not None

    @property
    def attempt(self) -> ColumnElement[int]:
        """The attempt that is being settled."""
        return self.spec["attempt"] + literal_column("1") if self.only_locked else self.spec["attempt"]

    @property
    def runs_again(self) -> Criterion | None:
        """Was the task enqueued anew while it ran?  Then its ``claimed_at`` has been taken away."""
        return None if self.only_locked else self.spec["claimed_at"].is_(None)

    def fence(self, claims: Sequence[Claim], key_in: KeyIn) -> Criterion:
        """Holds for the rows that are still these claims'."""
        spec, by_attempt = self.spec, defaultdict[int, list[Identity]](list)
        for claim in claims:
            by_attempt[claim.attempt].append(claim.identity)
        mine = or_(*(and_(self.attempt == n, key_in(spec, keys)) for n, keys in sorted(by_attempt.items())))
        if len(by_attempt) > 1:  # for the optimizer: whatever the attempt, it is about these keys
            mine = and_(key_in(spec, [claim.identity for claim in claims]), mine)
        if self.only_locked:
            return and_(mine, ~is_final(spec))
        return and_(mine, spec["status"] == state(Status.RUNNING))

    def written(self) -> list[Assignment]:
        """What the claim itself left unwritten."""
        return _stamp(self.spec, self.claimed_by) if self.claimed_by is not None else []


def ending(spec: QueueSpec, status: Status) -> list[Assignment]:
    """Final at once, whatever it was."""
    return [(spec["status"], state(status)), (spec["available_at"], utcnow()), (spec["finished_at"], utcnow())]


def finishing(held: Held, status: Status) -> list[Assignment]:
    """Final at once; or available again, with a budget of its own, if it is to run again."""
    spec, again = held.spec, held.runs_again
    if again is None or status is Status.CANCELLED:
        return [*ending(spec, status), *held.written()]
    return [
        (spec["status"], case((again, state(Status.AVAILABLE)), else_=state(status))),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], case((again, null()), else_=utcnow())),
        (spec["max_attempts"], case((again, _fresh_budget(spec)), else_=spec["max_attempts"])),
    ]


def failing(held: Held, delays: Mapping[int, timedelta]) -> list[Assignment]:
    """To be tried again after the delay of its attempt, or discarded once attempts are used up."""
    spec, again = held.spec, held.runs_again
    more = held.attempt < spec["max_attempts"]
    seconds = {attempt: _seconds(delay) for attempt, delay in delays.items()}
    delay = next(iter(seconds.values())) if len(seconds) == 1 else case(seconds, value=held.attempt)
    fresh = [] if again is None else [(again, state(Status.AVAILABLE))]
    budget: list[Assignment] = []
    if again is not None:
        budget = [(spec["max_attempts"], case((and_(again, ~more), _fresh_budget(spec)), else_=spec["max_attempts"]))]
    return [
        (spec["status"], case((more, state(Status.RETRYABLE)), *fresh, else_=state(Status.DISCARDED))),
        (spec["available_at"], case((more, utcnow(delay)), else_=utcnow())),
        (spec["finished_at"], case((more if again is None else or_(more, again), null()), else_=utcnow())),
        *budget,
        *held.written(),
    ]


def handing_back(held: Held, delay: timedelta | None) -> list[Assignment]:
    """Available now, or scheduled after ``delay``; the attempt is not held against the task."""
    spec = held.spec
    status = Status.AVAILABLE if delay is None else Status.SCHEDULED
    back: list[Assignment] = [(spec["status"], state(status)), (spec["available_at"], utcnow(delay))]
    if held.only_locked:
        return back
    return [
        *back,
        (spec["claimed_by"], null()),
        (spec["claimed_at"], null()),
        (spec["max_attempts"], spec["max_attempts"] + literal_column("1")),
    ]


def extending(held: Held, lease: timedelta) -> list[Assignment]:
    return [(held.spec["available_at"], utcnow(lease))]


def _seconds(delay: timedelta) -> ColumnElement[float]:
    return bindparam(None, delay.total_seconds(), type_=Float(53))


def _fresh_budget(spec: QueueSpec) -> ColumnElement[int]:
    return spec["attempt"] + literal_column(str(spec.options.max_attempts))


def replacing(
    spec: QueueSpec, names: Iterable[str], proposed: Callable[[str], ColumnElement[Any]], *, rerun: bool
) -> list[Assignment]:
    """What an existing row is given by an insert of the same key: the columns ``names``, and a new life.

    A row that is running keeps its run; ``rerun`` takes away its ``claimed_at``, by which completion knows.
    """
    names = set(names)
    queue = {spec[role].name for role in ("status", "available_at", "max_attempts")}
    running = spec["status"] == state(Status.RUNNING)
    # one that is available already keeps its place, unless the place is what is being changed
    stays = or_(running, is_ready(spec)) if rerun else running
    moment = proposed(spec["available_at"].name) if spec["available_at"].name in names else utcnow()
    status = proposed(spec["status"].name) if spec["status"].name in names else state(Status.AVAILABLE)
    budget = spec["max_attempts"].name
    attempts = spec["attempt"] + proposed(budget) if budget in names else _fresh_budget(spec)
    marked = [(spec["claimed_at"], case((running, null()), else_=spec["claimed_at"]))] if rerun else []
    return [
        *((spec.table.c[name], proposed(name)) for name in sorted(names - queue)),
        *marked,
        (spec["available_at"], case((stays, spec["available_at"]), else_=moment)),
        (spec["finished_at"], null()),
        (spec["max_attempts"], case((running, spec["max_attempts"]), else_=attempts)),
        (spec["status"], case((stays, spec["status"]), else_=status)),
    ]


def redriving(spec: QueueSpec) -> list[Assignment]:
    """Available now, with a full budget of attempts."""
    budget = _fresh_budget(spec)
    return [
        (spec["status"], state(Status.AVAILABLE)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], null()),
        (spec["max_attempts"], case((spec["max_attempts"] > budget, spec["max_attempts"]), else_=budget)),
    ]
