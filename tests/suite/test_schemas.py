"""Queues in schemas: of their own, translated for each tenant, and before others with functions of the same names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Identity, MetaData, NullPool, String, create_engine, func, inspect, select
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlqueue
from sqlqueue import LimitMixin, PauseMixin, QueueMixin, QueueOptions, RecurringMixin, SlotMixin, UniqueMixin
from sqlqueue.outbox import OutboxMixin, claim_messages
from sqlqueue.sqltasks import RequestFailed, execution
from sqlqueue.sqltasks.execution import RequestExecutor
from tests.check.checking import findings, found
from tests.support.harness import Actor, Database
from tests.support.models import Job, Task
from tests.support.rows import PAST


def _model_in(schema: str) -> type[Any]:
    class SchemaBase(DeclarativeBase):
        metadata = MetaData(schema=schema)

    class Filed(QueueMixin, SchemaBase):
        __tablename__ = "filed"

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        name: Mapped[str] = mapped_column(String(20), default="")

    return Filed


@contextmanager
def _made(db: Database, model: type[Any]) -> Iterator[None]:
    model.metadata.create_all(db.engine)
    try:
        yield
    finally:
        db.end_test()
        model.metadata.drop_all(db.engine)


def _lives_in(db: Database, model: type[Any]) -> None:
    with db.begin() as session:
        session.enqueue([model(id=n) for n in (1, 2, 3)])
        session.enqueue(model, [{"id": 3, "name": "new"}, {"id": 4}], on_conflict="replace")
    with db.begin() as session:
        session.complete(session.claim_many(model, limit=2))
        session.fail(session.claim(model, model.id == 3), "no", timedelta(0))
        assert session.claim_many(model, limit=9)[-1].id == 3
        assert session.cancel(model) == 2
        assert session.stats(model).total == session.prune(model, timedelta(0)) == 4


def test_in_the_schema_that_is_the_default(sync_db: Database) -> None:
    model = _model_in(str(inspect(sync_db.engine).default_schema_name))
    with _made(sync_db, model):
        _lives_in(sync_db, model)


@pytest.mark.requires("claims_in_schemas")
@pytest.mark.parametrize("schema", ["filing", pytest.param('a%."filing', marks=pytest.mark.requires("schemas"))])
def test_a_queue_in_its_own_schema_works(sync_db: Database, schema: str) -> None:
    quoted = sync_db.engine.dialect.identifier_preparer.quote_schema(schema)
    try:
        with sync_db.engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {quoted}")
    except DBAPIError:
        pytest.skip("no schemas here, or no right to make one")
    try:
        model = _model_in(schema)
        with _made(sync_db, model):
            _lives_in(sync_db, model)
            if sync_db.case.copies:
                sync_db.committed.enqueue(model, [{"priority": 1}], copy=True)
            with sync_db.engine.connect() as connection:
                findings = sqlqueue.check(connection, model)
                assert not [each for each in findings if each.severity in ("error", "warning")]
    finally:
        with sync_db.engine.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {quoted}")


def test_in_an_attached_database(sync_db: Database) -> None:
    variant = sync_db.variant(on_connect="ATTACH ':memory:' AS filing", pool_size=1) if sync_db.case.embedded else None
    try:
        assert variant
        variant.session_engine.connect().close()
    except (AssertionError, DBAPIError):
        pytest.skip("nothing can be attached here")
    model = _model_in("filing")
    model.metadata.create_all(variant.session_engine)
    _lives_in(variant, model)


# -- a `schema_translate_map`, of the engine, of a session or of a connection, holds for every statement --------------

NOWHERE = "a_tenant"
"""No engine has a schema of that name."""


class Tenants(DeclarativeBase):
    metadata = MetaData(schema=NOWHERE)


class Room(SlotMixin, Tenants):
    __tablename__ = "tenant_room"


class Guest(LimitMixin, UniqueMixin, Tenants):
    __tablename__ = "tenant_guest"
    __queue__ = QueueOptions(slots=Room, limit=2, retention=timedelta(0))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Chore(RecurringMixin, Tenants):
    __tablename__ = "tenant_chore"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Card(OutboxMixin, Tenants):
    __tablename__ = "tenant_card"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Parking(QueueMixin, Tenants):
    __tablename__ = "tenant_parking"
    __queue__ = QueueOptions(on_complete="delete", retention=timedelta(0))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Stop(PauseMixin, Tenants):
    __tablename__ = "tenant_stop"


@contextmanager
def tables_in(db: Database) -> Iterator[dict[str, Any]]:
    """Yield the options that translate the nonexistent schema to the existing one."""
    options = {"schema_translate_map": {NOWHERE: inspect(db.engine).default_schema_name}}
    engine = db.engine.execution_options(**options)
    Tenants.metadata.drop_all(engine)
    Tenants.metadata.create_all(engine)
    yield options | ({} if db.case.one_writer else {"isolation_level": "READ COMMITTED"})
    Tenants.metadata.drop_all(engine)


@pytest.fixture
def tables(db: Database) -> Iterator[dict[str, Any]]:
    with tables_in(db) as options:
        yield options


@contextmanager
def session_of(db: Database, options: dict[str, Any], where: str) -> Iterator[Actor]:
    if where == "engine":
        with db.variant(execution_options=options).begin() as actor:
            yield actor
        return
    with db.begin(**({"execution_options": options} if where == "session" else {})) as actor:
        if where == "connection":
            actor.run(lambda session: session.connection(execution_options=options))
        yield actor


WHERES = [
    "engine",
    "connection",
    pytest.param(
        "session",
        marks=pytest.mark.skipif(not hasattr(Session(), "execution_options"), reason="SQLAlchemy 2.1 has such options"),
    ),
]


@pytest.mark.asyncio_everywhere
@pytest.mark.parametrize("where", WHERES)
def test_every_operation(db: Database, tables: dict[str, Any], where: str) -> None:
    every_operation(lambda: session_of(db, tables, where))
    if db.case.copies:
        with session_of(db, tables, where) as actor:
            actor.enqueue(Parking, [{"priority": 1}], copy=True)
            assert actor.stats(Parking).total == 1


def every_operation(begin: Callable[[], AbstractContextManager[Actor]]) -> None:
    with begin() as actor:
        for on_conflict in ("ignore", "replace", "rerun"):
            actor.enqueue(Guest(unique_key="k", limit_key="new"), on_conflict=on_conflict)
        actor.enqueue(Guest, [{"limit_key": "new"}, {"limit_key": "newer"}])
        actor.enqueue(Chore(schedule="PT1H", available_at=PAST))
        actor.enqueue(Parking, [{}, {}])
        actor.enqueue([Card(payload=1), Card(payload=2)])
        assert actor.pause(Parking)
        assert not actor.pause(Parking)
    with begin() as actor:
        guests = actor.claim_many(Guest, limit=3)
        assert len(guests) == 3
        actor.heartbeat(guests)
        actor.complete(guests[:2])
        actor.fail(guests[2:], "error", timedelta(0))
    with begin() as actor:
        assert {each.key for each in actor.limits(Guest)} == {"new", "newer"}
        actor.set_limit(Guest, "newest", 3)
        assert actor.retry(Guest) == 1
        assert actor.cancel(Guest) == 1
        assert actor.prune(Guest) + actor.prune(Guest, timedelta(0), limit=5) == 3
    with begin() as actor:
        chore = actor.claim(Chore, lease=None)
        actor.complete(chore)
        assert actor.reschedule(Chore, schedule="PT2H") == 1
        assert actor.unschedule(Chore) == 1
        assert actor.promote(Chore) == actor.rescue(Chore) == 0
    with begin() as actor:
        assert len(actor.run(claim_messages, Card, limit=2)) == 2
        assert [each.topic for each in actor.paused(Parking)] == [None]
        assert actor.resume(Parking)
        actor.complete(actor.claim(Parking))
        assert actor.consume(Parking) is not None
        assert actor.overview(Parking).total == actor.stats(Parking).total == 0
        assert actor.timeline(Guest)
        assert actor.errors(Guest) == []
        assert actor.find(Guest) == []


def test_the_schema_is_looked_at_where_it_is(sync_db: Database) -> None:
    def found(connection: Connection) -> set[str]:
        findings = sqlqueue.check(connection.execution_options(**options), Tenants)
        return {each.code for each in findings if each.severity in ("error", "warning")}

    with tables_in(sync_db) as options, sync_db.engine.connect() as connection:
        assert found(connection) == set()
        sqlqueue.verify_schema(connection, Tenants)
    with sync_db.engine.connect() as connection:
        assert found(connection) == {"missing-table"}


# -- functions of other accounts, with the names of built-in ones, are not called -------------------------------------

PINNED = Path(__file__).parents[1] / "dialects" / "pinned" / "postgresql.json"
SHARED = {"avg", "count", "max", "min", "row_number", "sum"}
"""Functions in statements that are the same for all engines, most of which have no schema for built-in ones."""


@pytest.fixture
def among(sync_db: Database) -> Iterator[Database]:
    """Return the database through sessions that prefer the impostors."""
    create, drop = sync_db.case.impostors
    engine = create_engine(sync_db.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in (*drop, *create):
            connection.exec_driver_sql(statement)
    yield sync_db.variant(on_connect=sync_db.case.impostors_first)
    with engine.connect() as connection:
        for statement in drop:
            connection.exec_driver_sql(statement)


@pytest.mark.requires("impostors")
def test_no_operation_calls_them(among: Database) -> None:
    with among.session() as actor, pytest.raises(DBAPIError, match="an impostor"):
        actor.scalar(select(func.statement_timestamp()))
    with tables_in(among) as options:
        every_operation(among.variant(on_connect=among.case.impostors_first, execution_options=options).begin)
    with among.begin() as actor:
        actor.enqueue(Job, [{"task": "a"}, {"task": "b"}])
        actor.enqueue(Task, [{}] * 12)
        actor.complete(actor.claim_many(Task, limit=11))


def executing(among: Database) -> URL:
    options = {"options": "-csearch_path=impostor,pg_catalog,public"}
    return among.url.update_query_dict(options)


def executor(among: Database) -> RequestExecutor:
    return RequestExecutor(executing(among), {}, timeout=timedelta(minutes=1), limit=100)


@pytest.mark.requires("impostors")
def test_they_lift_no_timeout(among: Database) -> None:
    with pytest.raises(RequestFailed, match="timeout: stopped after 2 s"):
        executor(among).execute("SELECT pg_sleep(600)", user=None, timeout=2)


@pytest.mark.requires("impostors")
def test_a_connection_that_is_not_ready_in_time_is_closed(among: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "CONNECTING", timedelta(seconds=2))
    with create_engine(executing(among), poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as one:
        one.exec_driver_sql(among.case.impostor_at_start)
    with pytest.raises(OperationalError):
        executor(among).execute("SELECT 1", user=None, timeout=2)


@pytest.mark.requires("impostors")
def test_a_schema_in_which_anyone_may_create_functions_is_reported(among: Database) -> None:
    assert ("warning", "open-schema") in found(among)
    (fix,) = {each.fix for each in findings(among) if each.code == "open-schema"}
    assert fix == "REVOKE CREATE ON SCHEMA impostor FROM PUBLIC, or leave it out of the search_path"


def test_statements_name_the_schema_of_functions() -> None:
    keywords = "AND ANY CAST COALESCE DEFAULT EXISTS EXTRACT FROM IN KEY NOT OR OVER SELECT UNIQUE VALUES WHEN WHERE"
    called = {
        name for name in re.findall(r'(?<![.\w"])(\w+)\(', PINNED.read_text()) if name.upper() not in keywords.split()
    }
    # with several arrays, unnest is not an ordinary function; the last ones are not functions at all
    assert called == SHARED | {"array", "unnest"} | {"given", "picked", "walk", "n", "VARCHAR"}
