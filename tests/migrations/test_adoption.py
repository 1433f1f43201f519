"""A table with rows becomes a queue: no row becomes a task, and none is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, String, cast, create_engine, event, func, insert, inspect, make_url, select
from sqlalchemy.exc import NoSuchModuleError
from sqlalchemy.orm import sessionmaker

import sqlqueue
from sqlqueue import ArgumentError, QueueSession, Status, utcnow
from sqlqueue.alembic import MigrationOptions
from sqlqueue.diagnostics.drift import drift
from sqlqueue.model.declaration import queues
from sqlqueue.sql import NEVER
from tests.migrations.adopted import CUSTOMERS, After, Before, NewOrder, OldCustomer, OldOrder, rows
from tests.migrations.conftest import MakeProject
from tests.migrations.definitions import definitions
from tests.migrations.project import Project
from tests.support.engines import ENGINES, EngineCase
from tests.support.harness import Database

MANY = 4_000
OWN = [OldOrder.id, OldOrder.reference, OldOrder.status, OldOrder.amount, OldOrder.customer_id]
MakeApplication = Callable[..., Project]


@pytest.fixture
def application(sync_db: Database, project: MakeProject) -> MakeApplication:
    """`application(number, **options)`: tables in use, and a project whose models have just become queues."""

    def make(number: int, **options: Any) -> Project:
        made = project(Before.metadata, plugin=True, options=options, version_table="adoption_version")
        made.create()
        sync_db.insert(OldCustomer, CUSTOMERS)
        _fill(sync_db, number)
        return made.using(After.metadata)

    return make


def _fill(db: Database, number: int) -> None:
    """Insert rows from 1 to `number`, doubling them in the database."""
    there = min(number, 1_000)
    db.insert(OldOrder, rows(there))
    with db.engine.begin() as connection:
        while there < number:
            key = OldOrder.id + there
            copied = select(key, "r" + cast(key, String(20)), OldOrder.status, OldOrder.amount, OldOrder.customer_id)
            connection.execute(insert(OldOrder).from_select(OWN, copied.where(key <= number)))
            there *= 2


def _statuses(db: Database) -> dict[str, int]:
    with sessionmaker(db.engine, class_=QueueSession)() as session:
        by_status = select(NewOrder.queue_status, func.count()).group_by(NewOrder.queue_status)
        return dict(session.execute(by_status).all())


def _claimed(db: Database, *where: Any) -> list[int]:
    with sessionmaker(db.engine, class_=QueueSession).begin() as session:
        return [task.id for task in sqlqueue.claim_many(session, NewOrder, *where, limit=5)]


def _own(db: Database) -> list[Any]:
    with db.engine.connect() as connection:
        return list(connection.execute(select(*OWN).order_by(OldOrder.id)))


def _columns(db: Database) -> list[str]:
    """The rows are returned in no particular order."""
    with create_engine(db.url, poolclass=NullPool).connect() as connection:
        return sorted(map(str, inspect(connection).get_columns(NewOrder.__tablename__)))


@contextmanager
def _statements() -> Iterator[list[str]]:
    """Record all statements of all engines, as passed to the drivers."""
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield statements
    event.remove(Engine, "before_cursor_execute", note)


def _text(project: Project, message: str) -> str:
    (path,) = Path(project.directory, "versions").glob(f"*{message}.py")
    return path.read_text()


@pytest.mark.requires("changes_defaults")
@pytest.mark.timeout(300)
def test_existing_rows_are_completed_and_new_rows_are_available(
    sync_db: Database, application: MakeApplication
) -> None:
    adopting = application(MANY)
    before, own = definitions(sync_db, Before.metadata), _own(sync_db)
    adopting.migrate("adopt")
    adopting.check()
    with sync_db.engine.connect() as connection:
        assert drift(connection, queues(After.metadata)) == []
        assert connection.scalar(select(func.count(NewOrder.ended_at))) == 0
        assert connection.scalars(select(NewOrder.available_at).distinct()).all() == [NEVER]
        (adopted_at,) = connection.scalars(select(NewOrder.created_at).distinct())
        assert abs(adopted_at - connection.scalar(select(utcnow()))) < timedelta(days=2)
    assert _statuses(sync_db) == {"completed": MANY}
    with sync_db.begin() as session:
        assert session.prune(NewOrder, timedelta(0)) == 0
    assert _own(sync_db) == own
    assert _claimed(sync_db) == []
    sync_db.insert(OldOrder, [{**rows(1)[0], "id": MANY + 1, "reference": "new"}])
    assert _claimed(sync_db, NewOrder.order == "default") == [MANY + 1]
    adopting.downgrade("-1")
    assert definitions(sync_db, Before.metadata) == before
    assert _own(sync_db)[:-1] == own


@pytest.mark.requires("changes_defaults")
def test_the_mixin_can_be_removed_and_added_again(sync_db: Database, application: MakeApplication) -> None:
    queue = application(10)
    before, own = definitions(sync_db, Before.metadata), _own(sync_db)
    queue.migrate("adopt")
    queued = _columns(sync_db)
    plain = queue.using(Before.metadata)
    plain.migrate("retire")
    plain.check()
    assert definitions(sync_db, Before.metadata) == before
    assert "sqlqueue" not in _text(plain, "retire")
    plain.downgrade("-1")
    assert _columns(sync_db) == queued
    assert _statuses(sync_db) == {"completed": 10}
    assert _own(sync_db) == own
    with sync_db.engine.connect() as connection:
        assert drift(connection, queues(After.metadata)) == []
    sync_db.insert(OldOrder, [{**rows(1)[0], "id": 11, "reference": "new"}])
    assert _claimed(sync_db) == [11]


@pytest.mark.requires("changes_defaults")
@pytest.mark.parametrize(("becomes", "batch"), [(Status.CANCELLED, True), ("available", False)])
def test_rows_get_the_configured_status(
    sync_db: Database, application: MakeApplication, becomes: Status, batch: bool
) -> None:
    adopting = application(3, sqlqueue=MigrationOptions(existing_rows=becomes), render_as_batch=batch)
    adopting.migrate("adopt")
    adopting.check()
    assert _statuses(sync_db) == {becomes: 3}
    assert len(_claimed(sync_db)) == (3 if becomes == Status.AVAILABLE else 0)


@pytest.mark.requires("changes_defaults")
def test_indexes_are_made_without_being_in_the_way(sync_db: Database, application: MakeApplication) -> None:
    adopting = application(3, sqlqueue=MigrationOptions(concurrently=True, postgresql_storage=True))
    before = definitions(sync_db, Before.metadata)
    adopting.revise("adopt")
    with _statements() as upgrading:
        adopting.upgrade()
    adopting.check()
    assert _statuses(sync_db) == {"completed": 3}
    with _statements() as downgrading:
        adopting.downgrade("-1")
    concurrent = 5 if sync_db.case.concurrent_indexes else 0
    assert len([each for each in upgrading if "CREATE INDEX CONCURRENTLY" in each]) == concurrent
    assert len([each for each in downgrading if "DROP INDEX CONCURRENTLY" in each]) == concurrent
    assert any("SET (fillfactor = 80" in each for each in upgrading) is sync_db.case.storage_parameters
    assert any("RESET (fillfactor" in each for each in downgrading) is sync_db.case.storage_parameters
    assert definitions(sync_db, Before.metadata) == before


@pytest.mark.requires("changes_defaults")
@pytest.mark.parametrize("generated_here", [True, False], ids=["from", "to"])
def test_a_migration_runs_on_another_engine_than_it_was_generated_on(
    sync_db: Database, project: MakeProject, tmp_path: Path, generated_here: bool
) -> None:
    urls = [sync_db.url, make_url(f"sqlite:///{tmp_path / 'other.db'}")]
    source, target = urls if generated_here else reversed(urls)
    engines = {sync_db.engine.dialect.name, "sqlite"}
    options = {"sqlqueue": MigrationOptions(engines=engines, concurrently=True, postgresql_storage=True)}
    common = {"plugin": True, "options": options, "version_table": "adoption_version"}
    generated = project(Before.metadata, url=source, **common)
    generated.migrate("before")
    generated.using(After.metadata).revise("adopt")
    run = project(After.metadata, url=target, **common)
    run.upgrade("+1")
    engine = create_engine(target, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(insert(OldCustomer), CUSTOMERS)
        connection.execute(insert(OldOrder), rows(3))
    run.upgrade()
    run.check()
    with engine.connect() as connection:
        assert connection.scalars(select(NewOrder.queue_status)).all() == ["completed"] * 3
    run.downgrade("-1")
    with engine.connect() as connection:
        assert connection.scalars(select(OldOrder.reference).order_by(OldOrder.id)).all() == ["r1", "r2", "r3"]


@pytest.mark.parametrize("case", [case for case in ENGINES if case.adds_any_column], ids=lambda case: case.name)
def test_a_script_for_an_engine_without_a_server(tmp_path: Path, case: EngineCase) -> None:
    try:
        dialect = make_url(f"{case.sync_driver}://").get_dialect()
    except NoSuchModuleError as missing:
        pytest.skip(str(missing))
    common = {"url": f"sqlite:///{tmp_path / 'here.db'}", "plugin": True, "directory": tmp_path / "alembic"}
    before = Project(metadata=Before.metadata, **common)
    before.migrate("before")
    options = MigrationOptions(engines=[dialect.name])
    before.using(After.metadata).configured(sqlqueue=options).revise("adopt")
    there = before.on(f"{case.sync_driver}://")
    assert "'completed'" in there.upgrade(sql=True)
    dropped = there.downgrade("head:base", sql=True)
    defaults = sum(column.server_default is not None for column in NewOrder.__table__.columns)
    assert dropped.count("sys.default_constraints") == (defaults if case.names_defaults else 0)


@pytest.mark.parametrize("status", [Status.RUNNING, Status.SCHEDULED, "nonsense"])
def test_rows_cannot_become_running_or_retryable(status: Any) -> None:
    with pytest.raises(ArgumentError, match=r"existing_rows=.*available, completed, cancelled or discarded"):
        MigrationOptions(existing_rows=status)
