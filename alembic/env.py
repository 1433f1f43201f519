"""The tables of the demo, by migrations: what an environment for queues looks like, run by the tests on every engine.

    alembic -x url=postgresql+psycopg://localhost/test upgrade head

The database may also be in SQLQUEUE_DATABASE_URL; its driver may be an async one.
"""

import asyncio
import os
from typing import Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import URL, Connection, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

import sqlqueue.alembic
from sqlqueue.evaluation.demo.application import Base

VARIABLE = "SQLQUEUE_DATABASE_URL"
ENGINES = ("cockroachdb", "mariadb", "mssql", "mysql", "oracle", "postgresql", "sqlite")
"""The revisions run on all of them.  By default, they would be for the connected engine."""


def database() -> URL:
    url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get(VARIABLE)
    if not url:
        raise CommandError(f"which database? Give its URL: alembic -x url=sqlite:///demo.db ..., or in {VARIABLE}.")
    return make_url(url)


def includes(name: str | None, kind: str, parents: Any) -> bool:
    """The demo may share its database: other tables are not to be dropped."""
    return kind != "table" or name in Base.metadata.tables


def migrate(**target: Any) -> None:
    context.configure(
        **target,
        target_metadata=Base.metadata,
        version_table="sqlqueue_demo_version",
        include_name=includes,
        render_as_batch=True,
        sqlqueue=sqlqueue.alembic.MigrationOptions(engines=ENGINES),
    )
    with context.begin_transaction():
        if context.is_offline_mode() and context.get_context().dialect.name == "mssql":
            context.execute("SET QUOTED_IDENTIFIER ON")  # off in sqlcmd, which then creates no filtered index
        context.run_migrations()


def migrate_online(connection: Connection) -> None:
    sqlqueue.alembic.verify(connection, Base.metadata)
    migrate(connection=connection)


async def migrate_async(url: URL) -> None:
    async with create_async_engine(url, poolclass=NullPool).connect() as connection:
        await connection.run_sync(migrate_online)


def main(url: URL) -> None:
    if context.is_offline_mode():
        migrate(url=url, literal_binds=True)
    elif url.get_dialect().is_async:
        asyncio.run(migrate_async(url))
    else:
        with create_engine(url, poolclass=NullPool).connect() as connection:
            migrate_online(connection)


main(database())
