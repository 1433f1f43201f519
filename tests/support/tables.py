"""Creates the tables once per engine and empties them between tests, with one statement if no table was used."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import Engine, Executable, MetaData, ScalarSelect, Table, delete, func, literal, select

from tests.support.engines import EngineCase

LARGE = 1_000
"""Rows above which deleting one by one takes longer than truncating."""


def make(engine: Engine, metadata: MetaData) -> None:
    metadata.drop_all(engine)
    metadata.create_all(engine)


def empty(engine: Engine, case: EngineCase, metadata: MetaData) -> None:
    quote = engine.dialect.identifier_preparer.format_table
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        counts = connection.execute(_counts(metadata)).mappings().one()
        for table in reversed(metadata.sorted_tables):
            if counts[table.name] >= LARGE and case.truncate:
                for statement in case.truncate:
                    connection.exec_driver_sql(statement.format(table=quote(table)))
            elif counts[table.name]:
                connection.execute(delete(table))


@lru_cache
def _counts(metadata: MetaData) -> Executable:
    return select(*(_count(table).label(table.name) for table in metadata.sorted_tables))


def _count(table: Table) -> ScalarSelect[int]:
    up_to_large = select(literal(1).label("one")).select_from(table).limit(LARGE).subquery()
    return select(func.count()).select_from(up_to_large).scalar_subquery()
