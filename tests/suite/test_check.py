"""What is wrong with a live database is found, by its name and as bad as it is; and finding it changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    NullPool,
    String,
    Table,
    create_engine,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateIndex, DropIndex
from typer.testing import CliRunner

from sqlqueue import (
    Finding,
    QueueMixin,
    QueueSession,
    SchemaMismatchError,
    UnsupportedDialectError,
    check,
    verify_schema,
)
from sqlqueue.cli import application
from sqlqueue.dialects import adapter_for
from sqlqueue.model.mixins import queues
from sqlqueue.sql.clock import NEVER
from sqlqueue.sql.selection import picks
from tests.support.check_models import Base, OwnBase, Post, Slip
from tests.support.engines import PASSWORD
from tests.support.harness import Database
from tests.support.models import Base as Models
from tests.support.rows import contenders, without_waiting

TABLE: Table = Post.__table__  # type: ignore[assignment]
LARGE = 10_000
TIMEOUTS = ("driver-timeouts", "server-timeouts")


@pytest.fixture
def healthy(sync_db: Database) -> Iterator[Database]:
    _drop(sync_db)
    Base.metadata.create_all(sync_db.engine)
    yield sync_db.variant(isolation_level="SERIALIZABLE" if sync_db.case.one_writer else "READ COMMITTED")
    _drop(sync_db)


def _drop(db: Database) -> None:
    for metadata in (Base.metadata, OwnBase.metadata):
        metadata.drop_all(db.engine)


def found(db: Database, target: Any = Base) -> set[tuple[str, str]]:
    return {(finding.severity, finding.code) for finding in findings(db, target)}


def findings(db: Database, target: Any = Base) -> list[Finding]:
    with db.session_engine.connect() as connection:
        every = looked(connection, target)
    return [finding for finding in every if db.case.explains or finding.code != "plan-not-asked"]


def looked(connection: Connection, target: Any = Base) -> list[Finding]:
    """All but the limits of drivers and servers, which have the defaults here."""
    return [finding for finding in check(connection, target) if finding.code not in TIMEOUTS]


def execute(db: Database, *statements: Any) -> None:
    db.engine.dispose()  # a connection of SQLite's may not have heard of an index that another one has dropped
    with db.engine.begin() as connection:
        for statement in statements:
            if isinstance(statement, str):
                connection.exec_driver_sql(statement)
            else:
                connection.execute(statement)


def test_a_healthy_database(healthy: Database) -> None:
    assert findings(healthy) == []
    with healthy.session_engine.connect() as connection:
        verify_schema(connection, Base)


@pytest.mark.parametrize("model", [spec.entity for spec in queues(Models.metadata)], ids=lambda model: model.__name__)
def test_every_kind_of_queue_is_healthy(sync_db: Database, model: Any) -> None:
    level = "SERIALIZABLE" if sync_db.case.one_writer else "READ COMMITTED"
    found = findings(sync_db.variant(isolation_level=level), model)
    assert [finding for finding in found if finding.code != "inexact-primary-key"] == []


def test_a_missing_table_is_reported(healthy: Database) -> None:
    Base.metadata.drop_all(healthy.engine)
    (finding,) = findings(healthy)
    assert (finding.severity, finding.code) == ("error", "missing-table")
    assert (finding.model, finding.table) == (Post, "checked_post")
    assert "alembic" in finding.fix


# -- the schema ----------------------------------------------------------------------------------------------------

CLAIM = next(index for index in TABLE.indexes if index.name == "ix_checked_post_claim")
ALTERED: dict[str, tuple[tuple[Any, ...], str]] = {
    "no column of the queue": (("ALTER TABLE checked_post DROP COLUMN error",), "missing-column"),
    "no column of the model": (("ALTER TABLE checked_post DROP COLUMN note",), "missing-column"),
    "no index": ((DropIndex(CLAIM),), "missing-index"),
    "other order": (
        (DropIndex(CLAIM), "CREATE INDEX ix_checked_post_claim ON checked_post (status, id, priority)"),
        "wrong-index",
    ),
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_schema_with_missing_parts_is_reported(healthy: Database, name: str) -> None:
    statements, code = ALTERED[name]
    execute(healthy, *statements)
    assert found(healthy) == {("error", code)}
    with healthy.session_engine.connect() as connection:
        with pytest.raises(SchemaMismatchError, match=r"checked_post.*alembic") as mismatch:
            verify_schema(connection, Base)
        assert not connection.in_transaction()
    assert len(mismatch.value.differences) == 1


def _changed(name: str, **attributes: Any) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        for attribute, value in attributes.items():
            setattr(table.c[name], attribute, value)

    return change


OTHERWISE: dict[str, tuple[Callable[[Table], None], str]] = {
    "not nullable": (_changed("finished_at", nullable=False), "not-nullable"),
    "no default": (_changed("attempt", server_default=None), "missing-default"),
    "other type": (_changed("priority", type=String(20), server_default=None, nullable=True), "wrong-type"),
    "too short": (_changed("claimed_by", type=String(10)), "wrong-type"),
    "nullable": (_changed("priority", nullable=True), "nullable"),
    "unknown": (lambda table: table.append_column(Column("extra", Integer, nullable=False)), "unknown-column"),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_column_that_differs_is_reported(healthy: Database, name: str) -> None:
    change, code = OTHERWISE[name]
    _make_otherwise(healthy, change)
    assert ("error", code) in found(healthy)
    with healthy.session_engine.connect() as connection, pytest.raises(SchemaMismatchError):
        verify_schema(connection, Base)


def test_other_columns_are_ignored(healthy: Database) -> None:
    execute(
        healthy,
        "ALTER TABLE checked_post ADD theirs INTEGER",
        "ALTER TABLE checked_post ADD more INTEGER DEFAULT 0 NOT NULL",
    )
    assert findings(healthy) == []


@pytest.mark.requires("naive_moments")
def test_moments_without_a_zone_or_fractions(healthy: Database) -> None:
    _make_otherwise(healthy, _changed("claimed_at", type=DateTime()))
    assert found(healthy) == {(healthy.case.naive_moments, "wrong-type")}


@pytest.mark.requires("loose_collation")
def test_keys_that_are_not_compared_exactly_are_reported(healthy: Database) -> None:
    _make_otherwise(healthy, _changed("topic", type=String(128, collation=healthy.case.loose_collation)))
    (finding,) = findings(healthy)
    assert (finding.severity, finding.code) == ("warning", "inexact-key")
    assert f"compares topic by {healthy.case.loose_collation}" in finding.message
    with healthy.session_engine.connect() as connection:
        verify_schema(connection, Base)


@pytest.mark.requires("loose_collation")
def test_primary_keys_that_are_not_compared_exactly_are_reported(sync_db: Database) -> None:
    exact = adapter_for(sync_db.engine.dialect).types.key(80)
    metadata = MetaData()
    loose, strict = (_keyed(metadata, collation) for collation in (sync_db.case.loose_collation, exact.collation))
    metadata.create_all(sync_db.engine)
    try:
        (finding,) = findings(sync_db.variant(isolation_level="READ COMMITTED"), loose)
        assert (finding.severity, finding.code) == ("note", "inexact-primary-key")
        assert f"compares id by {sync_db.case.loose_collation}" in finding.message
        assert findings(sync_db.variant(isolation_level="READ COMMITTED"), strict) == []
    finally:
        metadata.drop_all(sync_db.engine)


def _keyed(in_metadata: MetaData, collation: str) -> Any:
    class Own(DeclarativeBase):
        metadata = in_metadata

    class Keyed(QueueMixin, Own):
        __tablename__ = f"keyed_{collation}"

        id: Mapped[str] = mapped_column(String(80, collation=collation), primary_key=True)

    return Keyed


def _make_otherwise(db: Database, change: Callable[[Table], None]) -> None:
    Base.metadata.drop_all(db.engine)
    copy = TABLE.to_metadata(MetaData())
    change(copy)
    copy.create(db.engine)


# -- the server and its sessions -----------------------------------------------------------------------------------


@pytest.mark.requires("read_only_sql")
def test_a_session_that_may_only_read(healthy: Database) -> None:
    reader = healthy.variant(on_connect=healthy.case.read_only_sql)
    assert ("error", "read-only") in found(reader)


@pytest.mark.requires("locks_rows")
def test_isolation_levels(healthy: Database) -> None:
    assert found(healthy.variant(isolation_level="AUTOCOMMIT")) == {("error", "isolation-level")}
    assert found(healthy.variant(isolation_level="SERIALIZABLE")) == {("warning", "isolation-level")}
    default = found(healthy.variant())  # what the server has may not be what the application's engine asks for
    assert default <= {("note", "isolation-level")}


@pytest.mark.requires("one_writer")
@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_every_isolation_level_suits_one_writer(healthy: Database, level: str) -> None:
    assert found(healthy.variant(isolation_level=level)) == set()


@pytest.mark.requires("other_storage")
def test_a_table_without_transactions(healthy: Database) -> None:
    execute(healthy, f"ALTER TABLE checked_post ENGINE = {healthy.case.other_storage}")
    (finding,) = findings(healthy)
    assert (finding.severity, finding.code) == ("error", "storage-engine")
    assert finding.model is Post
    execute(healthy, finding.fix)
    assert findings(healthy) == []


@pytest.mark.requires("distribute_sql")
def test_a_table_that_is_divided_among_servers(healthy: Database) -> None:
    divide, undo = healthy.case.distribute_sql
    execute(healthy, divide.format(table="checked_post"))
    try:
        (finding,) = findings(healthy)
    finally:
        execute(healthy, undo)
    assert (finding.severity, finding.code, finding.model) == ("error", "distributed-table", Post)


@pytest.mark.filterwarnings("ignore:Unknown schema content")  # SQLAlchemy, of what MariaDB calls IGNORED
@pytest.mark.requires("hide_index")
def test_an_index_that_is_switched_off(healthy: Database) -> None:
    execute(healthy, healthy.case.hide_index.format(table="checked_post", index="ix_checked_post_claim"))
    (finding,) = findings(healthy)
    assert (finding.severity, finding.code) == ("error", "wrong-index")
    assert "ix_checked_post_claim of checked_post is not usable" in finding.message
    execute(healthy, finding.fix)
    assert findings(healthy) == []


def test_a_server_that_is_too_old(healthy: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_engine(healthy.url)
    with engine.connect() as connection:
        monkeypatch.setattr(engine.dialect, "server_version_info", (3, 1))
        (finding,) = check(connection, Base)
        assert (finding.severity, finding.code) == ("error", "unsupported-version")
        with pytest.raises(UnsupportedDialectError):
            verify_schema(connection, Base)
    engine.dispose()


@pytest.fixture
def unprepared(healthy: Database) -> Iterator[Engine]:
    """Another database, which has the engine's own defaults, and not what its users are told to set."""
    name, (create, drop) = "sqlqueue_unprepared", healthy.case.another_database
    try:
        for statement in create:
            execute_alone(healthy, statement.format(name=name))
    except DBAPIError as error:
        pytest.skip(f"no other database can be made: {error.orig}")
    engine = create_engine(healthy.url.set(database=name), poolclass=NullPool)
    try:
        Base.metadata.create_all(engine)
        yield engine
    finally:
        for statement in drop:
            execute_alone(healthy, statement.format(name=name))


