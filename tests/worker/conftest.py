from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Database
from tests.worker.crew import Meeting, Workers


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    db: Database = request.getfixturevalue("db" if "db" in request.fixturenames else "sync_db")
    staff = Workers(db)
    yield staff
    staff.end_test()


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    place = Meeting()
    yield place
    place.let_go()
