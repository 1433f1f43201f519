"""Earlier, incorrect statements. The model must find a violation in each, or its results for other statements would
prove nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Select, select

from sqlqueue.dialects import adapters
from sqlqueue.dialects.base import Adapter
from sqlqueue.dialects.mssql import SQLServer, SQLServerRows
from sqlqueue.dialects.mysql import MariaDB, MariaDBRows, MySQL, MySQLRows, force_index
from sqlqueue.dialects.oracle import ClaimBlock, Oracle, OracleRows
from sqlqueue.dialects.statements import ClaimRequest, Rows, skip_locked
from tests.locking import oracle


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


class FormerSQLServer(SQLServer):
    parts = (SQLServer.parts[0], FormerSQLServerRows, *SQLServer.parts[2:])


class FormerOracleRows(OracleRows):
    """Reads as many candidates as are wanted from committed data, and locks those."""

    def lock(self, session: Any, pick: Any, *, locks_only: bool = False) -> list[Any]:
        found = self.keys(session, pick.spec, self.select_candidates(pick, *pick.spec.primary_key))
        free = select(*pick.spec.primary_key).where(*pick.state, *pick.where, self.key_in(pick.spec, found))
        return self.keys(session, pick.spec, free.with_for_update(skip_locked=True)) if found else []


class FormerOracle(Oracle):
    parts = (Oracle.parts[0], FormerOracleRows, *Oracle.parts[2:])


class FormerMySQLRows(MySQLRows):
    """Reads through the index in claim order, whose entries stay locked even if others hold the rows."""

    def select_locking(self, pick: Any, *columns: Any) -> Select[Any]:
        return force_index(skip_locked(pick, *columns), pick.spec, pick.index or "PRIMARY")

    def is_served(self, pick: Any) -> bool:
        return bool(pick.exact)


class FormerMySQL(MySQL):
    parts = (MySQL.parts[0], FormerMySQLRows, *MySQL.parts[2:])


class FormerMariaDB(MariaDB):
    parts = (MariaDB.parts[0], type("FormerMariaDBRows", (FormerMySQLRows, MariaDBRows), {}), *MariaDB.parts[2:])


class OracleWithFormerBlock(oracle.Oracle):
    """The block checks a row again only by its state, and only before it writes."""

    def judged_again(self, block: ClaimBlock) -> Sequence[Any]:
        return block.pick.state if block.assignments else ()


class CrowdedOracleWithFormerBlock(OracleWithFormerBlock, oracle.OracleWithFewSlots):
    pass


FORMER: dict[str, Adapter] = {
    "mssql": FormerSQLServer(),
    "oracle": FormerOracle(),
    "mysql": FormerMySQL(),
    "mariadb": FormerMariaDB(),
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