@pytest.mark.requires("another_database")
def test_a_database_where_readers_wait_for_writers(unprepared: Engine) -> None:
    with unprepared.connect() as connection:
        errors = [finding for finding in check(connection, Base) if finding.severity == "error"]
    assert len(errors) == 1


@pytest.mark.requires("another_database")
def test_claims_there_do_not_wait_for_each_other(unprepared: Engine) -> None:
    """Nor do they get the same task: they lock what they read."""
    with unprepared.begin() as connection:
        connection.execute(insert(TABLE), [{"subject": subject} for subject in ("a", "b", "c")])
    with QueueSession(unprepared) as first, QueueSession(unprepared) as second:
        assert {session.claim(Post).subject for session in (first, second)} == {"a", "b"}
        first.rollback()
        assert second.claim(Post).subject == "a"


def execute_alone(db: Database, statement: str) -> None:
    """In no transaction, which some statements mind."""
    engine = create_engine(db.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)


# -- silence -------------------------------------------------------------------------------------------------------


def advised(db: Database) -> dict[str, str]:
    """The fixes, by the codes of the findings."""
    with db.session_engine.connect() as connection:
        return {finding.code: finding.fix for finding in check(connection, Base) if finding.code in TIMEOUTS}


def with_advice(db: Database, advice: str) -> Database:
    """The same database, as the fix says: by options of the engine, or by a statement."""
    _, is_option, options = advice.rpartition("create_engine(..., ")
    if is_option:
        return db.variant(**eval(f"dict({options[: options.rindex(')')]})"))
    return db.variant(on_connect=advice.partition(",")[0].replace("ALTER ROLE CURRENT_USER ", ""))


