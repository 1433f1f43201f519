"""The next runs of recurring tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import func, literal, null, select

from .._support.claim import Claim
from .._support.exc import ArgumentError
from .._support.logs import logger_of
from ..lifecycle.fenced import Fenced
from ..lifecycle.held import Held
from ..lifecycle.transitions import tries
from ..queue.schedules import is_missed, next_run, parse
from ..queue.spec import Identity, QueueSpec
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.selection import Assignment, state

logger = logger_of("sqlqueue")


class Run(NamedTuple):
    """A run of a recurring task, as its row says."""

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
        """When the first run is due, if this is none: an INSERT that gave a schedule and no moment.

        By the defaults of the table it is available from its creation on, to the microsecond.
        """
        if self.schedule is None or self.tries > 1 or self.planned != self.created_at:
            return None
        try:
            return parse(self.schedule).after(self.created_at)
        except ArgumentError:
            return None  # it is run once, and then there is no next

    def next(self, spec: QueueSpec) -> datetime | None:
        """When the next one is due; ``None`` if there is none."""
        if self.schedule is None:
            return None
        try:
            return next_run(self.schedule, self.planned, self.now, drift=bool(self.drift), missed=spec.options.missed)
        except ArgumentError as error:  # whoever wrote it, that ends this one task and keeps no other from its run
            logger.error("a task of %s has no next run: %s", spec.entity.__name__, error)
            return None

    @property
    def is_missed(self) -> bool:
        """Whether nobody began it before the time of the one after it had come."""
        if self.schedule is None or self.tries > 1:
            return False
        try:
            return is_missed(self.schedule, self.planned, self.now)
        except ArgumentError:
            return False  # it is run once, and then there is no next


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


_REST = "the rest"
_AT_ONCE = "at once"


class Renewals:
    """Schedules the next runs of claimed tasks.

    By the schedule that a row has now, under its lock: whoever changes it meanwhile is waited for, and waits.
    """

    def __init__(self, fenced: Fenced) -> None:
        self._fenced = fenced
        self._held = fenced.held
        self._spec = fenced.spec

    def renew(self, kept: Sequence[Assignment], *, spent: bool) -> tuple[set[Identity], Fenced]:
        """Schedule the next runs with ``kept`` written too, those due at one time in one statement.

        Only of tasks that have used up their attempts, if ``spent``.  Returns which claims still hold their rows, and
        those of them that have no next run, or have attempts left.
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
            self._fenced.of(group).write([*renewing(self._held, moment), *kept])
        return set(runs), rest

    def skip(self) -> set[Identity]:
        """Schedule those anew that are not to be run now: too late, or before the first time; which those are."""
        skips = self._spec.options.missed == "skip"
        groups: defaultdict[datetime | None, list[Claim]] = defaultdict(list)
        runs = self._runs()
        for claim in self._fenced.claims:
            run = runs.get(claim.identity)
            if run is not None and run.first is not None:
                groups[run.first].append(claim)
            elif run is not None and skips and run.is_missed:
                groups[run.next(self._spec)].append(claim)
        for moment, group in groups.items():
            self._fenced.of(group).write(renewing(self._held, moment))
        return {claim.identity for group in groups.values() for claim in group}

    def _what_next(self, run: Run) -> datetime | str:
        if not self._held.only_locked and run.claimed_at is None:
            return _AT_ONCE  # it was enqueued anew while it ran
        return run.next(self._spec) or _REST

    def _runs(self) -> dict[Identity, Run]:
        """The runs of the claims that still hold their rows, which are locked from here on."""
        spec, adapter = self._spec, self._fenced.adapter
        planned = func.coalesce(spec["scheduled_for"], spec["available_at"])
        roles = (
            spec["claimed_at"],
            spec["attempt"],
            spec["max_attempts"],
            tries(self._held),
            spec["created_at"],
            utcnow(),
        )
        read = select(*spec.primary_key, spec["schedule"], spec["drift"], planned, *roles)
        mine = self._fenced.write([(spec["claimed_by"], spec["claimed_by"])])
        found: dict[Identity, Run] = {}
        for keys in adapter.keys.batches(spec, sorted(mine)):
            # locking again: a transaction that reads repeatably would see what was there when it began
            latest = read.where(adapter.keys.key_in(spec, keys)).with_for_update(key_share=True)
            by_key = adapter.keys.by_key(spec, latest)
            for row in adapter.rows.execute(self._fenced.session, spec, by_key):
                width = len(spec.primary_key)
                found[tuple(row[:width])] = Run(*row[width:])
        return found
