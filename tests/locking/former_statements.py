"""Earlier, incorrect statements. The model must find a violation in each, or its results for other statements would
prove nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Select, select

from sqlqueue.dialects import adapters
from sqlqueue.dialects.base import Adapter
from sqlqueue.dialects.mssql import SQLServer, SQLServerClaims, SQLServerKeys, SQLServerLocking
from sqlqueue.dialects.mysql import MariaDB, MySQL, MySQLLocking, force_index
from sqlqueue.dialects.oracle import ClaimBlock, Oracle, OracleClaims
from sqlqueue.dialects.statements import Claims, Rows, Taking, skip_locked
from tests.locking import oracle


class FormerSQLServer(SQLServer):
    """Selects only keys, which an index covers; uses the index regardless of the criteria; changes sets by their
    criteria; and may scan a small table for a key."""

    def __init__(self) -> None:
        super().__init__()
        self.locking = FormerSQLServerLocking(FormerSQLServerKeys())
        self.keys = self.locking.keys
        self.rows = Rows(self.locking, self.errors)
        self.claims = FormerSQLServerClaims(self.rows)


class FormerSQLServerKeys(SQLServerKeys):
    def by_key(self, spec: Any, statement: Any) -> Any:
        return statement if isinstance(statement, Select) else statement.with_hint("WITH (ROWLOCK, FORCESEEK)")


class FormerSQLServerLocking(SQLServerLocking):
    sweeps_by_key = False

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        seek = "" if pick.index is None else f", FORCESEEK, INDEX({pick.index})"
        picked = pick.select(*columns).limit(pick.limit)
        return picked.with_hint(pick.spec.table, f"WITH (ROWLOCK, UPDLOCK, READPAST{seek})")

    def is_served(self, pick: Any) -> bool:
        return True

    def loading(self, spec: Any, count: int, *, latest: bool) -> Select[Any]:
        return select(spec.entity).where(self.keys.keys_named(spec, count))


class FormerSQLServerClaims(SQLServerClaims):
    def take(self, session: Any, taking: Taking) -> list[Any]:
        pick = taking.pick
        if not taking.assignments or taking.delete:
            return Claims.take(self, session, taking)
        rows = self.rows.execute(session, pick.spec, self.claiming(pick, taking.assignments), taking.parameters).all()
        keys = [tuple(row[len(pick.order) :]) for row in rows]
        return self.rows.load(session, pick.spec, keys, taking.options)


class FormerOracle(Oracle):
    """Reads as many candidates as are wanted from committed data, and locks those."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = FormerOracleClaims(self.rows)


class FormerOracleClaims(OracleClaims):
    def lock(self, session: Any, pick: Any, *, holds: bool = False) -> list[Any]:
        rows, locking = self.rows, self.rows.locking
        found = rows.keys(session, pick.spec, locking.looking(pick, *pick.spec.primary_key))
        free = select(*pick.spec.primary_key).where(*pick.state, *pick.where, locking.keys.key_in(pick.spec, found))
        return rows.keys(session, pick.spec, free.with_for_update(skip_locked=True)) if found else []


class FormerMySQLLocking(MySQLLocking):
    """Reads through the index in claim order, whose entries stay locked even if others hold the rows."""

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        return force_index(skip_locked(pick, *columns), pick.spec, pick.index or "PRIMARY")

    def is_served(self, pick: Any) -> bool:
        return bool(pick.exact)


def _by_index(adapter: Adapter) -> Adapter:
    adapter.locking = FormerMySQLLocking(adapter.keys)
    adapter.rows = Rows(adapter.locking, adapter.errors)
    adapter.claims = Claims(adapter.rows)
    return adapter


class OracleWithFormerBlock(oracle.Oracle):
    """The block checks a row again only by its state, and only before it writes."""

    def judged_again(self, block: ClaimBlock) -> Sequence[Any]:
        return block.pick.state if block.assignments else ()


class CrowdedOracleWithFormerBlock(OracleWithFormerBlock, oracle.OracleWithFewSlots):
    pass


FORMER: dict[str, Adapter] = {
    "mssql": FormerSQLServer(),
    "oracle": FormerOracle(),
    "mysql": _by_index(MySQL()),
    "mariadb": _by_index(MariaDB()),
}


@contextmanager
def former(dialect: str, adapter: Adapter | None = None) -> Iterator[None]:
    """A context in which the library uses its earlier statements for this engine, or those of ``adapter``."""
    present = adapters()[dialect]
    adapters()[dialect] = adapter or FORMER[dialect]
    try:
        yield
    finally:
        adapters()[dialect] = present