@pytest.mark.requires("container")
@pytest.mark.parametrize("code", TIMEOUTS)
def test_limits_that_are_not_set(healthy: Database, code: str) -> None:
    before = advised(healthy)
    assert set(before) == set(TIMEOUTS)
    assert set(advised(with_advice(healthy, before[code]))) == {*TIMEOUTS} - {code}


@pytest.mark.requires("one_writer")
def test_no_limits_without_a_network(healthy: Database) -> None:
    assert advised(healthy) == {}


# -- rights --------------------------------------------------------------------------------------------------------

READER = "checked_reader"


@pytest.fixture
def reader(healthy: Database) -> Iterator[Callable[..., list[Finding]]]:
    """What an account finds that has these rights, and no others."""
    case = healthy.case
    administrator = create_engine(healthy.url.set(username=case.administrator), poolclass=NullPool)
    url = healthy.url.set(username=READER, password=PASSWORD)
    engine = create_engine(url, isolation_level="READ COMMITTED", poolclass=NullPool)

    def look(*grants: str, target: Any = Base) -> list[Finding]:
        with administrator.begin() as connection:
            # it must be able to see the database at all
            for grant in ("SELECT ON account", *grants):
                connection.exec_driver_sql(f"GRANT {grant} TO {READER}")
        with engine.connect() as connection:
            return looked(connection, target)

    with administrator.begin() as connection:
        connection.exec_driver_sql(case.account_sql.format(name=READER, password=PASSWORD))
    yield look
    _drop(healthy)
    with administrator.begin() as connection:
        connection.exec_driver_sql(f"REVOKE SELECT ON account FROM {READER}")
        connection.exec_driver_sql(f"DROP USER {READER}")


