"""`check` finds what was lost: indexes and triggers of the model itself, and tables that accompany a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    DDL,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    UniqueConstraint,
    Uuid,
    create_engine,
    event,
    func,
    insert,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateSchema, DropIndex, DropSchema

from sqlqueue import (
    LimitMixin,
    PauseMixin,
    QueueMixin,
    QueueOptions,
    SchemaMismatchError,
    SlotMixin,
    Status,
    verify_schema,
)
from sqlqueue.diagnostics.drift import lost_triggers
from sqlqueue.queue.spec import spec_of
from tests.check.checking import execute, findings, found
from tests.support.harness import Database


class Base(DeclarativeBase):
    pass


class Break(PauseMixin, Base):
    __tablename__ = "lost_break"


class Place(SlotMixin, Base):
    __tablename__ = "lost_place"


class Flight(LimitMixin, Base):
    __tablename__ = "lost_flight"
    __queue__ = QueueOptions(slots=Place)
    __table_args__ = (UniqueConstraint("code", name="uq_lost_code"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    code: Mapped[str | None] = mapped_column(String(20))
    gate: Mapped[str | None] = mapped_column(String(20), index=True)


def queue_of(table: str, key: Any = None, **options: Any) -> type[Any]:
    """Return a queue in metadata of its own, with this key and these options of its table."""

    class Own(DeclarativeBase):
        metadata = MetaData()

    class Lost(QueueMixin, Own):
        __tablename__ = table
        __table_args__ = options

        id: Mapped[Any] = key or mapped_column(Integer, Identity(), primary_key=True)

    return Lost


Watched = queue_of("lost_watched")
GATE = next(index for index in Flight.__table__.indexes if index.name == "ix_lost_flight_gate")  # type: ignore[attr-defined]
LOWER = Index("Lost lower", func.lower(Flight.gate), unique=True)
ELSEWHERE = Index("ix_lost_elsewhere", Flight.code).ddl_if(dialect="unknown")


@pytest.fixture
def airport(sync_db: Database) -> Iterator[Database]:
    table = Flight.__table__
    if not sync_db.case.expression_indexes:
        table.indexes.remove(LOWER)  # type: ignore[attr-defined]
    Base.metadata.drop_all(sync_db.engine)
    Base.metadata.create_all(sync_db.engine)
    yield sync_db.variant(isolation_level="SERIALIZABLE" if sync_db.case.one_writer else "READ COMMITTED")
    Base.metadata.drop_all(sync_db.engine)
    table.indexes.add(LOWER)  # type: ignore[attr-defined]


def test_nothing_is_lost(airport: Database) -> None:
    assert findings(airport, Base) == []


def test_an_index_of_the_model(airport: Database) -> None:
    execute(airport, DropIndex(GATE))
    (finding,) = findings(airport, Base)
    assert (finding.severity, finding.code) == ("warning", "missing-index")
    assert finding.message == "lost_flight has no index ix_lost_flight_gate, which the model declares"
    with airport.session_engine.connect() as connection:
        verify_schema(connection, Base)  # the queue does not need it


@pytest.mark.requires("expression_indexes")
def test_an_index_on_an_expression(airport: Database) -> None:
    execute(airport, DropIndex(LOWER))
    (finding,) = findings(airport, Base)
    assert (finding.severity, finding.code) == ("warning", "missing-index")
    assert "has no index Lost lower" in finding.message


@pytest.mark.requires("hide_index")
@pytest.mark.filterwarnings("ignore:Unknown schema content")
def test_a_hidden_index_is_not_lost(airport: Database) -> None:
    execute(airport, airport.case.hide_index.format(table="lost_flight", index=GATE.name))
    assert findings(airport, Base) == []


@pytest.fixture
def watched(sync_db: Database) -> Iterator[Database]:
    """A queue whose triggers are declared with its table and with its metadata."""
    Watched.metadata.drop_all(sync_db.engine)
    quote, sql = sync_db.engine.dialect.identifier_preparer.quote, sync_db.case.trigger_sql or ""
    name = sync_db.engine.dialect.name
    of_table = DDL(sql.format(name="%(table)s_audit", table="%(fullname)s")).execute_if(dialect=("unknown", name))
    elsewhere = DDL(sql.format(name="lost_elsewhere", table="%(table)s")).execute_if(dialect="unknown")
    of_metadata = DDL(sql.format(name=quote("Lost on Sight"), table=quote("lost_watched")))
    of_another = DDL(sql.format(name="lost_other", table="lost_other_table"))
    declared = [(Watched.__table__, of_table), (Watched.__table__, elsewhere), (Watched.metadata, of_metadata)]
    for target, element in declared:
        event.listen(target, "after_create", element)
    Watched.metadata.create_all(sync_db.engine)
    event.listen(Watched.metadata, "after_create", of_another)  # that table has lost its trigger
    yield sync_db.variant(isolation_level="SERIALIZABLE" if sync_db.case.one_writer else "READ COMMITTED")
    for target, element in [*declared, (Watched.metadata, of_another)]:
        event.remove(target, "after_create", element)
    Watched.metadata.drop_all(sync_db.engine)


def drop_trigger(db: Database, name: str) -> None:
    of = " ON lost_watched" if db.case.name == "postgresql" else ""
    execute(db, f"DROP TRIGGER {db.engine.dialect.identifier_preparer.quote(name)}{of}")


@pytest.mark.requires("trigger_sql")
def test_a_trigger_of_the_table(watched: Database) -> None:
    assert findings(watched, Watched) == []
    drop_trigger(watched, "lost_watched_audit")
    (finding,) = findings(watched, Watched)
    assert (finding.severity, finding.code) == ("warning", "missing-trigger")
    assert finding.message == "lost_watched has no trigger lost_watched_audit, which the model declares"
    assert "op.execute()" in finding.fix
    with watched.session_engine.connect() as connection:
        verify_schema(connection, Watched)  # the queue does not need it


@pytest.mark.requires("trigger_sql")
def test_a_trigger_of_the_metadata(watched: Database) -> None:
    drop_trigger(watched, "Lost on Sight")
    (finding,) = findings(watched, Watched)
    assert (finding.severity, finding.code) == ("warning", "missing-trigger")
    assert "has no trigger Lost on Sight," in finding.message


@pytest.mark.requires("account_sql", "trigger_sql")
@pytest.mark.parametrize("place", ["lost_watched", "*"])
def test_triggers_that_an_account_cannot_see_are_not_lost(reader: Any, watched: Database, place: str) -> None:
    hidden = watched.case.name in {"mysql", "mariadb"}
    if not hidden:
        place = "lost_watched"  # only there * is the database
    every = "SELECT, INSERT, UPDATE, DELETE ON lost_watched"
    assert "missing-trigger" not in {finding.code for finding in reader(every, target=Watched)}
    drop_trigger(watched, "lost_watched_audit")
    drop_trigger(watched, "Lost on Sight")
    lost = [finding for finding in reader(target=Watched) if finding.code == "missing-trigger"]
    assert len(lost) == (0 if hidden else 2)
    lost = [finding for finding in reader(f"TRIGGER ON {place}", target=Watched) if finding.code == "missing-trigger"]
    assert len(lost) == 2


@pytest.mark.requires("trigger_sql")
def test_a_trigger_of_a_table_in_a_schema(sync_db: Database) -> None:
    far = queue_of("lost_far", schema="lost_tower")
    case, db, attached = sync_db.case, sync_db, sync_db.case.name == "sqlite"
    if attached:
        db = sync_db.variant(on_connect="ATTACH ':memory:' AS lost_tower", pool_size=1)
    name = "far_audit" if case.name == "postgresql" else "%(schema)s.far_audit"
    table = "%(table)s" if attached else "%(fullname)s"
    event.listen(far.__table__, "after_create", DDL((case.trigger_sql or "").format(name=name, table=table)))
    dropping = "DROP TRIGGER far_audit ON lost_tower.lost_far"
    with db.session_engine.connect() as connection:
        if not attached:
            try:
                connection.execute(CreateSchema("lost_tower"))
            except DBAPIError:
                pytest.skip("no schemas here, or no right to make one")
        try:
            far.metadata.create_all(connection)
            assert lost_triggers(connection, spec_of(far)) == []
            connection.exec_driver_sql(dropping if case.name == "postgresql" else "DROP TRIGGER lost_tower.far_audit")
            assert lost_triggers(connection, spec_of(far)) == ["far_audit"]
        finally:
            far.metadata.drop_all(connection)
            if not attached:
                connection.execute(DropSchema("lost_tower"))
            connection.commit()


@pytest.mark.requires("trigger_sql")
def test_a_trigger_whose_name_the_server_shortened_is_not_lost(sync_db: Database) -> None:
    long = queue_of("lost_long")
    sql, name = sync_db.case.trigger_sql or "", "lost_" + "é" * 60
    event.listen(long.__table__, "after_create", DDL(sql.format(name=name, table="lost_long")))
    with sync_db.engine.connect() as connection:
        try:
            long.metadata.create_all(connection)
        except DBAPIError:
            connection.rollback()
            long.metadata.drop_all(connection)
            connection.commit()
            pytest.skip("names of this length are rejected here")
        try:
            assert lost_triggers(connection, spec_of(long)) == []
        finally:
            long.metadata.drop_all(connection)
            connection.commit()


FORMS: dict[str, str | None] = {
    "CREATE TRIGGER plain_one BEFORE UPDATE ON lost_named": "plain_one",
    'create or replace trigger "two ""b" after update of "x", y on "lost_named" for each row': 'two "b',
    "CREATE DEFINER = `a b`@`%%` TRIGGER IF NOT EXISTS `three` BEFORE INSERT ON `lost_named`": "three",
    "CREATE OR ALTER TRIGGER [main].[four]]] ON [main].[lost_named] AFTER UPDATE AS": "four]",
    "CREATE CONSTRAINT TRIGGER five AFTER INSERT ON main . lost_named DEFERRABLE": "five",
    "CREATE FUNCTION f() AS $$ ... $$;\nCREATE TRIGGER six\nAFTER INSERT\nON %(fullname)s": "six",
    "CREATE EDITIONABLE TRIGGER main.seven BEFORE UPDATE ON LOST_NAMED": "seven",
    "CREATE TRIGGER other.eight BEFORE UPDATE ON lost_named": None,
    "CREATE TRIGGER nine BEFORE UPDATE ON lost_named_too": None,
    "CREATE TEMP TRIGGER ten AFTER UPDATE ON lost_named": None,
    "CREATE EVENT TRIGGER eleven ON lost_named": None,
}
"""The names in all forms that engines accept; `None` for what is no lasting trigger of the table."""


@pytest.mark.parametrize("statement", FORMS)
def test_the_names_of_triggers(statement: str) -> None:
    named = queue_of("lost_named")
    engine = create_engine("sqlite://")
    named.metadata.create_all(engine)
    event.listen(named.__table__, "after_create", DDL(statement))
    name = FORMS[statement]
    with engine.connect() as connection:
        assert lost_triggers(connection, spec_of(named)) == ([] if name is None else [name])
    engine.dispose()


@pytest.mark.parametrize(("model", "target"), [(Break, Base), (Place, Flight)])
def test_a_table_beside_the_queue(airport: Database, model: Any, target: Any) -> None:
    model.__table__.drop(airport.engine)
    for each in (Base, Flight):
        assert found(airport, each) == {("error", "missing-table")}
    missing = pytest.raises(SchemaMismatchError, match=f"no table {model.__tablename__}")
    with airport.session_engine.connect() as connection, missing:
        verify_schema(connection, target)


def test_rows_with_an_unknown_status(airport: Database) -> None:
    known = [{"status": status} for status in Status]
    with airport.engine.begin() as connection:
        connection.execute(insert(Flight.__table__), known)  # type: ignore[arg-type]
    assert not {finding.code for finding in findings(airport, Flight)} & {"unknown-status"}
    with airport.engine.begin() as connection:
        connection.execute(insert(Flight.__table__), [{"status": "pending"}, {"status": "x"}, {"status": "x"}])  # type: ignore[arg-type]
    (finding,) = (each for each in findings(airport, Flight) if each.code == "unknown-status")
    assert (finding.severity, finding.model) == ("warning", Flight)
    assert "('pending', 'x'): no claim finds them" in finding.message
    assert "UPDATE lost_flight SET status = 'available'" in finding.fix


@pytest.mark.requires("hash_partitions_sql")
def test_the_indexes_of_partitions_serve_claims(sync_db: Database) -> None:
    parted = queue_of("lost_parted", postgresql_partition_by="HASH (id)")
    parted.metadata.create_all(sync_db.engine)
    try:
        execute(sync_db, *(statement.format(table="lost_parted") for statement in sync_db.case.hash_partitions_sql))
        assert findings(sync_db.variant(isolation_level="READ COMMITTED"), parted) == []
    finally:
        parted.metadata.drop_all(sync_db.engine)


def test_uuids_are_exact_keys(sync_db: Database) -> None:
    keyed = queue_of("lost_keyed", mapped_column(Uuid(as_uuid=False), primary_key=True))
    keyed.metadata.create_all(sync_db.engine)
    try:
        assert not {finding.code for finding in findings(sync_db, keyed)} & {"inexact-primary-key"}
    finally:
        keyed.metadata.drop_all(sync_db.engine)
