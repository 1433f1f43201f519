"""Earlier or incorrect statements. The model must find a violation in each, or its results for other statements would
prove nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Select, select

from sqlqueue.dialects import adapters
from sqlqueue.dialects.mssql import SQLServer, SQLServerRows
from sqlqueue.dialects.mysql import MariaDB, MariaDBRows, MySQL, MySQLRows, force_index
from sqlqueue.dialects.oracle import ClaimBlock, Oracle, OracleRows
from sqlqueue.dialects.postgresql import PostgreSQL, PostgreSQLRows
from sqlqueue.dialects.statements import ClaimRequest, Rows, skip_locked
from tests.locking import oracle

# -- earlier statements, by engine ------------------------------------------------------------------------------------


class FormerSQLServerRows(SQLServerRows):
    """Selects only keys, which an index covers; uses the index regardless of the criteria; changes sets by their
    criteria; and may scan a small table for a key."""

    sweeps_by_key = False

    def by_key(self, spec: Any, statement: Any) -> Any:
        return statement if isinstance(statement, Select) else statement.with_hint("WITH (ROWLOCK, FORCESEEK)")

    def select_locking(self, pick: Any, *columns: Any) -> Select[Any]:
        seek = "" if pick.index is None else f", FORCESEEK, INDEX({pick.index})"
        picked = pick.select(*columns).limit(pick.limit)
        return picked.with_hint(pick.spec.table, f"WITH (ROWLOCK, UPDLOCK, READPAST{seek})")

    def is_served(self, pick: Any) -> bool:
        return True

    def select_instances(self, spec: Any, count: int, *, latest: bool) -> Select[Any]:
        return select(spec.entity).where(self.key_in_parameters(spec, count))

    def lock_and_write(self, session: Any, request: ClaimRequest) -> list[Any]:
        pick = request.pick
        if not request.assignments or request.delete:
            return Rows.lock_and_write(self, session, request)
        claiming = self.claiming(pick, request.assignments)
        keys = [tuple(row[len(pick.order) :]) for row in self.execute(session, pick.spec, claiming, request.parameters)]
        return self.load(session, pick.spec, keys, request.options)


class FormerOracleRows(OracleRows):
    """Reads as many candidates as are wanted from committed data, and locks those."""

    def lock(self, session: Any, pick: Any, *, locks_only: bool = False) -> list[Any]:
        found = self.keys(session, pick.spec, self.select_candidates(pick, *pick.spec.primary_key))
        free = select(*pick.spec.primary_key).where(*pick.state, *pick.where, self.key_in(pick.spec, found))
        return self.keys(session, pick.spec, free.with_for_update(skip_locked=True)) if found else []

    def lock_and_write(self, session: Any, request: ClaimRequest) -> list[Any]:
        return Rows.lock_and_write(self, session, request)


class FormerMySQLRows(MySQLRows):
    """Reads through the index in claim order, whose entries stay locked even if others hold the rows."""

    def select_locking(self, pick: Any, *columns: Any) -> Select[Any]:
        return force_index(skip_locked(pick, *columns), pick.spec, pick.index or "PRIMARY")

    def is_served(self, pick: Any) -> bool:
        return bool(pick.exact)


class FormerMariaDBRows(FormerMySQLRows, MariaDBRows):
    pass


class OracleWithFormerBlock(oracle.Oracle):
    """The block checks a row again only by its state, and only before it writes."""

    def judged_again(self, block: ClaimBlock) -> Sequence[Any]:
        return block.pick.state if block.assignments else ()


class CrowdedOracleWithFormerBlock(OracleWithFormerBlock, oracle.OracleWithFewSlots):
    pass


# -- statements that wait where the library's own do not, or that lock more -------------------------------------------


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


# -- their use ---------------------------------------------------------------------------------------------------------

FORMER_ROWS: dict[str, type[Rows]] = {
    "mssql": FormerSQLServerRows,
    "oracle": FormerOracleRows,
    "mysql": FormerMySQLRows,
    "mariadb": FormerMariaDBRows,
}
_ADAPTERS = (SQLServer, Oracle, MySQL, MariaDB, PostgreSQL)


@contextmanager
def sending(dialect: str, rows: type[Rows]) -> Iterator[None]:
    """A context in which the library sends these statements to this engine."""
    present = adapters()[dialect]
    (kind,) = (each for each in _ADAPTERS if each.product.dialect == dialect)
    adapter = kind()
    adapter.rows = rows(adapter.product, adapter.connections)
    adapters()[dialect] = adapter
    try:
        yield
    finally:
        adapters()[dialect] = present