@pytest.mark.requires("account_sql")
def test_missing_privileges_are_reported(reader: Any) -> None:
    error, *_ = reader()
    assert (error.severity, error.code, error.model) == ("error", "missing-privilege", Post)
    error, warning = reader("SELECT ON checked_post")
    assert (error.severity, error.code) == ("error", "missing-privilege")
    assert "INSERT, UPDATE on checked_post" in error.message
    assert (warning.severity, warning.code) == ("warning", "missing-privilege")
    assert "DELETE" in warning.message
    (error,) = reader("INSERT, DELETE, UPDATE (status, error) ON checked_post")
    assert "lacks UPDATE on" in error.message


@pytest.mark.requires("account_sql")
def test_privileges_on_single_columns_are_enough(reader: Any) -> None:
    columns = ", ".join(column.name for column in Post.__queue_spec__.columns.values())
    assert reader(f"SELECT, INSERT, DELETE, UPDATE ({columns}) ON checked_post") == []


@pytest.mark.requires("account_sql")
def test_rows_that_are_to_go_need_the_right_to_delete(healthy: Database, reader: Any) -> None:
    OwnBase.metadata.create_all(healthy.engine)
    lacking = [
        each for each in reader("SELECT, INSERT, UPDATE ON checked_slip", target=Slip) if each.severity == "error"
    ]
    assert ["DELETE" in each.message for each in lacking] == [True]


