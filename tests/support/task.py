"""The simplest queue of `tests.support.models`, for programs that need no other, since importing all takes a second."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Identity, Integer, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import ExponentialBackoff, QueueMixin, QueueOptions


class Base(DeclarativeBase):
    pass


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
