"""Replaces SQL Server features that Babelfish lacks, only on engines whose URL names this plugin. SQLAlchemy's classes
and the library are not modified.  Statements are changed below SQLAlchemy's events, so tests that inspect statements
see the library's own. babelfish.sql, next to this file, sets up the server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import URL, Engine, event
from sqlalchemy.dialects import plugins
from sqlalchemy.engine import CreateEnginePlugin
from sqlalchemy.sql.compiler import InsertmanyvaluesSentinelOpts

PLUGIN = "sqlqueue_babelfish"

_CLAIM = re.compile(
    r"WITH picked AS \n\((?P<picked>SELECT .*\nFROM (?P<table>[^\n]+?) WITH \(.*)\)\n"
    r" UPDATE picked SET (?P<values>.*?) OUTPUT (?P<output>.*)",
    re.DOTALL,
)
_KEY = re.compile(r"inserted\.(.+?)(?= AS |, |$)")
_VIEW = re.compile(
    r"(?<![\w.])\[?(?:sys|INFORMATION_SCHEMA)\]?\.\[?"
    r"(objects|indexes|key_constraints|identity_columns|referential_constraints)\b\]?",
    re.IGNORECASE,
)
"""The system views that babelfish.sql replaces."""


class Babelfish(CreateEnginePlugin):
    def update_url(self, url: URL) -> URL:
        return url

    def engine_created(self, engine: Engine) -> None:
        dialect: Any = engine.dialect
        dialect.do_execute = partial(_execute, dialect.do_execute)
        if "FreeTDS" not in engine.url.query.get("driver", ""):
            dialect.do_execute = partial(_execute_typed, dialect.do_execute)
            dialect.do_executemany = partial(_execute_each, dialect)
            dialect.do_set_input_sizes = _keep_sizes
        dialect.do_rollback = partial(_rollback, dialect.do_rollback)
        dialect.get_isolation_level = _isolation_level
        # INSERT .. OUTPUT .. SELECT FROM (VALUES ..) ORDER BY is a syntax error there: rows are inserted one by one
        dialect.insertmanyvalues_implicit_sentinel = InsertmanyvaluesSentinelOpts.NOT_SUPPORTED
        event.listen(engine, "connect", _limit_waiting)
        if dialect.is_async:
            event.listen(engine, "do_connect", _keep_to_one_thread)


plugins.register(PLUGIN, __name__, Babelfish.__name__)


def _execute(execute: Any, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
    execute(cursor, adapted(statement), parameters, context)


def _execute_typed(execute: Any, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
    """Spare Microsoft's driver questions about types, which Babelfish does not answer.

    Without an answer, pyodbc cuts times to whole seconds, so they are sent as text.  For None it asks as well, and the
    failure undoes what the transaction has written so far, so NULL is written into the statement.
    """
    values = [each.isoformat(" ", "microseconds") if isinstance(each, datetime) else each for each in parameters]
    sizes = getattr(context, "sqlqueue_sizes", None) or [None] * len(values)
    parts = statement.split("?")
    if None in values and len(parts) == len(values) + 1:
        marks = ("NULL" if value is None else "?" for value in values)
        statement = "".join(part for pair in zip(parts, (*marks, ""), strict=True) for part in pair)
        sizes = [size for size, value in zip(sizes, values, strict=True) if value is not None]
        values = [value for value in values if value is not None]
    cursor.setinputsizes(sizes)
    execute(cursor, statement, tuple(values), context)


def _execute_each(dialect: Any, cursor: Any, statement: str, rows: Sequence[Any], context: Any = None) -> None:
    for parameters in rows:
        dialect.do_execute(cursor, statement, parameters, context)


def _keep_sizes(_cursor: Any, sizes: Sequence[Any], context: Any) -> None:
    context.sqlqueue_sizes = [size if isinstance(size, tuple) else (size, None, None) for _, size, _ in sizes]


def _rollback(rollback: Any, connection: Any) -> None:
    """Roll back; on Babelfish an error ends the transaction without FreeTDS being notified."""
    try:
        rollback(connection)
    except Exception as error:
        if "(3903)" not in str(error):
            raise


def adapted(statement: str) -> str:
    """Return ``statement`` in a form that Babelfish accepts."""
    if statement.startswith("SET IDENTITY_INSERT "):
        # with it, INSERT .. OUTPUT returns nothing; keys can be set without it, see babelfish.sql
        return "SET NOCOUNT OFF"
    if claim := _CLAIM.fullmatch(statement):
        return _claiming(**claim.groupdict())
    return _VIEW.sub(lambda found: f"sys.sqlqueue_{found[1].lower()}", statement)


def _claiming(picked: str, table: str, values: str, output: str) -> str:
    """Rewrite a claim, because Babelfish cannot update a common table expression."""
    same = " AND ".join(f"{table}.{key} = picked.{key}" for key in _KEY.findall(output))
    return f"WITH picked AS ({picked}) UPDATE {table} SET {values} OUTPUT {output} FROM picked WHERE {same}"


def _keep_to_one_thread(_dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> None:
    """Use each connection in one thread. When a coroutine is cancelled, its statement continues in its thread while
    SQLAlchemy closes the connection, and from another thread that crashes FreeTDS.
    """
    options["executor"] = ThreadPoolExecutor(1)


def _limit_waiting(connection: Any, _record: object) -> None:
    """Limit waits for locks, or a test that waits for its own locks would never end."""
    with closing(connection.cursor()) as cursor:
        cursor.execute("SET LOCK_TIMEOUT 20000")
    connection.commit()


def _isolation_level(connection: Any) -> str:
    """Return the isolation level: Babelfish has no sys.system_views, which SQLAlchemy reads first, and reports SNAPSHOT
    as REPEATABLE READ."""
    with closing(connection.cursor()) as cursor:
        cursor.execute("SELECT upper(current_setting('transaction_isolation'))")
        return str(cursor.fetchone()[0])
