"""Queues of every kind that the dashboard has a page for."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Identity, Unicode
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import (
    FlowMixin,
    HistoryMixin,
    LatchMixin,
    LimitMixin,
    PauseMixin,
    ProgressMixin,
    QueueMixin,
    QueueOptions,
    RecurringMixin,
    SlotMixin,
    StageMixin,
    TopicMixin,
    WorkerMixin,
)
from sqlqueue.outbox import OutboxMixin


class Base(DeclarativeBase):
    pass


class Email(TopicMixin, Base):
    __tablename__ = "email"
    __queue__ = QueueOptions(retention=timedelta(days=7))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    recipient: Mapped[str] = mapped_column(Unicode(200), default="")
    secret: Mapped[str] = mapped_column(Unicode(200), default="")


class Page(QueueMixin, Base):
    """A queue whose key can contain any text."""

    __tablename__ = "page"

    address: Mapped[str] = mapped_column(Unicode(200), primary_key=True)


class Digest(RecurringMixin, Base):
    __tablename__ = "digest"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class CrawlSlot(SlotMixin, Base):
    __tablename__ = "crawl_slot"


class Crawl(LimitMixin, Base):
    __tablename__ = "crawl"
    __queue__ = QueueOptions(slots=CrawlSlot, limit=2)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Order(ProgressMixin, StageMixin, Base):
    __tablename__ = "orders"
    __queue__ = QueueOptions(stages=("pay", "pack", "send"), retention=timedelta(days=7))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Latch(LatchMixin, Base):
    __tablename__ = "latch"


class Step(FlowMixin, Base):
    __tablename__ = "step"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(Unicode(200), default="")


class Event(OutboxMixin, Base):
    __tablename__ = "event"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Stop(PauseMixin, Base):
    __tablename__ = "stop"


class Attempt(HistoryMixin, Base):
    __tablename__ = "attempt"


class LiveWorker(WorkerMixin, Base):
    __tablename__ = "live_worker"
