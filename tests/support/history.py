"""Queues with a history, in separate metadata: a history adds statements to all queues of its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, String, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import (
    ConstantBackoff,
    HistoryMixin,
    HistoryOptions,
    JobMixin,
    LimitMixin,
    PastAttempt,
    QueueMixin,
    QueueOptions,
    RecurringMixin,
    SlotMixin,
    StageMixin,
    utcnow,
)
from sqlqueue.outbox import OutboxMixin
from tests.support import tables
from tests.support.harness import Database

HOUR = timedelta(hours=1)
AT_ONCE = ConstantBackoff(timedelta(0), jitter=0)


class Base(DeclarativeBase):
    pass


class Past(HistoryMixin, Base):
    __tablename__ = "past"
    __history__ = HistoryOptions(retention=timedelta(days=1), traceback=2_000)


class Parcel(QueueMixin, Base):
    __tablename__ = "past_parcel"
    __queue__ = QueueOptions(retry=AT_ONCE, max_attempts=3)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Flare(QueueMixin, Base):
    """Its rows are deleted when they are completed."""

    __tablename__ = "past_flare"
    __queue__ = QueueOptions(on_complete="delete", retry=AT_ONCE)

    region: Mapped[str] = mapped_column(String(20), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Rota(RecurringMixin, Base):
    __tablename__ = "past_rota"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Reel(StageMixin, Base):
    __tablename__ = "past_reel"
    __queue__ = QueueOptions(stages=("cut", "mix"))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Berth(SlotMixin, Base):
    __tablename__ = "past_berth"


class Boat(LimitMixin, Base):
    __tablename__ = "past_boat"
    __queue__ = QueueOptions(slots=Berth, limit=2, retry=AT_ONCE)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Cable(OutboxMixin, Base):
    __tablename__ = "past_cable"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Errand(JobMixin, Base):
    __tablename__ = "past_errand"
    __queue__ = QueueOptions(retry=AT_ONCE)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Crate(QueueMixin, Base):
    __tablename__ = "past_crate"
    __queue__ = QueueOptions(retry=AT_ONCE)
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "plain"}  # noqa: RUF012 - as SQLAlchemy has it

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))


class FragileCrate(Crate):
    """A subclass that shares the table of crates."""

    __mapper_args__ = {"polymorphic_identity": "fragile"}  # noqa: RUF012


def outcomes(attempts: list[PastAttempt]) -> list[tuple[int, str, str | None]]:
    return [(each.attempt, str(each.outcome), each.error) for each in attempts]


def expire(db: Database, model: Any) -> None:
    db.execute(update(model).values(available_at=utcnow(-HOUR)))


@pytest.fixture
def archive(db: Database) -> Iterator[Database]:
    yield from tables.kept(db, Base.metadata)


@pytest.fixture
def sync_archive(sync_db: Database) -> Iterator[Database]:
    yield from tables.kept(sync_db, Base.metadata)
