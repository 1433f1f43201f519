from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from sqlqueue import QueueSession
from tests.support.models import Task


@pytest.fixture
def task() -> Task:
    """A task claimed by a worker; its database makes no difference."""
    engine = create_engine("sqlite://")
    Task.__table__.create(engine)  # type: ignore[attr-defined]
    with QueueSession(engine, expire_on_commit=False) as session:
        session.add(Task())
        session.flush()
        claimed = session.claim(Task)
        assert claimed is not None
        session.commit()
    engine.dispose()
    return claimed
