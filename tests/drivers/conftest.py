from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine

from sqlqueue import QueueSession
from tests.models import Task


@pytest.fixture
def task() -> Task:
    """In the hands of a worker; what database it came from makes no difference."""
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


@pytest.fixture(autouse=True)
def sockets_are_closed() -> Iterator[None]:
    """python-oracledb leaves one open if it cannot connect: collected here, it warns in no test that comes later."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
