"""Queues in schemas of the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, MetaData, String, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import QueueMixin, QueueSession
from tests.support.harness import Database


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
def test_a_queue_in_its_own_schema_works(sync_db: Database) -> None:
    try:
        with sync_db.engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA filing"))
    except DBAPIError:
        pytest.skip("no schemas here, or no right to make one")
    try:
        model = _model_in("filing")
        with _made(sync_db, model):
            _lives_in(sync_db, model)
    finally:
        with sync_db.engine.begin() as connection:
            connection.execute(text("DROP SCHEMA filing"))


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


def test_in_a_schema_that_is_translated(sync_db: Database) -> None:
    """With one schema for each tenant."""
    model = _model_in("tenant")
    schema = inspect(sync_db.engine).default_schema_name
    translated = sync_db.engine.execution_options(schema_translate_map={"tenant": schema})
    model.metadata.create_all(translated)
    try:
        with QueueSession(translated) as session:
            session.add_all([model(id=1), model(id=2)])
            session.commit()
            session.complete(session.claim(model))
            session.complete(session.claim(model, lease=None))
            session.commit()
            assert session.stats(model)["completed"] == 2
    finally:
        sync_db.end_test()
        model.metadata.drop_all(translated)
