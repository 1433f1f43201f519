"""Models of the other kinds of queues: recurring, limited, unique, staged, messages, jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import DateTime, Identity, Integer, String, Text
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
    """A queue with one row for each listed item; a number or a time shows which version is newer."""

    __tablename__ = "listing"
    __queue__ = QueueOptions(max_attempts=1)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    version: Mapped[int | None] = mapped_column(Integer)
    changed_at: Mapped[datetime | None] = mapped_column(DateTime)
    description: Mapped[str | None] = mapped_column(Text)


class Film(StageMixin, UniqueMixin, ResultMixin, Base):
    """A queue with stages and results."""

    __tablename__ = "film"
    __queue__ = QueueOptions(
        stages=("cut", "dub", "print"),
        max_attempts=2,
        retry=ExponentialBackoff(timedelta(seconds=10), factor=3, jitter=0),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Leaflet(StageMixin, UniqueMixin, Base):
    """The same, with completed rows deleted."""

    __tablename__ = "leaflet"
    __queue__ = QueueOptions(stages=("fold", "post"), on_complete="delete", max_attempts=1)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Traced(TraceMixin, Base):
    """A queue whose tasks carry traces from enqueueing to handling."""

    __tablename__ = "traced"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Job(JobMixin, TopicMixin, Base):
    """A queue of function calls."""

    __tablename__ = "job"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Outgoing(OutboxMixin, Base):
    """An outbox."""

    __tablename__ = "outgoing"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Dispatch(OutboxMixin, Base):
    """An outbox that keeps published messages and orders them by two columns."""

    __tablename__ = "dispatch"
    __queue__ = replace(OutboxMixin.__queue__, on_complete="keep", max_attempts=2)

    year: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class Report(RecurringMixin, Base):
    """A recurring queue; one run makes up for all missed ones."""

    __tablename__ = "report"
    __queue__ = QueueOptions(max_attempts=2, retry=LinearBackoff(timedelta(seconds=10), jitter=0))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Reading(RecurringMixin, Base):
    """A recurring queue that makes up for each missed run."""

    __tablename__ = "reading"
    __queue__ = QueueOptions(missed="all")

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Ping(RecurringMixin, Base):
    """A recurring queue that skips late runs, and deletes tasks without a further run."""

    __tablename__ = "ping"
    __queue__ = QueueOptions(missed="skip", on_complete="delete")

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Slot(SlotMixin, Base):
    __tablename__ = "slot"


class Visit(LimitMixin, Base):
    """A queue with a limit of two visits to a place at a time."""

    __tablename__ = "visit"
    __queue__ = QueueOptions(slots=Slot, limit=2, retry=ConstantBackoff(timedelta(0)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Chore(JobMixin, RecurringMixin, UniqueMixin, LimitMixin, Base):
    """Recurring function calls, each identified by a unique key."""

    __tablename__ = "chore"
    __queue__ = QueueOptions(slots=Slot, max_attempts=2)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    note: Mapped[str | None] = mapped_column(String(100))


class QueuePause(PauseMixin, Base):
    """The pauses of these queues."""

    __tablename__ = "queue_pause"


class SQLSlot(SlotMixin, Base):
    __tablename__ = "sql_slot"


class SQLTask(SQLTaskMixin, Base):
    """A queue of SQL tasks."""

    __tablename__ = "sql_task"
    __queue__ = sql_task_options(SQLSlot)
