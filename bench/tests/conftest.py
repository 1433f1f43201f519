"""Databases of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from bench.models import Base
from tests.support.harness import Database


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database in a file that does not exist yet, for what is the same on every engine."""
    return f"sqlite:///{tmp_path}/bench.db"


@pytest.fixture
def engine(sync_db: Database) -> Iterator[Engine]:
    """The engine of the test, with the benchmark's tables."""
    Base.metadata.create_all(sync_db.engine)
    yield sync_db.engine
    Base.metadata.drop_all(sync_db.engine)
