"""Queues whose tasks run repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Boolean, and_, case, event, func, literal, literal_column, null
from sqlalchemy.orm import Mapped
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql.elements import SQLCoreOperations

from ..dialects import text_type, timestamp_type
from ..lifecycle.fenced import FencedClaims
from ..lifecycle.kind import Kind
from ..lifecycle.reactivation import fresh_budget, revived
from ..lifecycle.transitions import clearing, ending
from ..model.columns import optional
from ..model.mixins import QueueMixin
from ..queue.schedules import Cron, Every, Schedule, is_known_here, parse, text_of
from ..queue.spec import Criterion, Identity, QueueSpec
from ..queue.status import Status
from ..sql.changes import Assignment
from ..sql.states import is_available, is_held, state
from .lives import ATTEMPTS_BEFORE, SeveralLives
from .runs import Renewals

LONGEST_SCHEDULE = 128


class Recurring(SeveralLives):
    """Schedules the next run of a task by its ``schedule`` when a run ends."""

    def mapped(self, spec: QueueSpec) -> None:
        event.listen(getattr(spec.entity, spec.attributes["schedule"]), "set", _set_schedule, retval=True)

    def normalize(self, spec: QueueSpec, row: dict[str, Any]) -> None:
        schedule = spec.attributes["schedule"]
        if row.get(schedule) is not None:
            row[schedule] = text_of(row[schedule])

    def moment(self, spec: QueueSpec, values: Mapping[str, Any], now: Callable[[], datetime]) -> datetime | None:
        schedule = values.get(spec.attributes["schedule"])
        return None if schedule is None else parse(schedule).after(now())

    def claimed(self, spec: QueueSpec) -> list[Assignment]:
        """Store the run's planned time: ``available_at`` changes to the end of the lease or the time of a retry."""
        return [(spec["scheduled_for"], func.coalesce(spec["scheduled_for"], spec["available_at"]))]

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        planned = spec["scheduled_for"]
        return [*super().restarted(spec, running), (planned, case((running, planned), else_=null()))]

    def unplanned(self, spec: QueueSpec) -> Criterion | None:
        """Return the criterion of tasks that another program inserted with a schedule but without a time.

        The first claim schedules them.
        """
        as_created = spec["available_at"] == spec["created_at"]
        first = spec["attempt"] == literal_column("0")
        return and_(is_available(spec), spec["schedule"].is_not(None), as_created, first)

    def skip(self, fenced: FencedClaims, tasks: Sequence[Any]) -> set[Identity]:
        """Postpone missed runs if the model's options say so, tasks that have not been scheduled yet, and tasks that
        only other hosts can schedule."""
        spec = fenced.spec
        doubtful = tasks if spec.options.missed == "skip" else [task for task in tasks if _is_doubtful(spec, task)]
        keys = {spec.identity_of(task) for task in doubtful}
        return Renewals(fenced.of([claim for claim in fenced.claims if claim.identity in keys])).skip()

    def renew(
        self, fenced: FencedClaims, kept: Sequence[Assignment], *, spent: bool
    ) -> tuple[set[Identity], FencedClaims]:
        return Renewals(fenced).renew(kept, spent=spent)

    def continues(self, spec: QueueSpec) -> bool:
        return True


def _set_schedule(task: object, value: object, *_: object) -> object:
    """Convert a schedule to its text when the attribute is set, so that the attribute has the column's value."""
    return text_of(value) if isinstance(value, (str, Every, Cron)) else value


def _is_doubtful(spec: QueueSpec, task: object) -> bool:
    """Return whether another program may have inserted the task with a schedule but without a time, or this host cannot
    evaluate its schedule."""
    shown = instance_state(task).dict
    needed = {role: spec.attributes[role] for role in ("schedule", "created_at", "scheduled_for", "available_at")}
    if not shown.keys() >= set(needed.values()):
        return True  # loader options have excluded one of the attributes
    schedule, created_at, *planned = (shown[name] for name in needed.values())
    return schedule is not None and (created_at in planned or not is_known_here(schedule))


RECURRING = Recurring(
    columns={
        "schedule": lambda _: optional(text_type(LONGEST_SCHEDULE)),
        "drift": lambda _: optional(Boolean()),
        "scheduled_for": lambda _: optional(timestamp_type()),
        **ATTEMPTS_BEFORE,
    },
    untouched=("schedule", "drift"),
    untold=("scheduled_for", "attempts_before"),
    recurs=True,
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


def planning(spec: QueueSpec, moment: datetime, given: Sequence[Assignment]) -> list[Assignment]:
    """Return the assignments that schedule the next run of a task in any state for ``moment``.

    A running task continues; only ``given`` and the plan of its next run change.
    """
    running = is_held(spec)
    at = literal(moment, spec["available_at"].type)
    kept_plan = func.coalesce(spec["scheduled_for"], spec["claimed_at"])
    restarted: list[Assignment] = [
        (spec["available_at"], at),
        (spec["finished_at"], null()),
        (spec["max_attempts"], fresh_budget(spec)),
        (spec["attempts_before"], spec["attempt"]),
        clearing(spec),
    ]
    return [
        *given,
        *revived(spec),
        (spec["scheduled_for"], case((running, kept_plan), else_=null())),
        *((column, case((running, column), else_=value)) for column, value in restarted),
        (spec["status"], case((running, spec["status"]), else_=state(Status.SCHEDULED))),
    ]


def stopping(spec: QueueSpec, running: Criterion) -> list[Assignment]:
    """Return the assignments that end recurrence: cancel waiting tasks, and remove the schedule of running ones."""
    ended = [(column, case((running, column), else_=value)) for column, value in ending(spec, Status.CANCELLED)]
    (status,) = (each for each in ended if each[0] is spec["status"])
    rest = [each for each in ended if each is not status]
    return [*rest, (spec["schedule"], case((running, null()), else_=spec["schedule"])), status]
