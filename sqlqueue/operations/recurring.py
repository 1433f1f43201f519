"""The next runs of recurring tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from .._support.claim import Claim
from .._support.exc import ArgumentError
from .._support.logs import logger_of
from ..dialects.base import Adapter
from ..queue.schedules import is_missed, next_run, parse
from ..queue.spec import Identity, QueueSpec
from ..sql.clock import utcnow
from ..sql.selection import Assignment
from ..sql.transitions import Held, renewing
from .fenced_updates import Apply, updating

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


_END = "end"
_AT_ONCE = "at once"


class Renewals:
    """Schedules the next runs of claimed tasks.

    By the schedule that a row has now, under its lock: whoever changes it meanwhile is waited for, and waits.
    """

    def __init__(self, adapter: Adapter, session: Session, held: Held) -> None:
        self.adapter = adapter
        self.session = session
        self.held = held
        self.spec = held.spec

    def renew(self, claims: Sequence[Claim], kept: Sequence[Assignment], end: Apply) -> set[Identity]:
        """Schedule them anew with ``kept`` written too, those due at one time in one statement; ``end`` the others."""
        runs = self._runs(claims)
        self._renew([claim for claim in claims if claim.identity in runs], runs, kept, end)
        return set(runs)

    def renew_exhausted(self, claims: Sequence[Claim], kept: Sequence[Assignment], fail: Apply) -> set[Identity]:
        """:meth:`renew` those that have used up their attempts; the others simply ``fail``."""
        runs = self._runs(claims)
        mine = [claim for claim in claims if claim.identity in runs]
        spent = [claim for claim in mine if claim.attempt >= runs[claim.identity].max_attempts]
        rest = [claim for claim in mine if claim not in spent]
        if rest:
            fail(self.adapter, self.session, self.held, rest)
        self._renew(spent, runs, kept, fail)
        return set(runs)

    def skip(self, claims: Sequence[Claim]) -> set[Identity]:
        """Schedule those anew that are not to be run now: too late, or before the first time; which those are."""
        skips = self.spec.options.missed == "skip"
        groups: defaultdict[datetime | None, list[Claim]] = defaultdict(list)
        runs = self._runs(claims)
        for claim in claims:
            run = runs.get(claim.identity)
            if run is not None and run.first is not None:
                groups[run.first].append(claim)
            elif run is not None and skips and run.is_missed:
                groups[run.next(self.spec)].append(claim)
        for moment, group in groups.items():
            self._write(renewing(self.held, moment), group)
        return {claim.identity for group in groups.values() for claim in group}

    def _renew(
        self, claims: Sequence[Claim], runs: Mapping[Identity, Run], kept: Sequence[Assignment], end: Apply
    ) -> None:
        groups: defaultdict[datetime | str, list[Claim]] = defaultdict(list)
        for claim in claims:
            groups[self._what_next(runs[claim.identity])].append(claim)
        for what, group in groups.items():
            if what == _END:
                end(self.adapter, self.session, self.held, group)
            else:
                values = [*renewing(self.held, what if isinstance(what, datetime) else None), *kept]
                self._write(values, group)

    def _what_next(self, run: Run) -> datetime | str:
        if not self.held.only_locked and run.claimed_at is None:
            return _AT_ONCE  # it was enqueued anew while it ran
        return run.next(self.spec) or _END

    def _write(self, values: Sequence[Assignment], claims: Sequence[Claim]) -> set[Identity]:
        return updating(lambda *_: values)(self.adapter, self.session, self.held, claims)

    def _runs(self, claims: Sequence[Claim]) -> dict[Identity, Run]:
        """The runs of those of ``claims`` that still hold their rows, which are locked from here on."""
        spec, adapter = self.spec, self.adapter
        planned = func.coalesce(spec["scheduled_for"], spec["available_at"])
        roles = (
            spec["claimed_at"],
            spec["attempt"],
            spec["max_attempts"],
            self.held.tries,
            spec["created_at"],
            utcnow(),
        )
        read = select(*spec.primary_key, spec["schedule"], spec["drift"], planned, *roles)
        mine = self._write([(spec["claimed_by"], spec["claimed_by"])], claims)
        found: dict[Identity, Run] = {}
        for keys in adapter.keys.batches(spec, sorted(mine)):
            # locking again: a transaction that reads repeatably would see what was there when it began
            latest = read.where(adapter.keys.key_in(spec, keys)).with_for_update(key_share=True)
            by_key = adapter.keys.by_key(spec, latest)
            for row in adapter.rows.execute(self.session, spec, by_key):
                width = len(spec.primary_key)
                found[tuple(row[:width])] = Run(*row[width:])
        return found
