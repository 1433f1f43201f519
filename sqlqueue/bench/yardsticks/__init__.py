"""What a queue costs that is written by hand for one driver: SQL, and nothing between it and the driver.

A yardstick writes the same columns as the library does, with the same meaning, on the same table.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from .driver import DriverClient
from .psycopg import Psycopg
from .pymysql import PyMySQL
from .sqlite import SQLite

YARDSTICKS: dict[str, type[DriverClient]] = {"psycopg": Psycopg, "pymysql": PyMySQL, "pysqlite": SQLite}
"""By the name that SQLAlchemy has for the driver."""


def raw_connection(engine: Engine) -> Any:
    """A connection of the driver's own, opened as the engine would open it."""
    arguments, options = engine.dialect.create_connect_args(engine.url)
    return engine.dialect.loaded_dbapi.connect(*arguments, **options)