@pytest.mark.requires("sequences")
def test_the_sequence_of_a_key(healthy: Database, reader: Any) -> None:
    OwnBase.metadata.create_all(healthy.engine)
    (error,) = reader("SELECT, INSERT, UPDATE, DELETE ON checked_slip", target=Slip)
    assert "USAGE on the sequence of id" in error.message
    assert reader("USAGE ON SEQUENCE checked_slip_id_seq", target=Slip) == []


# -- plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.requires("misleading_index")
def test_an_index_with_the_right_columns_in_the_wrong_form(healthy: Database) -> None:
    where = " WHERE status = 'available'" if healthy.case.partial_indexes else ""
    execute(
        healthy,
        DropIndex(CLAIM),
        f"CREATE INDEX ix_checked_post_claim ON checked_post ({healthy.case.misleading_index}){where}",
    )
    with healthy.session_engine.connect() as connection:
        verify_schema(connection, Base)
    assert found(healthy) == {("error" if healthy.case.foresees else "note", "index-not-used")}
    if not healthy.case.foresees:
        healthy.insert(Post, [{} for _ in range(LARGE)])
        assert found(healthy) == {("error", "index-not-used")}


@pytest.mark.requires("analyze")
def test_a_planner_that_reads_a_small_table_as_a_whole(healthy: Database) -> None:
    healthy.insert(Post, [{} for _ in range(3)])
    execute(healthy, healthy.case.analyze.format(table="checked_post"))
    with healthy.session_engine.connect() as connection, connection.begin():
        before = _plan(connection)
        assert not before.indexes
        assert looked(connection) == []
        assert _plan(connection) == before, "settings of the transaction were changed"


@pytest.mark.requires("without_indexes")
def test_a_planner_that_reads_a_large_table_as_a_whole(healthy: Database) -> None:
    healthy.insert(Post, [{} for _ in range(LARGE)])
    execute(healthy, healthy.case.analyze.format(table="checked_post"))
    assert found(healthy) == set()
    misled = healthy.variant(on_connect=healthy.case.without_indexes)
    assert found(misled) == {("error", "index-not-used")}


def _plan(connection: Connection) -> Any:
    adapter = adapter_for(connection.dialect)
    ready, _ = picks(Post.__queue_spec__, [], ())
    return adapter.plans.of(connection, adapter.locking.picking(ready(1), Post.__queue_spec__["status"]))


# -- rows from before ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retention", "code"), [(None, None), (timedelta(days=7), "adopted-rows")])
def test_rows_from_before_the_table_became_a_queue(
    healthy: Database, monkeypatch: pytest.MonkeyPatch, retention: timedelta | None, code: str | None
) -> None:
    healthy.insert(Post, [{"status": "completed", "available_at": NEVER}])
    healthy.insert(Post, [{} for _ in range(30)])
    spec = Post.__queue_spec__
    monkeypatch.setattr(Post, "__queue_spec__", replace(spec, options=replace(spec.options, retention=retention)))
    assert found(healthy) == ({("note", code)} if code else set())


# -- it only looks -------------------------------------------------------------------------------------------------


