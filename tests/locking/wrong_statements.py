"""Statements that wait where the library's own do not, or that lock more. In each scenario, the model must find
violations in some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select

from sqlqueue.dialects.base import Adapter
from sqlqueue.dialects.mssql import SQLServer, SQLServerClaims, SQLServerKeys, SQLServerLocking
from sqlqueue.dialects.mysql import MySQL, MySQLInserts, MySQLKeys, MySQLLocking
from sqlqueue.dialects.oracle import Oracle, OracleKeys, OracleLocking
from sqlqueue.dialects.postgresql import PostgreSQL, PostgreSQLKeys, PostgreSQLLocking
from sqlqueue.dialects.statements import Claims, Keys, Locking, Rows, skip_locked


class WaitingSQLServer(SQLServerLocking):
    """Without READPAST."""

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return _without_readpast(super().picking(pick, *columns))

    def named(self, spec: Any, *criteria: Any, waits: bool) -> Select[Any]:
        return super().named(spec, *criteria, waits=True)


class ScanningSQLServer(SQLServerLocking):
    """Statements that select rows by key may scan the table; sets are changed by their criteria."""

    sweeps_by_key = False


class ScanningSQLServerKeys(SQLServerKeys):
    def by_key(self, spec: Any, statement: Any) -> Any:
        return statement


class UnnamedIndexSQLServer(SQLServerLocking):
    """Without INDEX, like the statements of the next class."""

    def named(self, spec: Any, *criteria: Any, waits: bool) -> Select[Any]:
        return _without_key_hint(super().named(spec, *criteria, waits=waits))

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return _without_key_hint(super().picking(pick, *columns))


class UnnamedIndexSQLServerKeys(SQLServerKeys):
    def by_key(self, spec: Any, statement: Any) -> Any:
        return _without_key_hint(super().by_key(spec, statement))


class ClingingSQLServerClaims(SQLServerClaims):
    """Keeps locks on rows that are selected by key and do not match."""

    def lock(self, session: Any, pick: Any, *, holds: bool = False) -> list[Any]:
        return super().lock(session, pick)


class LockingEntriesSQLServer(SQLServerLocking):
    """Claims that only lock read the index with UPDLOCK."""

    def is_served(self, pick: Any) -> bool:
        return bool(pick.exact)


class WaitingPostgreSQL(PostgreSQLLocking):
    """Without SKIP LOCKED, like the next two."""

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return pick.select(*columns).limit(pick.limit).with_for_update(key_share=True)


class WaitingOracle(OracleLocking):
    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return super().picking(pick, *columns).with_for_update()


class WaitingMySQL(MySQLLocking):
    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return super().picking(pick, *columns).with_for_update()

    def named(self, spec: Any, *criteria: Any, waits: bool) -> Select[Any]:
        return super().named(spec, *criteria, waits=True)


class ConstantMySQL(MySQLLocking):
    """A row selected by its whole key is read first, and keeps its lock although it does not match."""

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return skip_locked(pick, *columns).with_hint(pick.spec.table, f"FORCE INDEX ({pick.index or 'PRIMARY'})")


class ConstantMySQLKeys(MySQLKeys):
    def key_in(self, spec: Any, keys: Sequence[Any]) -> Any:
        return Keys.key_in(self, spec, keys)


class UnlockedKeysMySQL(MySQLInserts):
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


def _locking(adapter: Adapter, locking: Locking) -> Adapter:
    """Return the adapter with other locking statements."""
    adapter.locking, adapter.keys, adapter.rows = locking, locking.keys, Rows(locking, adapter.errors)
    adapter.claims = type(adapter.claims)(adapter.rows)
    return adapter


def _claiming(adapter: Adapter, claims: type[Claims]) -> Adapter:
    adapter.claims = claims(adapter.rows)
    return adapter


def _inserting(adapter: Adapter, inserts: type[MySQLInserts]) -> Adapter:
    adapter.inserts = inserts(adapter.product)
    return adapter


WRONG: dict[str, Adapter] = {
    "WaitingSQLServer": _locking(SQLServer(), WaitingSQLServer(SQLServerKeys())),
    "ScanningSQLServer": _locking(SQLServer(), ScanningSQLServer(ScanningSQLServerKeys())),
    "UnnamedIndexSQLServer": _locking(SQLServer(), UnnamedIndexSQLServer(UnnamedIndexSQLServerKeys())),
    "ClingingSQLServer": _claiming(SQLServer(), ClingingSQLServerClaims),
    "LockingEntriesSQLServer": _locking(SQLServer(), LockingEntriesSQLServer(SQLServerKeys())),
    "WaitingPostgreSQL": _locking(PostgreSQL(), WaitingPostgreSQL(PostgreSQLKeys())),
    "WaitingOracle": _locking(Oracle(), WaitingOracle(OracleKeys())),
    "WaitingMySQL": _locking(MySQL(), WaitingMySQL(MySQLKeys())),
    "ConstantMySQL": _locking(MySQL(), ConstantMySQL(ConstantMySQLKeys())),
    "UnlockedKeysMySQL": _inserting(MySQL(), UnlockedKeysMySQL),
}
