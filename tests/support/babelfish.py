"""Replaces what Babelfish lacks of SQL Server, on engines whose URL names this plugin, and on no other.

Neither SQLAlchemy's classes nor the library know of it.  Statements are changed below SQLAlchemy's events, so tests
that look at statements see the library's own.  How a server is to be set up is told by babelfish.sql beside this file.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
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


def _rollback(rollback: Any, connection: Any) -> None:
    """Errors end transactions there, and FreeTDS does not hear of it."""
    try:
        rollback(connection)
    except Exception as error:
        if "(3903)" not in str(error):
            raise


def adapted(statement: str) -> str:
    """``statement`` in words that Babelfish knows."""
    if statement.startswith("SET IDENTITY_INSERT "):
        return "SET NOCOUNT OFF"  # INSERT .. OUTPUT has no result then; keys may be given without it, see babelfish.sql
    if claim := _CLAIM.fullmatch(statement):
        return _claiming(**claim.groupdict())
    return _VIEW.sub(lambda found: f"sys.sqlqueue_{found[1].lower()}", statement)


def _claiming(picked: str, table: str, values: str, output: str) -> str:
    """It updates no common table expression."""
    same = " AND ".join(f"{table}.{key} = picked.{key}" for key in _KEY.findall(output))
    return f"WITH picked AS ({picked}) UPDATE {table} SET {values} OUTPUT {output} FROM picked WHERE {same}"


def _keep_to_one_thread(_dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> None:
    """A statement goes on in its thread when its coroutine is cancelled, and SQLAlchemy closes the connection.

    From another thread, that crashes FreeTDS.
    """
    options["executor"] = ThreadPoolExecutor(1)


def _limit_waiting(connection: Any, _record: object) -> None:
    """A test that waits for what it has locked itself would never end."""
    with closing(connection.cursor()) as cursor:
        cursor.execute("SET LOCK_TIMEOUT 20000")
    connection.commit()


def _isolation_level(connection: Any) -> str:
    """There is no sys.system_views, which SQLAlchemy looks at first; SNAPSHOT is another name of REPEATABLE READ."""
    with closing(connection.cursor()) as cursor:
        cursor.execute("SELECT upper(current_setting('transaction_isolation'))")
        return str(cursor.fetchone()[0])
