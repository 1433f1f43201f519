"""The queues of the conformance suite."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ForeignKey, Identity, Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ...kinds.columns import UniqueMixin
from ...kinds.limits import LimitMixin, SlotMixin
from ...model.declaration import QueueMixin
from ...queue.options import QueueOptions
from ...queue.retries import ConstantBackoff


class Base(DeclarativeBase):
    """The declarative base of the suite's models."""


class Job(UniqueMixin, Base):
    """A task with two attempts, the second without a delay."""

    __tablename__ = "conformance_job"
    __queue__ = QueueOptions(max_attempts=2, retry=ConstantBackoff(timedelta(0)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), default="")


class Child(Base):
    """A row that refers to a job and keeps it from being pruned."""

    __tablename__ = "conformance_child"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("conformance_job.id"))


class Seat(QueueMixin, Base):
    """A task with a primary key of two columns."""

    __tablename__ = "conformance_seat"

    line: Mapped[str] = mapped_column(String(20), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class Slot(SlotMixin, Base):
    """A slot of the suite's limited queue."""

    __tablename__ = "conformance_slot"


class Visit(LimitMixin, Base):
    """A task of which two run at a time for each key."""

    __tablename__ = "conformance_visit"
    __queue__ = QueueOptions(slots=Slot, limit=2)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


JOBS, CHILDREN = (Base.metadata.tables[model.__tablename__] for model in (Job, Child))
