"""Tasks with several lives: those that go through stages, and those that run repeatedly by a schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sqlalchemy import Boolean, and_, case, event, func, literal, literal_column, null, select
from sqlalchemy.orm import Mapped
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql.elements import SQLCoreOperations

from .._support import checks
from .._support.errors import ArgumentError, Claim
from .._support.texts import logger_of
from ..dialects import key_type, text_type, timestamp_type
from ..lifecycle.kind import ColumnMaker, Kind, Partition
from ..lifecycle.transitions import (
    Fence,
    FencedClaims,
    clear_crashes,
    end_assignments,
    forgotten_steps,
    planned_run,
    reactivated,
    tries,
)
from ..model.declaration import QueueMixin, counter, option, optional
from ..queue.options import AttemptOutcome, QueueOptions, Status
from ..queue.schedules import (
    Cron,
    Every,
    Schedule,
    UnknownHereError,
    is_known_here,
    is_missed,
    next_run,
    parse,
    text_of,
)
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql import Assignment, all_attempts_after, is_available, is_held, raised, state, uncounted, utcnow

# -- the common base of kinds whose tasks get all their attempts again in each stage or run ---------------------------

ATTEMPTS_BEFORE: dict[str, ColumnMaker] = {"attempts_before": lambda _: counter()}


class SeveralLives(Kind):
    """A kind that counts the attempts of a task's earlier stages or runs in ``attempts_before``."""

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        before = spec["attempts_before"]
        return [(before, case((running, before), else_=spec["attempt"]))]

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        return [(spec["attempts_before"], spec["attempt"])]


# -- queues whose tasks go through stages -----------------------------------------------------------------------------

LONGEST_STAGE = 64


