"""A queue whose tasks are retried quickly, and the effects of its handlers."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import CheckConstraint, Identity, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import ConstantBackoff, QueueOptions, TopicMixin

MAX_ATTEMPTS = 9


class Base(DeclarativeBase):
    pass


class Errand(TopicMixin, Base):
    __tablename__ = "errand"
    __table_args__ = (CheckConstraint("topic <> 'refused' OR status <> 'completed'"),)
    # enough for a machine that stalls at times, since most leases are short
    __queue__ = QueueOptions(max_attempts=MAX_ATTEMPTS, retry=ConstantBackoff(timedelta(seconds=0.2)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Receipt(Base):
    """A receipt; only the queue prevents a second one for the same errand."""

    __tablename__ = "receipt"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    errand_id: Mapped[int]
    worker: Mapped[str] = mapped_column(String(100))
