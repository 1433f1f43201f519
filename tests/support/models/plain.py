"""Models of applications with QueueMixin or TopicMixin, and the tables that they refer to."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from sqlalchemy import DateTime, Enum, ForeignKey, Identity, Integer, String, Unicode, UniqueConstraint, Uuid, desc
from sqlalchemy.orm import Mapped, mapped_column, relationship

from sqlqueue import (
    ConstantBackoff,
    ExponentialBackoff,
    LinearBackoff,
    QueueMixin,
    QueueOptions,
    RetryByError,
    TopicMixin,
)
from tests.support.models.base import Base, DataBase


class Task(QueueMixin, Base):
    """The simplest queue."""

    __tablename__ = "task"
    __queue__ = QueueOptions(max_attempts=3, retry=ExponentialBackoff(timedelta(seconds=10), factor=3, jitter=0))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), default="")
    number: Mapped[int] = mapped_column(Integer, default=0)
    """A column without an index."""


class Ledger(Base):
    """One row for each completed task, written in the transaction that completes it."""

    __tablename__ = "ledger"
    __table_args__ = (UniqueConstraint("task_id", name="uq_ledger_task"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    task_id: Mapped[int] = mapped_column(Integer)
    worker: Mapped[str] = mapped_column(String(100), default="")


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


class Letter(QueueMixin, DataBase):
    __tablename__ = "letter"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True, init=False)
    recipient: Mapped[str] = mapped_column(String(100))
