"""`check` reports what is wrong with the tables of the history and of the workers, and a worker does not start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table
from sqlalchemy.schema import DropIndex

from sqlqueue import Finding, SchemaMismatchError, Worker, check, verify_schema
from tests.check.checking import changed, execute
from tests.support import tables
from tests.support.fleet import Errand, FleetWorker
from tests.support.harness import Database
from tests.support.history import Parcel, Past

INDEX = next(index for index in Past.__table__.indexes if index.name == "ix_past_task")  # type: ignore[attr-defined]


@pytest.fixture
def sync_archive(sync_db: Database) -> Iterator[Database]:
    yield from tables.changeable(sync_db, Past.metadata)


@pytest.fixture
def sync_fleet(sync_db: Database) -> Iterator[Database]:
    yield from tables.changeable(sync_db, FleetWorker.metadata)


def findings(db: Database, target: Any) -> list[Finding]:
    other = db.variant(isolation_level="SERIALIZABLE" if db.case.one_writer else "READ COMMITTED")
    with other.session_engine.connect() as connection:
        found = list(check(connection, target))
    ignored = {"unserved-queue", "inexact-primary-key", "plan-not-asked", "driver-timeouts", "server-timeouts"}
    return [finding for finding in found if finding.code not in ignored]


def told(found: list[Finding]) -> list[tuple[str, str, str | None]]:
    return [(finding.severity, finding.code, finding.table) for finding in found]


def refused(db: Database, target: Any) -> list[str]:
    with db.session_engine.connect() as connection, pytest.raises(SchemaMismatchError, match="alembic") as mismatch:
        verify_schema(connection, target)
    return list(mismatch.value.differences)


def test_healthy_tables(sync_archive: Database, sync_fleet: Database) -> None:
    assert findings(sync_archive, Parcel) == findings(sync_fleet, Errand) == []


def test_tables_that_are_missing(sync_archive: Database, sync_fleet: Database) -> None:
    for db, model, queue in ((sync_archive, Past, Parcel), (sync_fleet, FleetWorker, Errand)):
        model.__table__.drop(db.engine)
        assert told(findings(db, queue)) == [("error", "missing-table", model.__tablename__)]
        (difference,) = refused(db, queue)
        assert f"there is no table {model.__tablename__}" in difference


def test_a_column_that_is_missing(sync_archive: Database, sync_fleet: Database) -> None:
    for db, model, name, queue in (
        (sync_archive, Past, "traceback", Parcel),
        (sync_fleet, FleetWorker, "memory", Errand),
    ):
        execute(db, f"ALTER TABLE {model.__tablename__} DROP COLUMN {name}")
        (finding,) = findings(db, queue)
        assert (finding.severity, finding.code) == ("error", "missing-column")
        assert finding.message == f"{model.__tablename__} has no column {name}"
        assert refused(db, queue) == [finding.message]


def test_an_index_that_is_missing_or_other(sync_archive: Database) -> None:
    execute(sync_archive, DropIndex(INDEX))
    assert told(findings(sync_archive, Parcel)) == [("warning", "missing-index", "past")]
    execute(sync_archive, "CREATE INDEX ix_past_task ON past (task)")
    (finding,) = findings(sync_archive, Parcel)
    assert (finding.severity, finding.code) == ("warning", "wrong-index")
    assert "is on (task), not on (queue, task, id)" in finding.message
    with sync_archive.session_engine.connect() as connection:
        verify_schema(connection, Parcel)  # attempts are recorded without it


OTHERWISE: dict[str, tuple[Any, Callable[[Table], None], str]] = {
    "another type": (Past, changed("attempt", type=String(20)), "wrong-type"),
    "too short": (Past, changed("task", type=String(10)), "wrong-type"),
    "not nullable": (Past, changed("error", nullable=False), "not-nullable"),
    "another type, of workers": (FleetWorker, changed("name", type=Integer()), "wrong-type"),
    "another type of time": (FleetWorker, changed("seen_at", type=String(40)), "wrong-type"),
    "unknown": (Past, lambda table: table.append_column(Column("extra", Integer, nullable=False)), "unknown-column"),
    "not nullable, of workers": (FleetWorker, changed("command", nullable=False), "not-nullable"),
}


def test_columns_that_are_otherwise(sync_archive: Database, sync_fleet: Database) -> None:
    for name, (model, change, code) in OTHERWISE.items():
        copy = model.__table__.to_metadata(MetaData())
        change(copy)
        model.__table__.drop(sync_archive.engine)
        copy.create(sync_archive.engine)
        found = told(findings(sync_archive, Parcel if model is Past else Errand))
        assert found == [("error", code, model.__tablename__)], name


def test_a_worker_does_not_start_without_the_history(sync_archive: Database) -> None:
    Past.__table__.drop(sync_archive.engine)  # type: ignore[attr-defined]
    worker = Worker(sync_archive.variant(pool_size=5).sessions(), notify=False)
    worker.handler(Parcel)(lambda parcel: None)
    with pytest.raises(SchemaMismatchError, match="there is no table past, which keeps the history of attempts"):
        worker.run()
