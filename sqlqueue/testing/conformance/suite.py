"""The base class of the conformance suite's tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import sessionmaker

from ...dialects import adapter_for
from ...dialects.base import Adapter
from ...model.declaration import QueueMixin
from ...session import QueueSession
from .models import JOBS, Base, Job

QueueSessions: TypeAlias = sessionmaker[QueueSession]
PAST = datetime(2020, 1, 1, tzinfo=UTC)


class Suite:
    """The base class of the tests: creates the tables and sessions of each test."""

    @pytest.fixture
    def sessions(self, conformance_engine: Engine) -> Iterator[QueueSessions]:
        """Yield a sessionmaker; the tables are created before the test and dropped after it."""
        Base.metadata.create_all(conformance_engine)
        yield sessionmaker(conformance_engine, class_=QueueSession)
        Base.metadata.drop_all(conformance_engine)

    @pytest.fixture
    def adapter(self, conformance_engine: Engine, sessions: QueueSessions) -> Adapter:
        """Return the adapter of the tested engine."""
        return adapter_for(conformance_engine.dialect)


def enqueue(sessions: QueueSessions, *rows: Mapping[str, Any], model: type[QueueMixin] = Job) -> None:
    """Enqueue ``rows`` in a separate transaction."""
    with sessions() as session:
        session.enqueue(model, rows)
        session.commit()


def numbered(count: int) -> list[Mapping[str, Any]]:
    """Return ``count`` rows whose names are their numbers, from 0."""
    return [{"name": str(number)} for number in range(count)]


def claim(sessions: QueueSessions, limit: int = 1) -> list[Job]:
    """Claim in a separate transaction."""
    with sessions(expire_on_commit=False) as session:
        jobs = list(session.claim_many(Job, limit=limit))
        session.commit()
        return jobs


def end_leases(sessions: QueueSessions) -> None:
    """Make the lease of every running job expire."""
    with sessions() as session:
        session.execute(update(JOBS).where(Job.status == "running").values(available_at=PAST))
        session.commit()


def stored(sessions: QueueSessions) -> list[Job]:
    """Return all jobs as stored, in the order of their keys."""
    with sessions() as session:
        return list(session.scalars(select(Job).order_by(Job.id)))
