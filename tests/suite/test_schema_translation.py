"""A `schema_translate_map`, of the engine, of a session or of a connection, holds for every statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlqueue
from sqlqueue import LimitMixin, PauseMixin, QueueMixin, QueueOptions, RecurringMixin, SlotMixin, UniqueMixin
from sqlqueue.outbox import OutboxMixin, claim_messages
from tests.support.harness import Actor, Database
from tests.support.rows import PAST

pytestmark = pytest.mark.asyncio_everywhere

NOWHERE = "a_tenant"
"""No engine has a schema of that name."""


class Tenants(DeclarativeBase):
    pass


class Room(SlotMixin, Tenants):
    __tablename__ = "tenant_room"
    __table_args__ = {"schema": NOWHERE}  # noqa: RUF012


class Guest(LimitMixin, UniqueMixin, Tenants):
    __tablename__ = "tenant_guest"
    __table_args__ = {"schema": NOWHERE}  # noqa: RUF012
    __queue__ = QueueOptions(slots=Room, limit=2, retention=timedelta(0))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Chore(RecurringMixin, Tenants):
    __tablename__ = "tenant_chore"
    __table_args__ = {"schema": NOWHERE}  # noqa: RUF012

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Card(OutboxMixin, Tenants):
    __tablename__ = "tenant_card"
    __table_args__ = {"schema": NOWHERE}  # noqa: RUF012

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Parking(QueueMixin, Tenants):
    __tablename__ = "tenant_parking"
    __table_args__ = {"schema": NOWHERE}  # noqa: RUF012
    __queue__ = QueueOptions(on_complete="delete", retention=timedelta(0))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Stop(PauseMixin, Tenants):
    __tablename__ = "tenant_stop"
    __table_args__ = {"schema": NOWHERE}  # noqa: RUF012


@pytest.fixture
def tables(db: Database) -> Iterator[dict[str, Any]]:
    """Return the options that translate the nonexistent schema to the existing one."""
    options = {"schema_translate_map": {NOWHERE: inspect(db.engine).default_schema_name}}
    engine = db.engine.execution_options(**options)
    Tenants.metadata.drop_all(engine)
    Tenants.metadata.create_all(engine)
    yield options | ({} if db.case.one_writer else {"isolation_level": "READ COMMITTED"})
    Tenants.metadata.drop_all(engine)


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


@pytest.mark.parametrize("where", WHERES)
def test_every_operation(db: Database, tables: dict[str, Any], where: str) -> None:
    every_operation(lambda: session_of(db, tables, where))


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


@pytest.mark.requires("copies")
@pytest.mark.parametrize("where", WHERES)
def test_copies(db: Database, tables: dict[str, Any], where: str) -> None:
    with session_of(db, tables, where) as actor:
        actor.enqueue(Parking, [{"priority": 1}], copy=True)
        assert actor.stats(Parking).total == 1


def test_the_schema_is_looked_at_where_it_is(sync_db: Database) -> None:
    options = {"schema_translate_map": {NOWHERE: inspect(sync_db.engine).default_schema_name}}
    with sync_db.engine.connect().execution_options(**options) as connection:
        Tenants.metadata.drop_all(connection)
        assert {each.code for each in sqlqueue.check(connection, Tenants) if each.severity == "error"} == {
            "missing-table"
        }
        Tenants.metadata.create_all(connection)
        connection.commit()
        try:
            findings = [each for model in (Guest, Chore, Card, Parking) for each in sqlqueue.check(connection, model)]
            assert not [each for each in findings if each.severity in ("error", "warning")]
            sqlqueue.verify_schema(connection, Tenants)
        finally:
            Tenants.metadata.drop_all(connection)
            connection.commit()
