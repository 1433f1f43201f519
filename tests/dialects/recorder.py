"""An engine that sends nothing and records each complete statement as it would reach the driver. Rows are fabricated
from the types of the result, so that operations run to their end.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from sqlalchemy import JSON, Engine, Uuid, create_engine, event
from sqlalchemy.pool import StaticPool

KEY = uuid.UUID(int=7)
ROWID = "AAAShYAAFAAAAC9AAA"
COCKROACHDB = "CockroachDB CCL v24.2.3"
HANDLERS = [{"queue": "errand_of_fleet", "functions": None, "whole": True, "slots": 1, "busy": 0}]

SETTINGS = {
    "show standard_conforming_strings": "on",
    "SELECT @@sql_mode": "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION",
    "SELECT @@lower_case_table_names": "0",
    "SELECT CAST('test max support' AS NVARCHAR(max))": "test max support",
    "SELECT 1 FROM fn_listextendedproperty(default, default, default, default, default, default, default)": 1,
    "SELECT value FROM v$parameter WHERE name = 'compatible'": None,
    "SELECT 1.1 FROM DUAL": "1.1",
    "select version()": COCKROACHDB,
}
"""The answers of a server with its default settings to what SQLAlchemy asks on an engine's first connection."""


class Cursor:
    """The cursor attributes that an engine needs, with fabricated rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = 1
        self.lastrowid = 1
        self.arraysize = 1

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, statement: str, *_: Any) -> None:
        if statement in SETTINGS:
            self.description = [("value", *[None] * 6)]
            self.rows = [(SETTINGS[statement],)]

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self.rows = self.rows, []
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows.pop(0) if self.rows else None

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        return self.fetchall()

    def nextset(self) -> None: ...

    def var(self, *_: Any, **__: Any) -> Any:
        return Variable()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: None


class Variable:
    """An out parameter of Oracle's driver."""

    values = ()

    def getvalue(self, position: int = 0) -> Any:
        return f"{ROWID},"


class Driver:
    """A stand-in for pyodbc, which cannot be imported without the system's ODBC libraries."""

    Error = OperationalError = ProgrammingError = IntegrityError = Exception
    Cursor = Cursor
    paramstyle = "qmark"
    version = "5.0"

    def __getattr__(self, name: str) -> int:
        return 0


class Connection:
    autocommit = in_transaction = False
    max_identifier_length = 128  # of Oracle's driver
    info = SimpleNamespace(transaction_status=None)  # of psycopg: neither idle nor in a transaction
    driver_connection = property(lambda self: self)

    def get_autocommit(self) -> bool:
        return False

    def cursor(self, *_: Any, **__: Any) -> Cursor:
        return Cursor()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def recording_engine(url: str, version: tuple[int, ...]) -> tuple[Engine, list[str]]:
    """Return the engine, and the list to which its statements are appended; parameters are written as `:name`."""
    log: list[str] = []
    module = {"module": Driver()} if "pyodbc" in url else {}
    engine = create_engine(
        url, creator=Connection, poolclass=StaticPool, paramstyle="named", _initialize=False, **module
    )

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        log.append(statement)
        columns = getattr(context.compiled, "_result_columns", None) or ()
        if statement.startswith("DECLARE"):
            columns = ()  # the driver describes no rows of a block
        cursor.description = [(column.keyname, *[None] * 6) for column in columns] or None
        cursor.rows = [tuple(_value(engine, column.keyname, column.type) for column in columns)] if columns else []
        if "scope_identity()" in statement:  # SQLAlchemy 2.0 waits for it
            cursor.rows = [(1,)]

    _initialize(engine, version)
    log.clear()
    return engine, log


def _initialize(engine: Engine, version: tuple[int, ...]) -> None:
    """Set what SQLAlchemy sets on an engine's first connection, on which statements depend."""
    dialect: Any = engine.dialect
    if engine.name == "mariadb":
        text = ".".join(map(str, version))
        dialect._get_server_version_info = lambda _: dialect._parse_server_version(f"{text}-MariaDB")
    elif engine.name != "cockroachdb":  # its dialect always tells the version of PostgreSQL that it resembles
        dialect._get_server_version_info = lambda _: version
    dialect._get_default_schema_name = lambda _: "app"
    dialect.get_default_isolation_level = lambda _: "READ COMMITTED"
    dialect._type_info_fetch = lambda *_: None  # of psycopg, which looks for the optional type hstore
    with engine.connect() as connection:
        dialect.initialize(connection)


_KNOWN = {
    "version_1": COCKROACHDB,
    "kind": "credit_note",
    "status": "available",
    "queue_status": "available",
    "schedule": "PT60S",
    "outcome": "failed",
    "command": "drain",
    "period": None,
}
_KNOWN_MOMENTS = {"created_at": datetime(2025, 12, 31), "expires_at": datetime(2027, 1, 1)}
"""The time in rows: recurring tasks are available since a later time, so that they need not be planned, and no task has
expired."""


def _value(engine: Engine, name: str, kind: Any) -> Any:
    """Return a value of this type, always the same, so that claimed rows match loaded ones."""
    if name in _KNOWN:
        return _KNOWN[name]
    if name in ("some_are_early", "part"):
        return 0
    if isinstance(kind, (Uuid, JSON)):
        return str(KEY) if isinstance(kind, Uuid) else _json(engine, name, kind)
    if "ROWID" in name.upper():
        return ROWID
    try:
        python_type = kind.python_type
    except NotImplementedError:
        return 1
    moment = _KNOWN_MOMENTS.get(name, datetime(2026, 1, 1))
    return {str: "x", datetime: str(moment) if engine.name == "sqlite" else moment}.get(python_type, 1)


def _json(engine: Engine, name: str, kind: Any) -> Any:
    """Return JSON as the driver does: decoded, or as text for SQLAlchemy to decode."""
    if name != "handlers":
        return None
    is_decoded = kind.dialect_impl(engine.dialect).result_processor(engine.dialect, None) is None
    return HANDLERS if is_decoded else json.dumps(HANDLERS)


def answering(engine: Engine, part: str, *rows: tuple[Any, ...]) -> None:
    """Return these rows for statements that contain `part`."""

    @event.listens_for(engine, "before_cursor_execute")
    def answer(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if part in statement:
            cursor.rows = list(rows)
