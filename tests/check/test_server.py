"""`check` reports settings of servers and sessions that queues cannot work with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, NullPool, create_engine, insert
from sqlalchemy.exc import DBAPIError

from sqlqueue import QueueSession, UnsupportedDialectError, check, verify_schema
from tests.check.checking import TABLE, TIMEOUTS, execute, findings, found
from tests.support.check_models import Base, Post
from tests.support.harness import Database


@pytest.mark.requires("read_only_sql")
def test_a_session_that_may_only_read(healthy: Database) -> None:
    reader = healthy.variant(on_connect=healthy.case.read_only_sql)
    assert ("error", "read-only") in found(reader)


@pytest.mark.requires("locks_rows")
def test_isolation_levels(healthy: Database) -> None:
    assert found(healthy.variant(isolation_level="AUTOCOMMIT")) == {("error", "isolation-level")}
    assert found(healthy.variant(isolation_level="SERIALIZABLE")) == {("warning", "isolation-level")}
    default = found(healthy.variant())  # the server's default may differ from the setting of the application's engine
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


@pytest.mark.filterwarnings("ignore:Unknown schema content")  # SQLAlchemy's warning about MariaDB's IGNORED indexes
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
    """A database with the engine's defaults, without the settings that the documentation requires."""
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
    """They do not get the same task either, because they lock the rows that they read."""
    with unprepared.begin() as connection:
        connection.execute(insert(TABLE), [{"subject": subject} for subject in ("a", "b", "c")])
    with QueueSession(unprepared) as first, QueueSession(unprepared) as second:
        assert {session.claim(Post).subject for session in (first, second)} == {"a", "b"}
        first.rollback()
        assert second.claim(Post).subject == "a"


def execute_alone(db: Database, statement: str) -> None:
    """Execute a statement outside a transaction, as some statements require."""
    engine = create_engine(db.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)


def advised(db: Database) -> dict[str, str]:
    """Return the fixes by the codes of the findings."""
    with db.session_engine.connect() as connection:
        return {finding.code: finding.fix for finding in check(connection, Base) if finding.code in TIMEOUTS}


def with_advice(db: Database, advice: str) -> Database:
    """Return the database with the fix applied: by options of the engine, or by a statement."""
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


def test_a_named_database_in_memory_has_no_file() -> None:
    engine = create_engine("sqlite:///file:/checked?vfs=memdb&uri=true")
    Base.metadata.create_all(engine)
    with engine.connect() as connection:
        assert "read-only" not in {finding.code for finding in check(connection, Base)}
    engine.dispose()
