"""Models like those of applications, in separate metadata, for plain Alembic without the plugin."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ForeignKey, Identity, Integer, MetaData, String, Uuid, desc
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from sqlqueue import (
    ExpiryMixin,
    FlowMixin,
    HistoryMixin,
    JobMixin,
    LatchMixin,
    LimitMixin,
    ProgressMixin,
    QueueMixin,
    QueueOptions,
    RecurringMixin,
    ResultMixin,
    SlotMixin,
    StageMixin,
    StepMixin,
    TopicMixin,
    UniqueMixin,
    WorkerMixin,
)
from sqlqueue.outbox import OutboxMixin
from sqlqueue.sqltasks import SQLTaskMixin, sql_task_options

MESSAGE = String(100)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Task(QueueMixin, Base):
    __tablename__ = "plain_task"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(MESSAGE, default="", index=True)


class Attempts(HistoryMixin, Base):
    __tablename__ = "plain_attempts"


class Workers(WorkerMixin, Base):
    __tablename__ = "plain_workers"


class Latches(LatchMixin, Base):
    __tablename__ = "plain_latches"


class Page(FlowMixin, Base):
    __tablename__ = "plain_page"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Mail(TopicMixin, Base):
    __tablename__ = "plain_mail"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    task_id: Mapped[int | None] = mapped_column(ForeignKey("plain_task.id"))


class Document(QueueMixin, Base):
    """A model whose index names are shortened."""

    __tablename__ = "plain_document_of_a_kind_that_nobody_would_ever_shorten"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)


class Parcel(QueueMixin, Base):
    __tablename__ = "plain_parcel"

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True, default=uuid.uuid4)


class Seat(QueueMixin, Base):
    __tablename__ = "plain_seat"

    line: Mapped[str] = mapped_column(String(20), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class Order(TopicMixin, Base):
    """A queue with renamed columns, one of which must be quoted, and its own claim order."""

    __tablename__ = "plain_order"
    __queue__ = QueueOptions(
        columns={"status": "queueStatus", "created_at": "queued_at", "topic": "region", "error": "queue_error"},
        order_by=(desc("amount"), "available_at"),
        max_attempts=3,
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    amount: Mapped[int] = mapped_column(Integer, default=0)
    status: Mapped[str] = mapped_column(String(20), default="new")


class Invoice(QueueMixin, Base):
    __tablename__ = "plain_invoice"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "invoice"}  # noqa: RUF012 - as SQLAlchemy has it

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))


class CreditNote(Invoice):
    __tablename__ = "plain_credit_note"
    __mapper_args__ = {"polymorphic_identity": "credit_note"}  # noqa: RUF012

    id: Mapped[int] = mapped_column(ForeignKey("plain_invoice.id"), primary_key=True)
    amount: Mapped[int] = mapped_column(Integer, default=0)


class Call(StepMixin, ExpiryMixin, JobMixin, Base):
    """A queue of function calls with renamed columns."""

    __tablename__ = "plain_call"
    __queue__ = QueueOptions(columns={"task": "function", "arguments": "givenArguments"})

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Errand(ProgressMixin, JobMixin, Base):
    __tablename__ = "plain_errand"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Listing(UniqueMixin, Base):
    __tablename__ = "plain_listing"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Film(StageMixin, UniqueMixin, ResultMixin, Base):
    """A queue of stages with renamed columns."""

    __tablename__ = "plain_film"
    __queue__ = QueueOptions(
        stages=("print",),
        columns={"unique_key": "filmKey", "former_key": "former", "stage": "step", "result": "outcome"},
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Tick(RecurringMixin, Base):
    __tablename__ = "plain_tick"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Bay(SlotMixin, Base):
    __tablename__ = "plain_bay"


class Truck(LimitMixin, Base):
    """A limited queue that is also divided by an attribute."""

    __tablename__ = "plain_truck"
    __queue__ = QueueOptions(slots=Bay, partitions=("cargo",))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cargo: Mapped[str | None] = mapped_column(MESSAGE)


class Outgoing(OutboxMixin, Base):
    __tablename__ = "plain_outgoing"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Request(SQLTaskMixin, Base):
    __tablename__ = "plain_request"
    __queue__ = sql_task_options(Bay)


class DataBase(MappedAsDataclass, DeclarativeBase):
    metadata = Base.metadata


class Letter(QueueMixin, DataBase):
    __tablename__ = "plain_letter"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True, init=False)
    recipient: Mapped[str] = mapped_column(MESSAGE)


def example(kind: type) -> object:
    """Return an instance that can be stored."""
    keys = {
        Document: {"id": "a"},
        Seat: {"line": "a", "number": 1},
        Letter: {"recipient": "ada"},
        Call: {"function": "send", "givenArguments": {"to": ["ada", None]}},
        Errand: {"task": "send"},
        Tick: {"drift": True},
        Truck: {"limit_key": "a", "cargo": "b"},
        Listing: {"unique_key": "a"},
        Film: {"filmKey": "a"},
        Request: {"request": "SELECT 1", "queue": "a", "timeout": 0.5},
    }
    return kind(**keys.get(kind, {}))


def shipment(*mixins: type[Any], schema: str | None = None, names: Mapping[str, str] | None = None) -> type[Any]:
    """Return a model that is a queue if mixins are given, with these names of columns, and otherwise an ordinary
    model."""

    class Base(DeclarativeBase):
        metadata = MetaData(schema=schema)

    if FlowMixin in mixins:

        class Latch(LatchMixin, Base):
            __tablename__ = "plain_latch"

    class Shipment(*mixins, Base):  # type: ignore[misc]
        __tablename__ = "plain_shipment"
        __queue__ = QueueOptions(order_by=(desc("weight"), "id"), columns=names or {})

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        cargo: Mapped[str] = mapped_column(String(80), index=True)
        weight: Mapped[int] = mapped_column(Integer)

    return Shipment
