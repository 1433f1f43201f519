"""SQLAlchemy engines connected to the model, on which the library's own operations run with their own statements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import oracledb
import psycopg
import pymysql
from sqlalchemy import Engine, NullPool, create_engine, event

from sqlqueue.dialects import adapter_for
from tests.dialects.recorder import Connection, Cursor, Driver
from tests.dialects.test_pinned import ENGINES
from tests.locking.server import Answer, DuplicateError, Server


@dataclass
class Line:
    """The server that a connection currently reaches."""

    server: Server
    who: Callable[[], str]
    """Returns the name of the connection that sends a request."""
    pause: Callable[[], None]
    """Called before statements and commits."""


def engine_for(dialect: str, line: Line) -> Engine:
    """Return the engine of a dialect; one for each, so that statements are compiled only once."""
    _LINES[dialect] = line
    engine = _engine(dialect)
    server = adapter_for(engine.dialect).inspection  # no queries about the server itself are sent
    server._verified.add(engine.dialect)
    server._clusters[engine.dialect] = None
    return engine


_LINES: dict[str, Line] = {}


@cache
def _engine(dialect: str) -> Engine:
    url, version = ENGINES[dialect]
    module = {"module": _Driver()} if "pyodbc" in url else {}
    options: dict[str, Any] = {"paramstyle": "named", "_initialize": False, **module}
    engine = create_engine(url, creator=_Connection, poolclass=NullPool, **options)
    engine.dialect.server_version_info = version
    engine.dialect.default_isolation_level = "READ COMMITTED"

    @event.listens_for(engine, "before_execute")
    def note(connection: Any, statement: Any, many: Any, parameters: Any, options: Any) -> None:
        connection.info["sent"] = getattr(statement, "element", statement), many or parameters

    @event.listens_for(engine, "do_execute")
    @event.listens_for(engine, "do_executemany")
    def execute(cursor: _Cursor, text: str, bound: Any, context: Any) -> bool:
        sent, line = context.root_connection.info.pop("sent", None), _LINES[dialect]
        if sent is not None:  # an INSERT of many rows may arrive in several parts
            if "pg_notify" not in text:  # as on a server
                line.pause()
            try:
                answer = line.server.execute(line.server.transaction(line.who()), *sent)
            except DuplicateError as error:
                raise _VIOLATIONS[dialect](error) from error
            _give(answer, cursor, context)
        return True

    @event.listens_for(engine, "commit")
    def commit(_: Any) -> None:
        line = _LINES[dialect]
        line.pause()
        line.server.commit(line.who())

    @event.listens_for(engine, "rollback")
    def rollback(_: Any) -> None:
        line = _LINES[dialect]
        line.server.rollback(line.who())

    return engine


def _give(answer: Answer, cursor: _Cursor, context: Any) -> None:
    returned = getattr(context, "out_parameters", None) or {}
    columns = () if "rowids" in returned else getattr(context.compiled, "_result_columns", None) or ()
    cursor.description = [(column.keyname, *[None] * 6) for column in columns] or None
    names = [column.keyname.upper() for column in columns]
    cursor.rows = [
        tuple(str(value) if "ROWID" in name else value for name, value in zip(names, row, strict=True))
        for row in (answer.rows if columns else ())
    ]
    cursor.rowcount = answer.count
    for name, variable in returned.items():
        if name == "rowids":
            variable.value = "".join(f"{number}," for (number,) in answer.rows)
        else:  # RETURNING
            variable.values = [[row[int(name.removeprefix("ret_"))] for row in answer.rows]]


class _Error(Exception):
    pass


class IntegrityError(_Error):
    """An error that SQLAlchemy identifies by its name."""


class _Driver(Driver):
    Error = OperationalError = ProgrammingError = _Error  # exceptions of the tests are not database errors
    IntegrityError = IntegrityError


_VIOLATIONS: dict[str, Callable[[object], Exception]] = {
    "postgresql": psycopg.errors.UniqueViolation,
    "mysql": lambda error: pymysql.err.IntegrityError(1062, str(error)),
    "mariadb": lambda error: pymysql.err.IntegrityError(1062, str(error)),
    "mssql": lambda error: IntegrityError("23000", f"[23000] {error} (2627) (SQLExecDirectW)"),
    "oracle": lambda error: oracledb.IntegrityError(SimpleNamespace(code=1, full_code="ORA-00001")),
}


class _Variable:
    """An out parameter of Oracle's driver."""

    value: str | None = None
    values: list[list[Any]] = []  # noqa: RUF012  (given as a whole)

    def getvalue(self, position: int = 0) -> Any:
        return self.value


class _Cursor(Cursor):
    def var(self, *_: Any, **__: Any) -> Any:
        return _Variable()


class _Connection(Connection):
    def cursor(self, *_: Any, **__: Any) -> Cursor:
        return _Cursor()
