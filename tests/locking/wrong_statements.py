"""Statements that wait where the library's own do not, or that lock more. In each scenario, the model must find
violations in some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select

from sqlqueue.dialects.base import Adapter
from sqlqueue.dialects.mssql import SQLServer, SQLServerRows
from sqlqueue.dialects.mysql import MySQL, MySQLRows
from sqlqueue.dialects.oracle import Oracle, OracleRows
from sqlqueue.dialects.postgresql import PostgreSQL, PostgreSQLRows
from sqlqueue.dialects.statements import Rows, skip_locked


class WaitingSQLServer(SQLServerRows):
    """Without READPAST."""

    def select_locking(self, pick: Any, *columns: Any) -> Select[Any]:
        return _without_readpast(super().select_locking(pick, *columns))

    def select_by_key(self, spec: Any, *criteria: Any, waits: bool) -> Select[Any]:
        return super().select_by_key(spec, *criteria, waits=True)


class ScanningSQLServer(SQLServerRows):
    """Statements that select rows by key may scan the table; sets are changed by their criteria."""

    sweeps_by_key = False

    def by_key(self, spec: Any, statement: Any) -> Any:
        return statement


class UnnamedIndexSQLServer(SQLServerRows):
    """Without INDEX."""

    def select_by_key(self, spec: Any, *criteria: Any, waits: bool) -> Select[Any]:
        return _without_key_hint(super().select_by_key(spec, *criteria, waits=waits))

    def select_locking(self, pick: Any, *columns: Any) -> Select[Any]:
        return _without_key_hint(super().select_locking(pick, *columns))

    def by_key(self, spec: Any, statement: Any) -> Any:
        return _without_key_hint(super().by_key(spec, statement))


class ClingingSQLServer(SQLServerRows):
    """Keeps locks on rows that are selected by key and do not match."""

    def lock(self, session: Any, pick: Any, *, locks_only: bool = False) -> list[Any]:
        return super().lock(session, pick)


class LockingEntriesSQLServer(SQLServerRows):
    """Claims that only lock read the index with UPDLOCK."""

    def is_served(self, pick: Any) -> bool:
        return bool(pick.exact)


class WaitingPostgreSQL(PostgreSQLRows):
    """Without SKIP LOCKED, like the next two."""

    def select_locking(self, pick: Any, *columns: Any) -> Select[Any]:
        return pick.select(*columns).limit(pick.limit).with_for_update(key_share=True)


class WaitingOracle(OracleRows):
    def select_locking(self, pick: Any, *columns: Any) -> Select[Any]:
        return super().select_locking(pick, *columns).with_for_update()


class WaitingMySQL(MySQLRows):
    def select_locking(self, pick: Any, *columns: Any) -> Select[Any]:
        return super().select_locking(pick, *columns).with_for_update()

    def select_by_key(self, spec: Any, *criteria: Any, waits: bool) -> Select[Any]:
        return super().select_by_key(spec, *criteria, waits=True)


class ConstantMySQL(MySQLRows):
    """A row selected by its whole key is read first, and keeps its lock although it does not match."""

    def select_locking(self, pick: Any, *columns: Any) -> Select[Any]:
        return skip_locked(pick, *columns).with_hint(pick.spec.table, f"FORCE INDEX ({pick.index or 'PRIMARY'})")

    def key_in(self, spec: Any, keys: Sequence[Any]) -> Any:
        return Rows.key_in(self, spec, keys)


class UnlockedKeysMySQL(MySQLRows):
    """Finds the row by a unique key, while a completion holds the row and waits for the key."""

    key_before_row = False


def _without_readpast(statement: Select[Any]) -> Select[Any]:
    return _without(statement, "READPAST, ")


def _without_key_hint(statement: Any) -> Any:
    return _without(statement, ", INDEX(1)")


def _without(statement: Any, part: str) -> Any:
    hints: Any = {key: hint.replace(part, "") for key, hint in statement._hints.items()}
    bare = statement._clone()
    bare._hints = bare._hints.__class__(hints)
    return bare


def _with(adapter: type[Adapter], rows: type[Rows]) -> Adapter:
    """Return an adapter of this engine with other statements."""
    made = adapter()
    made.rows = rows(made.product, made.connections)
    return made


WRONG: dict[str, Adapter] = {
    rows.__name__: _with(adapter, rows)
    for adapter, rows in (
        (SQLServer, WaitingSQLServer),
        (SQLServer, ScanningSQLServer),
        (SQLServer, UnnamedIndexSQLServer),
        (SQLServer, ClingingSQLServer),
        (SQLServer, LockingEntriesSQLServer),
        (PostgreSQL, WaitingPostgreSQL),
        (Oracle, WaitingOracle),
        (MySQL, WaitingMySQL),
        (MySQL, ConstantMySQL),
        (MySQL, UnlockedKeysMySQL),
    )
}