class Stages(SeveralLives):
    """Moves a completed task to its next stage, where it gets all its attempts again."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if "stage" in roles and not options.stages:
            return "stages= is missing: name the stages in order: QueueOptions(stages=('fetch', 'parse'))"
        if options.stages and "stage" not in roles:
            return "stages= is for models that derive from StageMixin"
        if any(len(stage) > LONGEST_STAGE for stage in options.stages):
            return f"the name of a stage can have at most {LONGEST_STAGE} characters"
        if "stage" in roles and "schedule" in roles:
            return "a recurring task cannot have stages: enqueue a task of another model at the end of each run"
        return None

    def announces(self, spec: QueueSpec, outcome: AttemptOutcome) -> bool:
        return outcome is AttemptOutcome.COMPLETED and self.continues(spec)

    def continues(self, spec: QueueSpec) -> bool:
        return len(spec.options.stages) > 1


STAGES = Stages(
    columns={
        "stage": lambda options: option(key_type(LONGEST_STAGE), options.stages[0]),
        **ATTEMPTS_BEFORE,
    },
    checks={"stage": checks.key},
    partition=Partition("stage", width=3),
    written_by_queue=("attempts_before",),
)


class StageMixin(QueueMixin):
    """A queue whose tasks go through the ``stages`` of its :class:`.QueueOptions` in order.

    ``complete`` moves a task to the next stage, where it is available at once with all its attempts; in the last stage
    it completes the task.  Claims with ``Task.stage == "..."`` have their own index.
    """

    __queue_kind__: ClassVar[Kind | None] = STAGES

    if TYPE_CHECKING:
        stage: Mapped[str]
        """The current stage."""
        attempts_before: Mapped[int]
        """The number of attempts in previous stages."""


# -- schedules the next runs of recurring tasks -----------------------------------------------------------------------

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
            logger.error("a task of %s has no next run: %s", spec.name, error)
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


def next_run_assignments(fence: Fence, moment: datetime | None) -> list[Assignment]:
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
        clear_crashes(spec),
        *forgotten_steps(spec),
        *fence.written(),
    ]


def defer_assignments(fence: Fence) -> list[Assignment]:
    """Return the assignments that leave tasks to another host: the attempt does not count, and the plan stays."""
    spec = fence.spec
    return [
        *planned_run(spec),
        (spec["status"], state(Status.SCHEDULED)),
        (spec["available_at"], utcnow(ELSEWHERE)),
        (spec["max_attempts"], uncounted(spec)),
        (spec["attempts_before"], raised(spec["attempts_before"])),
        *fence.written(),
    ]


def is_unplanned(spec: QueueSpec) -> Criterion:
    """Return the criterion of tasks that another program inserted with a schedule but without a time, so that they
    cannot be claimed yet although their status is ``available``.

    The first claim schedules them.
    """
    as_created = spec["available_at"] == spec["created_at"]
    first = spec["attempt"] == literal_column("0")
    return and_(is_available(spec), spec["schedule"].is_not(None), as_created, first)


def skip_runs(fenced: FencedClaims, tasks: Sequence[Any]) -> set[Identity]:
    """Postpone those of ``tasks``, just claimed, that must not run now; return their primary keys.

    These are missed runs if the model's options say so, tasks that have not been scheduled yet, and tasks that only
    other hosts can schedule.
    """
    spec = fenced.fence.spec
    doubtful = tasks if spec.options.missed == "skip" else [task for task in tasks if _is_doubtful(spec, task)]
    keys = {spec.identity_of(task) for task in doubtful}
    return Renewals(fenced.of([claim for claim in fenced.claims if claim.identity in keys])).skip()


def _is_doubtful(spec: QueueSpec, task: object) -> bool:
    """Return whether another program may have inserted the task with a schedule but without a time, or this host cannot
    evaluate its schedule."""
    shown = instance_state(task).dict
    needed = {role: spec.attributes[role] for role in ("schedule", "created_at", "scheduled_for", "available_at")}
    if not shown.keys() >= set(needed.values()):
        return True  # loader options have excluded one of the attributes
    schedule, created_at, *planned = (shown[name] for name in needed.values())
    return schedule is not None and (created_at in planned or not is_known_here(schedule))


def schedule_next_runs(
    fenced: FencedClaims, kept: Sequence[Assignment], *, spent: bool = False
) -> tuple[set[Identity], FencedClaims]:
    """Schedule the next runs of claimed tasks that recur, and also write ``kept``.

    If ``spent``, schedule only tasks without attempts left.  Return the primary keys of claims that still hold their
    rows, and the claims that remain to be settled.
    """
    return Renewals(fenced).renew(kept, spent=spent) if fenced.fence.spec.recurs else (set(), fenced)


_REST = "the rest"
_AT_ONCE = "at once"


class Renewals:
    """Schedules the next runs of claimed tasks.

    Reads each row's current schedule under a lock, so concurrent changes to it happen before or after, never between.
    """

    def __init__(self, fenced: FencedClaims) -> None:
        self._fenced = fenced
        self._fence = fenced.fence
        self._spec = fenced.fence.spec

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
            self._fenced.of(group).write([*next_run_assignments(self._fence, moment), *kept])
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
            self._fenced.of(group).write(next_run_assignments(self._fence, moment))
        self._fenced.of(left).write(defer_assignments(self._fence))
        return {claim.identity for group in (left, *groups.values()) for claim in group}

    def _what_next(self, run: Run) -> datetime | str:
        if self._fence.locked_by is None and run.claimed_at is None:
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
        for keys in adapter.rows.batches(spec, sorted(mine)):
            # a locking read: at REPEATABLE READ, a plain SELECT would return the snapshot's values
            latest = read.where(adapter.rows.key_in(spec, keys)).with_for_update(key_share=True)
            by_key = adapter.rows.by_key(spec, latest)
            for row in adapter.rows.execute(self._fenced.session, spec, by_key):
                width = len(spec.primary_key)
                found[tuple(row[:width])] = Run(*row[width:])
        return found


# -- queues whose tasks run repeatedly --------------------------------------------------------------------------------

LONGEST_SCHEDULE = 128


class Recurring(SeveralLives):
    """Schedules the next run of a task by its ``schedule`` when a run ends."""

    def mapped(self, spec: QueueSpec) -> None:
        event.listen(getattr(spec.entity, spec.attributes["schedule"]), "set", _set_schedule, retval=True)

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        planned = spec["scheduled_for"]
        return [*super().restarted(spec, running), (planned, case((running, planned), else_=null()))]

    def continues(self, spec: QueueSpec) -> bool:
        return True


def _set_schedule(task: object, value: object, *_: object) -> object:
    """Convert a schedule to its text when the attribute is set, so that the attribute has the column's value."""
    return text_of(value) if isinstance(value, (str, Every, Cron)) else value


