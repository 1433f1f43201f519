"""Queues whose workers are registered; separate from the other models, so that only these tests pay the cost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Identity, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import JobMixin, QueueMixin, WorkerMixin
from tests.support import tables
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


@pytest.fixture
def fleet(db: Database) -> Iterator[Database]:
    yield from tables.kept(db, Fleet.metadata)


@pytest.fixture
def sync_fleet(sync_db: Database) -> Iterator[Database]:
    yield from tables.kept(sync_db, Fleet.metadata)
