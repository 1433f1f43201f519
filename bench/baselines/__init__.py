"""Baselines: queues written by hand in SQL for one driver, without any library.

A baseline writes the same columns as sqlqueue, with the same meaning, in the same table.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from sqlqueue.evaluation.support import prepare

from .driver import DriverClient
from .psycopg import Psycopg
from .pymysql import PyMySQL
from .sqlite import Sqlite3

BASELINES: dict[str, type[DriverClient]] = {"psycopg": Psycopg, "pymysql": PyMySQL, "pysqlite": Sqlite3}
"""Baselines by SQLAlchemy's name of the driver."""


def raw_connection(engine: Engine) -> Any:
    """Return a connection of the driver, opened as the engine would open it."""
    arguments, options = engine.dialect.create_connect_args(engine.url)
    connection = engine.dialect.loaded_dbapi.connect(*arguments, **options)
    prepare(engine.url, connection)
    return connection
