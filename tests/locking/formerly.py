"""Statements as they once were, each of which the model has to refute: else it could not be believed of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Select, select

from sqlqueue.dialects import adapters
from sqlqueue.dialects.base import Adapter
from sqlqueue.dialects.mssql import SQLServer
from sqlqueue.dialects.oracle import ClaimBlock, Oracle
from tests.locking import oracle


class FormerSQLServer(SQLServer):
    """Selects nothing but keys, which an index covers; goes by the index whatever else it is to judge; sets change by
    their criteria; and what reads by key may read all of a small table."""

    def picking(self, pick: Any, *columns: Any) -> Select[Any]:
        seek = "" if pick.index is None else f", FORCESEEK, INDEX({pick.index})"
        picked = pick.select(*columns).limit(pick.limit)
        return picked.with_hint(pick.spec.table, f"WITH (ROWLOCK, UPDLOCK, READPAST{seek})")

    def lock(self, session: Any, pick: Any) -> list[Any]:
        return self.keys(session, pick.spec, self.picking(pick, *pick.spec.primary_key))

    def take(
        self,
        session: Any,
        pick: Any,
        assignments: Any,
        parameters: Any = None,
        *,
        delete: Any = False,
        options: Any = (),
    ) -> list[Any]:
        if not assignments or delete:
            return Adapter.take(self, session, pick, assignments, parameters, delete=delete, options=options)
        rows = self.execute(session, pick.spec, self.claiming(pick, assignments), parameters).all()
        return self.load(session, pick.spec, [tuple(row[len(pick.order) :]) for row in rows], options)

    def loading(self, spec: Any, count: int, *, latest: bool) -> Select[Any]:
        return select(spec.entity).where(self.keys_named(spec, count))

    def by_key(self, spec: Any, statement: Any) -> Any:
        return statement if isinstance(statement, Select) else statement.with_hint("WITH (ROWLOCK, FORCESEEK)")

    def sweep(self, session: Any, spec: Any, statement: Any, limit: int | None = None) -> int:
        return self.count(session, spec, statement)


class FormerOracle(Oracle):
    """Looks for as many candidates as are wanted, by what is committed, and locks those."""

    def lock(self, session: Any, pick: Any) -> list[Any]:
        found = self.keys(session, pick.spec, self.looking(pick, *pick.spec.primary_key))
        named = select(*pick.spec.primary_key).where(*pick.state, *pick.where, self.key_in(pick.spec, found))
        return self.keys(session, pick.spec, named.with_for_update(skip_locked=True)) if found else []


class OracleWithFormerBlock(oracle.Oracle):
    """The block judges a row again by its state, and only before it writes."""

    def judged_again(self, block: ClaimBlock) -> Sequence[Any]:
        return block.pick.state if block.assignments else ()


FORMER: dict[str, Adapter] = {"mssql": FormerSQLServer(), "oracle": FormerOracle()}


@contextmanager
def former(dialect: str, adapter: Adapter | None = None) -> Iterator[None]:
    """In here, the library speaks to this engine as it once did, or as this ``adapter`` does."""
    present = adapters()[dialect]
    adapters()[dialect] = adapter or FORMER[dialect]
    try:
        yield
    finally:
        adapters()[dialect] = present
