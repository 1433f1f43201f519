"""The engine of the test, with the tables of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from bench.models import Base
from tests.support.harness import Database


@pytest.fixture
def engine(sync_db: Database) -> Iterator[Engine]:
    """The engine of the test, with the benchmark's tables."""
    Base.metadata.create_all(sync_db.engine)
    yield sync_db.engine
    Base.metadata.drop_all(sync_db.engine)
