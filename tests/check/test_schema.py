"""`check` reports tables, columns and keys that differ from the models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Column, DateTime, Identity, Integer, MetaData, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import DropIndex

from sqlqueue import Finding, QueueMixin, QueueOptions, SchemaMismatchError, Severity, verify_schema
from sqlqueue.diagnostics.check import verify_queues
from sqlqueue.dialects import adapter_for
from sqlqueue.outbox import OutboxMixin
from tests.check.checking import CLAIM, TABLE, changed, execute, findings, found
from tests.support.check_models import Base, Post
from tests.support.harness import Database

ALTERED: dict[str, tuple[tuple[Any, ...], str]] = {
    "no column of the queue": (("ALTER TABLE checked_post DROP COLUMN error",), "missing-column"),
    "not migrated": (
        (DropIndex(CLAIM), *(f"ALTER TABLE checked_post DROP COLUMN {name}" for name in ("error", "claimed_by"))),
        "missing-column",
    ),
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


def test_a_primary_key_by_which_statements_fail_keeps_workers_from_starting(
    healthy: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = adapter_for(healthy.session_engine.dialect).inspection

    def broken(_: Any, spec: Any) -> Iterator[Finding]:
        yield Finding.of(spec, Severity.ERROR, "key-index", "no statement finds a task by key", "declare the key")

    monkeypatch.setattr(server, "key_findings", broken)
    assert found(healthy) == {("error", "key-index")}
    with healthy.session_engine.connect() as connection, pytest.raises(SchemaMismatchError, match="by key"):
        verify_queues(connection, [Post.__queue_spec__])


OTHERWISE: dict[str, tuple[Callable[[Table], None], str]] = {
    "not nullable": (changed("finished_at", nullable=False), "not-nullable"),
    "no default": (changed("attempt", server_default=None), "missing-default"),
    "other type": (changed("priority", type=String(20), server_default=None, nullable=True), "wrong-type"),
    "too short": (changed("claimed_by", type=String(10)), "wrong-type"),
    "nullable": (changed("priority", nullable=True), "nullable"),
    "unknown": (lambda table: table.append_column(Column("extra", Integer, nullable=False)), "unknown-column"),
}


def test_a_column_that_differs_is_reported(healthy: Database) -> None:
    for name, (change, code) in OTHERWISE.items():
        _make_otherwise(healthy, change)
        assert ("error", code) in found(healthy), name
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
    _make_otherwise(healthy, changed("claimed_at", type=DateTime()))
    assert found(healthy) == {(healthy.case.naive_moments, "wrong-type")}


@pytest.mark.requires("loose_collation")
def test_keys_that_are_not_compared_exactly_are_reported(healthy: Database) -> None:
    _make_otherwise(healthy, changed("topic", type=String(128, collation=healthy.case.loose_collation)))
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


@pytest.mark.requires("sequences")
def test_keys_in_order_that_sessions_take_in_advance(sync_db: Database) -> None:
    class Own(DeclarativeBase):
        metadata = MetaData()

    class OrderedMessage(OutboxMixin, Own):
        __tablename__ = "ordered_message"

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    class OrderedBooking(QueueMixin, Own):
        __tablename__ = "ordered_booking"
        __queue__ = QueueOptions(sequential="account")

        id: Mapped[int] = mapped_column(primary_key=True)  # a serial
        account: Mapped[str] = mapped_column(String(20))

    class OrderedTask(QueueMixin, Own):
        __tablename__ = "ordered_task"

        id: Mapped[int] = mapped_column(primary_key=True)

    Own.metadata.create_all(sync_db.engine)
    db = sync_db.variant(isolation_level="READ COMMITTED")
    try:
        sequences = [f"{kind.__tablename__}_id_seq" for kind in (OrderedMessage, OrderedBooking, OrderedTask)]
        assert findings(db, OrderedMessage) == findings(db, OrderedBooking) == []
        execute(sync_db, *(f"ALTER SEQUENCE {each} CACHE 20" for each in sequences))
        for ordered in (OrderedMessage, OrderedBooking):
            (finding,) = findings(db, ordered)
            assert (finding.severity, finding.code) == ("warning", "unordered-identity")
            execute(sync_db, finding.fix)
            assert findings(db, ordered) == []
        assert findings(db, OrderedTask) == []
    finally:
        Own.metadata.drop_all(sync_db.engine)


def _make_otherwise(db: Database, change: Callable[[Table], None]) -> None:
    Base.metadata.drop_all(db.engine)
    copy = TABLE.to_metadata(MetaData())
    change(copy)
    copy.create(db.engine)
