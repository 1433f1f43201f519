"""Creates the tables once per engine and empties them between tests, with one statement if no table was used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from sqlalchemy import URL, Engine, MetaData, ScalarSelect, Table, TextClause, delete, func, literal, select, text

from sqlqueue.operations import turns
from tests.support.engines import EngineCase
from tests.support.harness import Database

LARGE = 1_000
"""Rows above which deleting one by one takes longer than truncating."""
_KEPT: set[tuple[URL, MetaData]] = set()
"""The tables that a database keeps between tests."""


def make(engine: Engine, metadata: MetaData) -> None:
    metadata.drop_all(engine)
    metadata.create_all(engine)


def changeable(db: Database, metadata: MetaData) -> Iterator[Database]:
    """Create the tables for one test, which may change them."""
    _KEPT.discard((db.url, metadata))
    make(db.engine, metadata)
    yield db
    metadata.drop_all(db.engine)


def kept(db: Database, metadata: MetaData) -> Iterator[Database]:
    """Create the tables unless an earlier test has, and empty them after the test."""
    if (db.url, metadata) not in _KEPT:
        make(db.engine, metadata)
        _KEPT.add((db.url, metadata))
    yield db
    empty(db.engine, db.case, metadata)


def empty(engine: Engine, case: EngineCase, metadata: MetaData) -> None:
    """Empty the tables, and forget whose turn it was in them."""
    turns._rotations.clear()
    quote = engine.dialect.identifier_preparer.format_table
    with engine.begin() as connection:
        counts = connection.execute(_counts(engine, metadata)).mappings().one()
        for table in reversed(metadata.sorted_tables):
            if counts[table.name] >= LARGE and case.truncate:
                for statement in case.truncate:
                    connection.exec_driver_sql(statement.format(table=quote(table)))
            elif counts[table.name]:
                connection.execute(delete(table))


@lru_cache
def _counts(engine: Engine, metadata: MetaData) -> TextClause:
    """Return the statement as text, of which SQLAlchemy needs no key for its cache of compiled statements."""
    counts = select(*(_count(table).label(table.name) for table in metadata.sorted_tables))
    return text(str(counts.compile(engine, compile_kwargs={"literal_binds": True})))


def _count(table: Table) -> ScalarSelect[int]:
    up_to_large = select(literal(1).label("one")).select_from(table).limit(LARGE).subquery()
    return select(func.count()).select_from(up_to_large).scalar_subquery()