RECURRING = Recurring(
    columns={
        "schedule": lambda _: optional(text_type(LONGEST_SCHEDULE)),
        "drift": lambda _: optional(Boolean()),
        "scheduled_for": lambda _: optional(timestamp_type()),
        **ATTEMPTS_BEFORE,
    },
    untouched=("schedule", "drift"),
    written_by_queue=("scheduled_for", "attempts_before"),
)


if TYPE_CHECKING:

    class _MappedSchedule(Mapped[str | None]):
        """An attribute that is read as text, and can also be set to a schedule."""

        def __set__(self, instance: Any, value: Schedule | str | SQLCoreOperations[str | None] | None) -> None: ...


class RecurringMixin(QueueMixin):
    """A queue whose tasks run repeatedly, each by its own ``schedule``.

    When a run is completed, or its last attempt has failed, the next run is scheduled in the same statement.
    ``cancel``, ``discard`` and :func:`.unschedule` end a task.  A task without a schedule is an ordinary task.
    Applications declare their recurring tasks with :func:`.declare_schedules`.
    """

    __queue_kind__: ClassVar[Kind | None] = RECURRING

    if TYPE_CHECKING:
        schedule: _MappedSchedule
        """The text of an :class:`.Every` or a :class:`.Cron`, either of which can be assigned; see :func:`.reschedule`
        for changes."""
        drift: Mapped[bool | None]
        """Whether intervals count from the end of a run instead of its planned time."""
        scheduled_for: Mapped[datetime | None]
        """The planned time of the claimed run; retries do not change it."""
        attempts_before: Mapped[int]
        """The number of attempts in previous runs."""


def plan_assignments(spec: QueueSpec, moment: datetime, given: Sequence[Assignment]) -> list[Assignment]:
    """Return the assignments that schedule the next run of a task in any state for ``moment``.

    A running task continues; only ``given`` and the plan of its next run change.
    """
    running = is_held(spec)
    at = literal(moment, spec["available_at"].type)
    kept_plan = func.coalesce(spec["scheduled_for"], spec["claimed_at"])
    restarted: list[Assignment] = [
        (spec["available_at"], at),
        (spec["finished_at"], null()),
        (spec["max_attempts"], all_attempts_after(spec, spec["attempt"])),
        (spec["attempts_before"], spec["attempt"]),
        clear_crashes(spec),
    ]
    return [
        *given,
        *reactivated(spec),
        (spec["scheduled_for"], case((running, kept_plan), else_=null())),
        *((column, case((running, column), else_=value)) for column, value in restarted),
        (spec["status"], case((running, spec["status"]), else_=state(Status.SCHEDULED))),
    ]


def stop_assignments(spec: QueueSpec, running: Criterion) -> list[Assignment]:
    """Return the assignments that end recurrence: cancel waiting tasks, and remove the schedule of running ones."""
    ended = [
        (column, case((running, column), else_=value)) for column, value in end_assignments(spec, Status.CANCELLED)
    ]
    (status,) = (each for each in ended if each[0] is spec["status"])
    rest = [each for each in ended if each is not status]
    return [*rest, (spec["schedule"], case((running, null()), else_=spec["schedule"])), status]
