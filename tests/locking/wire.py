"""SQLAlchemy engines in front of the model: the library's own operations run on it, with its own statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine, event

from tests.dialects.recorder import Connection, Cursor, Driver
from tests.dialects.test_pinned import ENGINES
from tests.locking.server import Answer, Server


def engine_for(dialect: str, server: Server, who: Callable[[], str], pause: Callable[[], None]) -> Engine:
    """``who`` says by whose connection a request comes; ``pause`` is called before statements and commits."""
    url, version = ENGINES[dialect]
    module = {"module": _Driver()} if "pyodbc" in url else {}
    engine = create_engine(url, creator=_Connection, poolclass=NullPool, paramstyle="named", _initialize=False, **module)
    engine.dialect.server_version_info = version
    engine.dialect.default_isolation_level = "READ COMMITTED"

    @event.listens_for(engine, "before_execute")
    def note(connection: Any, statement: Any, many: Any, parameters: Any, options: Any) -> None:
        connection.info["sent"] = getattr(statement, "element", statement), many or parameters

    @event.listens_for(engine, "do_execute")
    @event.listens_for(engine, "do_executemany")
    def execute(cursor: _Cursor, text: str, bound: Any, context: Any) -> bool:
        sent = context.root_connection.info.pop("sent", None)
        if sent is not None:  # an INSERT of many rows may come in several parts
            pause()
            answer = server.execute(server.transaction(who()), *sent)
            _give(answer, cursor, context)
        return True

    @event.listens_for(engine, "commit")
    def commit(_: Any) -> None:
        pause()
        server.commit(who())

    @event.listens_for(engine, "rollback")
    def rollback(_: Any) -> None:
        server.rollback(who())

    return engine


def _give(answer: Answer, cursor: _Cursor, context: Any) -> None:
    columns = getattr(context.compiled, "_result_columns", None) or ()
    cursor.description = [(column.keyname, *[None] * 6) for column in columns] or None
    names = [column.keyname.upper() for column in columns]
    cursor.rows = [
        tuple(str(value) if "ROWID" in name else value for name, value in zip(names, row, strict=True))
        for row in (answer.rows if columns else ())
    ]
    cursor.rowcount = answer.count
    for name, variable in (getattr(context, "out_parameters", None) or {}).items():
        if name == "rowids":
            variable.value = "".join(f"{number}," for (number,) in answer.rows)
        else:  # RETURNING
            variable.values = [[row[int(name.removeprefix("ret_"))] for row in answer.rows]]


class _Error(Exception):
    pass


class _Driver(Driver):
    Error = OperationalError = IntegrityError = ProgrammingError = _Error  # a test's own exceptions are none of these


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
