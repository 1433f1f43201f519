"""Models like those of applications; every engine's database has all of their tables."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import (
    DateTime,
    Enum,
    ForeignKey,
    Identity,
    Integer,
    String,
    Text,
    Unicode,
    Uuid,
    desc,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, relationship

from sqlqueue import (
    ConstantBackoff,
    ExpiryMixin,
    ExponentialBackoff,
    JobMixin,
    LimitMixin,
    LinearBackoff,
    PauseMixin,
    ProgressMixin,
    QueueMixin,
    QueueOptions,
    RecurringMixin,
    ResultMixin,
    RetryByError,
    SlotMixin,
    StageMixin,
    StepMixin,
    TopicMixin,
    TraceMixin,
    UniqueMixin,
)
from sqlqueue.outbox import OutboxMixin
from sqlqueue.sqltasks import SQLTaskMixin, sql_task_options
from tests.support.task import Base, Ledger, Task

__all__ = ["Base", "Ledger", "Task"]


class DataBase(MappedAsDataclass, DeclarativeBase):
    """A base whose models are dataclasses, in the same database."""

    metadata = Base.metadata


# -- with QueueMixin or TopicMixin, and the tables that they refer to -------------------------------------------------


class Mail(TopicMixin, Base):
    """A queue divided by topic, with children and a parent as in real models."""

    __tablename__ = "mail"
    __queue__ = QueueOptions(retention=timedelta(days=1))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    account_id: Mapped[int | None] = mapped_column(ForeignKey("account.id"))
    subject: Mapped[str] = mapped_column(Unicode(100), default="")
    account: Mapped[Account | None] = relationship(back_populates="mails")
    attachments: Mapped[list[Attachment]] = relationship(back_populates="mail")


class Account(Base):
    __tablename__ = "account"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    mails: Mapped[list[Mail]] = relationship(back_populates="account")


class Attachment(Base):
    __tablename__ = "attachment"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    mail_id: Mapped[int] = mapped_column(ForeignKey("mail.id"), index=True)
    name: Mapped[str] = mapped_column(String(100), default="")
    mail: Mapped[Mail] = relationship(back_populates="attachments")


class Sign(QueueMixin, Base):
    """A queue with a column that a newer release may write values to which this one does not know."""

    __tablename__ = "sign"
    __queue__ = QueueOptions(retry=ConstantBackoff(timedelta(minutes=10), jitter=0))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    symbol: Mapped[str] = mapped_column(Enum("rose", native_enum=False, length=20), default="rose")


class Document(QueueMixin, Base):
    """A queue keyed by owner, for `on_conflict`."""

    __tablename__ = "document"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, default=0)


class Parcel(QueueMixin, Base):
    """A queue whose key the application generates."""

    __tablename__ = "parcel"

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True, default=uuid.uuid4)
    name: Mapped[str] = mapped_column(String(100), default="")


class Seat(QueueMixin, Base):
    """A task with a primary key of two columns."""

    __tablename__ = "seat"

    line: Mapped[str] = mapped_column(String(20), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class Order(QueueMixin, Base):
    """A table that had a status and a created_at before it became a queue."""

    __tablename__ = "customer_order"
    __queue__ = QueueOptions(columns={"status": "queue_status", "created_at": "queued_at"})

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="new")
    created_at: Mapped[datetime | None] = mapped_column(DateTime)


class Spool(QueueMixin, Base):
    """A queue that deletes completed rows."""

    __tablename__ = "spool"
    __queue__ = QueueOptions(on_complete="delete", notify=False)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    text: Mapped[str] = mapped_column(String(100), default="")


class Ticket(QueueMixin, Base):
    """A queue with its own order: the most severe first."""

    __tablename__ = "ticket"
    __queue__ = QueueOptions(order_by=(desc("severity"), "id"))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    severity: Mapped[int] = mapped_column(Integer, default=0)


class Notice(QueueMixin, Base):
    """A queue with single-table inheritance."""

    __tablename__ = "notice"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "notice"}  # noqa: RUF012 - as SQLAlchemy has it

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))


class Reminder(Notice):
    __mapper_args__ = {"polymorphic_identity": "reminder"}  # noqa: RUF012

    about: Mapped[str | None] = mapped_column(String(100))


class Invoice(QueueMixin, Base):
    """A queue with joined-table inheritance."""

    __tablename__ = "invoice"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "invoice"}  # noqa: RUF012

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))


class CreditNote(Invoice):
    __tablename__ = "credit_note"
    __mapper_args__ = {"polymorphic_identity": "credit_note"}  # noqa: RUF012

    id: Mapped[int] = mapped_column(ForeignKey("invoice.id"), primary_key=True)
    amount: Mapped[int] = mapped_column(Integer, default=0)


class Message(QueueMixin, Base):
    """A queue partitioned by kind, whose retry delay depends on the error, and which keeps dead letters longer."""

    __tablename__ = "message"
    __queue__ = QueueOptions(
        partitions=("kind",),
        retry=RetryByError(
            {
                ValueError: None,
                LookupError: ConstantBackoff(timedelta(hours=1), jitter=0),
                KeyError: LinearBackoff(timedelta(minutes=7), jitter=0),
            },
            otherwise=ConstantBackoff(timedelta(minutes=1), jitter=0),
        ),
        retention=timedelta(days=1),
        discarded_retention=timedelta(days=30),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str] = mapped_column(String(20), default="plain")


class Crawl(TopicMixin, Base):
    """A fair queue, whose sites take turns in each topic; one has a greater weight."""

    __tablename__ = "crawl"
    __queue__ = QueueOptions(fair="site", weight={"gold": 3})

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    site: Mapped[str | None] = mapped_column(Unicode(40))


class Transfer(TopicMixin, Base):
    """A queue whose accounts keep their order."""

    __tablename__ = "transfer"
    __queue__ = QueueOptions(sequential="account", retry=ConstantBackoff(timedelta(0)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    account: Mapped[str | None] = mapped_column(Unicode(40))


class Letter(QueueMixin, DataBase):
    __tablename__ = "letter"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True, init=False)
    recipient: Mapped[str] = mapped_column(String(100))


# -- of other kinds: recurring, limited, unique, staged, messages, jobs -----------------------------------------------


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


class Push(ExpiryMixin, UniqueMixin, TopicMixin, Base):
    """A queue whose tasks expire."""

    __tablename__ = "push"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Render(ProgressMixin, JobMixin, Base):
    """A queue whose handlers report their progress."""

    __tablename__ = "render"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Voyage(StepMixin, ResultMixin, UniqueMixin, Base):
    """A queue whose handlers run in steps."""

    __tablename__ = "voyage"
    __queue__ = QueueOptions(max_crashes=50, retry=ConstantBackoff(timedelta(0), jitter=0))

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
