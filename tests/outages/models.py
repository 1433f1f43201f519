"""A queue whose tasks come back quickly, and the effects of its handlers."""

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
    # as many as a machine needs that stands still at times: most leases are brief
    __queue__ = QueueOptions(max_attempts=MAX_ATTEMPTS, retry=ConstantBackoff(timedelta(seconds=0.2)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Receipt(Base):
    """Nothing keeps a second one of the same errand out but the queue."""

    __tablename__ = "receipt"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    errand_id: Mapped[int]
    worker: Mapped[str] = mapped_column(String(100))
