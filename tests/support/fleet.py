"""Queues whose workers are registered; separate from the other models, so that only these tests pay the cost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Identity, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import JobMixin, QueueMixin, WorkerMixin
from tests.support.harness import Database


class Fleet(DeclarativeBase):
    pass


class Errand(QueueMixin, Fleet):
    __tablename__ = "errand_of_fleet"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(50), default="")


class Call(JobMixin, Fleet):
    __tablename__ = "fleet_call"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class FleetWorker(WorkerMixin, Fleet):
    __tablename__ = "fleet_worker"


def tables_in(db: Database) -> Iterator[Database]:
    """Create the tables for one test."""
    Fleet.metadata.drop_all(db.engine)
    Fleet.metadata.create_all(db.engine)
    yield db
    Fleet.metadata.drop_all(db.engine)


@pytest.fixture
def fleet(db: Database) -> Iterator[Database]:
    yield from tables_in(db)


@pytest.fixture
def sync_fleet(sync_db: Database) -> Iterator[Database]:
    yield from tables_in(sync_db)