def test_nothing_is_changed_and_no_transaction_left_open(healthy: Database) -> None:
    healthy.insert(Post, [{"subject": "a"}, {"subject": "b"}])
    before = _all_there_is(healthy)
    with healthy.session_engine.connect() as connection:
        check(connection, Base)
        assert not connection.in_transaction()
        verify_schema(connection, Base)
        assert not connection.in_transaction()
    assert _all_there_is(healthy) == before


def _all_there_is(db: Database) -> tuple[Any, ...]:
    with db.engine.connect() as connection:
        worded, inspector = db.case.definition_sql, inspect(connection)
        return (
            connection.execute(select(TABLE).order_by(TABLE.c.id)).all(),
            worded and connection.exec_driver_sql(worded.format(table="checked_post")).all(),
            sorted(str(index["name"]) for index in inspector.get_indexes(TABLE.name)),
            inspector.get_table_names(),
        )


def test_a_transaction_that_is_open_stays_open(healthy: Database) -> None:
    with healthy.session_engine.connect() as connection:
        connection.execute(insert(TABLE), {"subject": "a"})
        check(connection, Base)
        assert connection.in_transaction()
        assert connection.scalar(select(func.count()).select_from(TABLE)) == 1
        connection.rollback()
        assert connection.scalar(select(func.count()).select_from(TABLE)) == 0


@pytest.mark.requires("locks_rows")
def test_no_row_is_locked(healthy: Database) -> None:
    healthy.insert(Post, [{} for _ in range(3)])
    looking, claimer = contenders(healthy)
    looking.run(lambda session: check(session.connection(), Base))
    assert len(without_waiting(looking, lambda: claimer.claim_many(Post, limit=3))) == 3
    looking.rollback()
    claimer.rollback()


def test_asked_by_a_session_of_either_kind(db: Database) -> None:
    Base.metadata.drop_all(db.engine)
    actor = db.session()
    (*_, finding) = actor.run(lambda session: check(session.connection(), Base))
    assert finding.code == "missing-table"


# -- the command ---------------------------------------------------------------------------------------------------


def command(db: Database, *arguments: str, driver: str | None = None) -> Any:
    url = db.url.set(drivername=driver or db.case.sync_driver).render_as_string(hide_password=False)
    return CliRunner().invoke(application(), ["check", "--url", url, *arguments, "tests.support.check_models:Base"])


def test_the_command(healthy: Database) -> None:
    well = command(healthy)
    assert well.exit_code == 0, well.output
    assert "1 queue: " in well.output
    execute(healthy, DropIndex(CLAIM))
    told = command(healthy)
    assert told.exit_code == 1, told.output
    assert "1 error" in told.output
    assert PASSWORD not in told.output
    execute(healthy, CreateIndex(CLAIM))


@pytest.mark.parametrize("driver", ["sync_driver", "async_driver"])
def test_the_command_for_programs(healthy: Database, driver: str) -> None:
    execute(healthy, DropIndex(CLAIM))
    told = command(healthy, "--json", driver=getattr(healthy.case, driver))
    report = json.loads(told.stdout)
    assert (told.exit_code, report["ok"], report["queues"]) == (1, False, [f"{Post.__module__}.Post"])
    assert set(report) == {"engine", "version", "queues", "ok", "findings"}
    (error,) = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert set(error) == {"severity", "code", "model", "table", "message", "fix"}
    assert (error["code"], error["model"], error["table"]) == (
        "missing-index",
        f"{Post.__module__}.Post",
        "checked_post",
    )


@pytest.mark.requires("account_sql")
def test_the_command_with_an_account_that_is_refused(healthy: Database) -> None:
    url = healthy.url.set(username="nobody_of_that_name", password="wrong")
    with pytest.raises(DBAPIError), create_engine(url).connect():
        pass
    told = CliRunner().invoke(
        application(), ["check", "--url", url.render_as_string(hide_password=False), "tests.support.check_models:Base"]
    )
    assert told.exit_code == 2
    assert "cannot connect: " in told.stderr
