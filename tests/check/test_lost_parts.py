"""`check` finds what was lost: indexes of the model itself, and tables that accompany a queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Identity, Index, String, UniqueConstraint, Uuid, func, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import DropIndex

from sqlqueue import LimitMixin, PauseMixin, QueueMixin, QueueOptions, SchemaMismatchError, SlotMixin, verify_schema
from sqlqueue.queue.status import Status
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


def test_the_table_of_pauses(airport: Database) -> None:
    Break.__table__.drop(airport.engine)  # type: ignore[attr-defined]
    for target in (Base, Flight):
        assert found(airport, target) == {("error", "missing-table")}
    with (
        airport.session_engine.connect() as connection,
        pytest.raises(SchemaMismatchError, match="no table lost_break"),
    ):
        verify_schema(connection, Base)


def test_the_table_of_slots(airport: Database) -> None:
    Place.__table__.drop(airport.engine)  # type: ignore[attr-defined]
    for target in (Base, Flight):
        assert found(airport, target) == {("error", "missing-table")}
    with (
        airport.session_engine.connect() as connection,
        pytest.raises(SchemaMismatchError, match="no table lost_place"),
    ):
        verify_schema(connection, Flight)


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
    class Own(DeclarativeBase):
        pass

    class Parted(QueueMixin, Own):
        __tablename__ = "lost_parted"
        __table_args__ = {"postgresql_partition_by": "HASH (id)"}  # noqa: RUF012

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    Own.metadata.create_all(sync_db.engine)
    try:
        execute(sync_db, *(statement.format(table="lost_parted") for statement in sync_db.case.hash_partitions_sql))
        assert findings(sync_db.variant(isolation_level="READ COMMITTED"), Own) == []
    finally:
        Own.metadata.drop_all(sync_db.engine)


def test_uuids_are_exact_keys(sync_db: Database) -> None:
    class Own(DeclarativeBase):
        pass

    class Keyed(QueueMixin, Own):
        __tablename__ = "lost_keyed"

        id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True)

    Own.metadata.create_all(sync_db.engine)
    try:
        assert not {finding.code for finding in findings(sync_db, Own)} & {"inexact-primary-key"}
    finally:
        Own.metadata.drop_all(sync_db.engine)
