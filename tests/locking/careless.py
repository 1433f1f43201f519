"""Statements that wait where the library's own do not, or lock more: by each scene the model has to refute some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select
from sqlqueue.dialects.keys import Keys
from sqlqueue.dialects.rows import Rows

from sqlqueue.dialects.base import Adapter
from sqlqueue.dialects.mssql import SQLServer
from sqlqueue.dialects.mysql import MySQL
from sqlqueue.dialects.oracle import Oracle
from sqlqueue.dialects.postgresql import PostgreSQL


class WaitingSQLServer(SQLServer):
    """Without READPAST."""

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return _without_readpast(super().picking(pick, *columns))

    def locking(self, spec: Any, *named: Any, waits: bool) -> Select[Any]:
        return super().locking(spec, *named, waits=True)


class ScanningSQLServer(SQLServer):
    """What names rows by their keys may read all of the table; sets are changed by their criteria."""

    def by_key(self, spec: Any, statement: Any) -> Any:
        return statement

    def sweep(self, session: Any, spec: Any, statement: Any, limit: int | None = None) -> int:
        return self.count(session, spec, statement)


class WaitingPostgreSQL(PostgreSQL):
    """Without SKIP LOCKED, as the next two."""

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return pick.select(*columns).limit(pick.limit).with_for_update(key_share=True)


class WaitingOracle(Oracle):
    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return super().picking(pick, *columns).with_for_update()


class WaitingMySQL(MySQL):
    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return super().picking(pick, *columns).with_for_update()

    def locking(self, spec: Any, *named: Any, waits: bool) -> Select[Any]:
        return super().locking(spec, *named, waits=True)


class ConstantMySQL(MySQL):
    """A row that is named by its whole key is read by that, and keeps its lock although it does not match."""

    def key_in(self, spec: Any, keys: Sequence[Any]) -> Any:
        return Keys.key_in(self, spec, keys)

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        statement = Rows.picking(self, pick, *columns)
        return statement.with_hint(pick.spec.table, f"FORCE INDEX ({pick.index or 'PRIMARY'})")


class UnlockedKeysMySQL(MySQL):
    """Goes by a unique key and not by the row: whoever completes that has the row and wants the key."""

    key_before_row = False


def _without_readpast(statement: Select[Any]) -> Select[Any]:
    hints: Any = {key: hint.replace("READPAST, ", "") for key, hint in statement._hints.items()}
    bare = statement._clone()
    bare._hints = bare._hints.__class__(hints)
    return bare


CARELESS: dict[str, Adapter] = {
    each.__name__: each()
    for each in (
        WaitingSQLServer,
        ScanningSQLServer,
        WaitingPostgreSQL,
        WaitingOracle,
        WaitingMySQL,
        ConstantMySQL,
        UnlockedKeysMySQL,
    )
}
