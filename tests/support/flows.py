"""Queues whose tasks can belong to batches, in separate metadata: they add looks to workers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Identity, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import (
    ConstantBackoff,
    ExpiryMixin,
    FlowMixin,
    LatchMixin,
    QueueOptions,
    ResultMixin,
    StepMixin,
    UniqueMixin,
)
from tests.support import tables
from tests.support.harness import Database


class Flow(DeclarativeBase):
    pass


class Latch(LatchMixin, Flow):
    __tablename__ = "latch_of_flow"


class Page(FlowMixin, ResultMixin, StepMixin, Flow):
    __tablename__ = "flow_page"
    __queue__ = QueueOptions(retry=ConstantBackoff(timedelta(0)), max_attempts=2)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(50), default="")


class Note(FlowMixin, UniqueMixin, ExpiryMixin, Flow):
    __tablename__ = "flow_note"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(50), default="")


@pytest.fixture
def flow(db: Database) -> Iterator[Database]:
    yield from tables.kept(db, Flow.metadata)


@pytest.fixture
def sync_flow(sync_db: Database) -> Iterator[Database]:
    yield from tables.kept(sync_db, Flow.metadata)
