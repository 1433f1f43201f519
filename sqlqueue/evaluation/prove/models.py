"""The tables of the proof: tasks, the rows that their handlers write, and tasks whose concurrency is limited."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import BigInteger, Identity, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import ConstantBackoff, LimitMixin, QueueOptions, SlotMixin, TopicMixin

LEASE = timedelta(seconds=2)
LIMIT = 2
ACCOUNTS = 6
"""The number of accounts: few enough that transactions that change two of them conflict."""
_ATTEMPTS = 1_000
"""The number of attempts and crashes: faults use them up, and must not make a task fail here."""


class Base(DeclarativeBase):
    """The declarative base of the proof's models."""


class Task(TopicMixin, Base):
    """A task. Its topic determines whether workers or a scenario handle it."""

    __tablename__ = "sqlqueue_prove_task"
    __queue__ = QueueOptions(
        lease=LEASE,
        max_attempts=_ATTEMPTS,
        max_crashes=_ATTEMPTS,
        retry=ConstantBackoff(timedelta(milliseconds=100)),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Receipt(Base):
    """A receipt, written in the transaction that completes a task. Only the queue prevents a second one."""

    __tablename__ = "sqlqueue_prove_receipt"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    task_id: Mapped[int] = mapped_column(BigInteger)
    worker: Mapped[str] = mapped_column(String(40))


class Account(Base):
    """A row that many handlers change.  Each handler adds one to the balances of two."""

    __tablename__ = "sqlqueue_prove_account"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    balance: Mapped[int] = mapped_column(BigInteger, default=0)


class Slot(SlotMixin, Base):
    """A slot that a running visit holds."""

    __tablename__ = "sqlqueue_prove_slot"


class Visit(LimitMixin, Base):
    """A task of which at most :data:`LIMIT` may run at once."""

    __tablename__ = "sqlqueue_prove_visit"
    __queue__ = QueueOptions(slots=Slot, limit=LIMIT, lease=timedelta(minutes=5), max_attempts=_ATTEMPTS)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
