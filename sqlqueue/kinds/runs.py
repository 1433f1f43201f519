"""Schedules the next runs of recurring tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import func, literal, null, select

from .._support.claim import Claim
from .._support.exc import ArgumentError
from .._support.logs import logger_of
from ..lifecycle.fence import Fence
from ..lifecycle.fenced import FencedClaims
from ..lifecycle.transitions import clearing, tries
from ..queue.schedules import UnknownHereError, is_known_here, is_missed, next_run, parse
from ..queue.spec import Identity, QueueSpec
from ..queue.status import Status
from ..sql.changes import Assignment, raised
from ..sql.clock import utcnow
from ..sql.states import state

logger = logger_of("sqlqueue")
ELSEWHERE = timedelta(seconds=10)
"""How long a task that this host cannot schedule waits for another one."""


class Run(NamedTuple):
    """A run of a recurring task, read from its row."""

    schedule: str | None
    drift: bool | None
    planned: datetime
    claimed_at: datetime | None
    attempt: int
    max_attempts: int
    tries: int
    created_at: datetime
    now: datetime

    @property
    def first(self) -> datetime | None:
        """The time of the first run, if an INSERT gave a schedule but no time, so that this is not a planned run.

        With the table's defaults, such a task is available at the time of its creation, to the microsecond.
        """
        if self.schedule is None or self.tries > 1 or self.planned != self.created_at:
            return None
        try:
            return parse(self.schedule).after(self.created_at)
        except ArgumentError:
            return None  # an invalid schedule: the task runs once, without a next run

    def next(self, spec: QueueSpec) -> datetime | None:
        """Return when the next run is due; ``None`` if there is no next run."""
        if self.schedule is None:
            return None
        try:
            return next_run(self.schedule, self.planned, self.now, drift=bool(self.drift), missed=spec.options.missed)
        except UnknownHereError:  # another host has the next run
            raise
        except ArgumentError as error:  # an invalid schedule ends this task only; others must still run
            logger.error("a task of %s has no next run: %s", spec.entity.__name__, error)
            return None

    @property
    def is_missed(self) -> bool:
        """Whether the run was not started before the following run's time."""
        if self.schedule is None or self.tries > 1:
            return False
        try:
            return is_missed(self.schedule, self.planned, self.now)
        except ArgumentError:
            return False  # an invalid schedule: the task runs once, without a next run


def renewing(fence: Fence, moment: datetime | None) -> list[Assignment]:
    """Return the assignments that schedule the next run at ``moment``, or at once."""
    spec = fence.spec
    at = utcnow() if moment is None else literal(moment, spec["available_at"].type)
    return [
        (spec["status"], state(Status.AVAILABLE if moment is None else Status.SCHEDULED)),
        (spec["available_at"], at),
        (spec["finished_at"], null()),
        (spec["scheduled_for"], null()),
        (spec["max_attempts"], fence.fresh_budget),
        (spec["attempts_before"], fence.attempt),
        clearing(spec),
        *fence.written(),
    ]


def leaving(fence: Fence) -> list[Assignment]:
    """Return the assignments that leave tasks to another host: the attempt does not count, and the plan stays."""
    spec = fence.spec
    return [
        (spec["scheduled_for"], func.coalesce(spec["scheduled_for"], spec["available_at"])),
        (spec["status"], state(Status.SCHEDULED)),
        (spec["available_at"], utcnow(ELSEWHERE)),
        (spec["max_attempts"], raised(spec["max_attempts"])),
        (spec["attempts_before"], raised(spec["attempts_before"])),
        *fence.written(),
    ]


_REST = "the rest"
_AT_ONCE = "at once"


class Renewals:
    """Schedules the next runs of claimed tasks.

    Reads each row's current schedule under a lock, so concurrent changes to it happen before or after, never between.
    """

    def __init__(self, fenced: FencedClaims) -> None:
        self._fenced = fenced
        self._fence = fenced.fence
        self._spec = fenced.spec

    def renew(self, kept: Sequence[Assignment], *, spent: bool) -> tuple[set[Identity], FencedClaims]:
        """Schedule the next runs and write ``kept``, with one statement for all runs due at the same time.

        If ``spent``, schedule only tasks without attempts left.  Return the primary keys of claims that still hold
        their rows, and the claims that have no next run or have attempts left.
        """
        runs = self._runs()
        groups: defaultdict[datetime | str, list[Claim]] = defaultdict(list)
        for claim in self._fenced.claims:
            run = runs.get(claim.identity)
            if run is not None:
                has_attempts = spent and claim.attempt < run.max_attempts
                groups[_REST if has_attempts else self._what_next(run)].append(claim)
        rest = self._fenced.of(groups.pop(_REST, []))
        for what, group in groups.items():
            moment = what if isinstance(what, datetime) else None
            self._fenced.of(group).write([*renewing(self._fence, moment), *kept])
        return set(runs), rest

    def skip(self) -> set[Identity]:
        """Reschedule tasks that must not run now: missed runs, tasks before their first run, and tasks with a schedule
        that this host cannot evaluate.

        Return the primary keys of the rescheduled tasks.
        """
        skips = self._spec.options.missed == "skip"
        groups: defaultdict[datetime | None, list[Claim]] = defaultdict(list)
        left: list[Claim] = []
        runs = self._runs()
        for claim in self._fenced.claims:
            run = runs.get(claim.identity)
            if run is None:
                continue
            if run.schedule is not None and not is_known_here(run.schedule):
                left.append(claim)
            elif run.first is not None:
                groups[run.first].append(claim)
            elif skips and run.is_missed:
                groups[run.next(self._spec)].append(claim)
        for moment, group in groups.items():
            self._fenced.of(group).write(renewing(self._fence, moment))
        self._fenced.of(left).write(leaving(self._fence))
        return {claim.identity for group in (left, *groups.values()) for claim in group}

    def _what_next(self, run: Run) -> datetime | str:
        if not self._fence.only_locked and run.claimed_at is None:
            return _AT_ONCE  # the task was enqueued again while it ran
        return run.next(self._spec) or _REST

    def _runs(self) -> dict[Identity, Run]:
        """Lock the rows that the claims still hold, and return their runs."""
        spec, adapter = self._spec, self._fenced.adapter
        planned = func.coalesce(spec["scheduled_for"], spec["available_at"])
        roles = (
            spec["claimed_at"],
            spec["attempt"],
            spec["max_attempts"],
            tries(self._fence),
            spec["created_at"],
            utcnow(),
        )
        read = select(*spec.primary_key, spec["schedule"], spec["drift"], planned, *roles)
        mine = self._fenced.write([(spec["claimed_by"], spec["claimed_by"])])
        found: dict[Identity, Run] = {}
        for keys in adapter.keys.batches(spec, sorted(mine)):
            # a locking read: at REPEATABLE READ, a plain SELECT would return the snapshot's values
            latest = read.where(adapter.keys.key_in(spec, keys)).with_for_update(key_share=True)
            by_key = adapter.keys.by_key(spec, latest)
            for row in adapter.rows.execute(self._fenced.session, spec, by_key):
                width = len(spec.primary_key)
                found[tuple(row[:width])] = Run(*row[width:])
        return found
