from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from tests.support.harness import Database
from tests.support.models import Base
from tests.support.workers import BlockingHandler, Workers


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    db: Database = request.getfixturevalue("db" if "db" in request.fixturenames else "sync_db")
    staff = Workers(db)
    yield staff
    staff.end_test()


@pytest.fixture
def blocking() -> Iterator[BlockingHandler]:
    handler = BlockingHandler()
    yield handler
    handler.release()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An SQLite database in a file, without tables."""
    made = create_engine(f"sqlite:///{tmp_path}/worker.db")
    yield made
    made.dispose()


@pytest.fixture
def file(engine: Engine) -> Engine:
    """An SQLite database in a file, with tables."""
    Base.metadata.create_all(engine)
    return engine
