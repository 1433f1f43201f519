"""Models of the other kinds of queues: recurring, limited, unique, staged, messages, jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import DateTime, Identity, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from sqlqueue import (
    ConstantBackoff,
    ExponentialBackoff,
    JobMixin,
    LimitMixin,
    LinearBackoff,
    PauseMixin,
    QueueOptions,
    RecurringMixin,
    ResultMixin,
    SlotMixin,
    StageMixin,
    TopicMixin,
    TraceMixin,
    UniqueMixin,
)
from sqlqueue.outbox import OutboxMixin
from sqlqueue.sqltasks import SQLTaskMixin, sql_task_options
from tests.support.models.base import Base


class Listing(UniqueMixin, Base):
    """One for each thing that is listed while it waits or runs; what is newer is told by a number or a moment."""

    __tablename__ = "listing"
    __queue__ = QueueOptions(max_attempts=1)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    version: Mapped[int | None] = mapped_column(Integer)
    changed_at: Mapped[datetime | None] = mapped_column(DateTime)


class Film(StageMixin, UniqueMixin, ResultMixin, Base):
    """Goes from stage to stage, and has a result."""

    __tablename__ = "film"
    __queue__ = QueueOptions(
        stages=("cut", "dub", "print"),
        max_attempts=2,
        retry=ExponentialBackoff(timedelta(seconds=10), factor=3, jitter=0),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Leaflet(StageMixin, UniqueMixin, Base):
    """The same, gone when it is done."""

    __tablename__ = "leaflet"
    __queue__ = QueueOptions(stages=("fold", "post"), on_complete="delete", max_attempts=1)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Traced(TraceMixin, Base):
    """Carries a trace from where it is enqueued to where it is handled."""

    __tablename__ = "traced"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Job(JobMixin, TopicMixin, Base):
    """Calls of functions."""

    __tablename__ = "job"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Outgoing(OutboxMixin, Base):
    """Messages for the world outside."""

    __tablename__ = "outgoing"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Dispatch(OutboxMixin, Base):
    """The same, kept when they are published, and ordered by two columns."""

    __tablename__ = "dispatch"
    __queue__ = replace(OutboxMixin.__queue__, on_complete="keep", max_attempts=2)

    year: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class Report(RecurringMixin, Base):
    """Recurs; all missed runs are made up for by one."""

    __tablename__ = "report"
    __queue__ = QueueOptions(max_attempts=2, retry=LinearBackoff(timedelta(seconds=10), jitter=0))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Reading(RecurringMixin, Base):
    """Each run that was missed is made up for."""

    __tablename__ = "reading"
    __queue__ = QueueOptions(missed="all")

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Ping(RecurringMixin, Base):
    """Late runs are skipped; deleted when there is no further run."""

    __tablename__ = "ping"
    __queue__ = QueueOptions(missed="skip", on_complete="delete")

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Slot(SlotMixin, Base):
    __tablename__ = "slot"


class Visit(LimitMixin, Base):
    """At most two to one place at a time."""

    __tablename__ = "visit"
    __queue__ = QueueOptions(slots=Slot, limit=2, retry=ConstantBackoff(timedelta(0)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Chore(JobMixin, RecurringMixin, UniqueMixin, LimitMixin, Base):
    """Recurring calls of functions, each known by its key."""

    __tablename__ = "chore"
    __queue__ = QueueOptions(slots=Slot, max_attempts=2)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    note: Mapped[str | None] = mapped_column(String(100))


class QueuePause(PauseMixin, Base):
    """Which of these queues are paused."""

    __tablename__ = "queue_pause"


class SQLSlot(SlotMixin, Base):
    __tablename__ = "sql_slot"


class SQLTask(SQLTaskMixin, Base):
    """SQL that is executed as a row says."""

    __tablename__ = "sql_task"
    __queue__ = sql_task_options(SQLSlot)
