"""How the tests use a database given by URL."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL, NullPool, create_engine, inspect

from tests.support.engines import ENGINES
from tests.support.given import MARK, Refused, move_in, move_out
from tests.support.models import Base

(CASE,) = (case for case in ENGINES if case.name == "sqlite")


@pytest.fixture
def url(tmp_path: Path) -> URL:
    return URL.create("sqlite", database=str(tmp_path / "given.db"))


def tables(url: URL) -> set[str]:
    return set(inspect(create_engine(url, poolclass=NullPool)).get_table_names())


def test_an_empty_database_is_used_and_left_empty(url: URL) -> None:
    move_in(CASE, url)
    Base.metadata.create_all(create_engine(url, poolclass=NullPool))
    move_in(CASE, url)  # the previous run was killed
    assert tables(url) > {MARK.name}
    move_out(url)
    assert tables(url) == set()


def test_foreign_tables_are_left_alone(url: URL) -> None:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE task (id INTEGER)")
    with pytest.raises(Refused, match=r"it has tables \(task\)"):
        move_in(CASE, url)
    move_out(url)
    assert tables(url) == {"task"}
