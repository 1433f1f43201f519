from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Database
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
