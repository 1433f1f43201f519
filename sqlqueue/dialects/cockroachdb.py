"""CockroachDB 24.2.3 and newer.  This project has never run it on a real server.

Before 24.1, SKIP LOCKED fails at READ COMMITTED as soon as it encounters a lock (cockroachdb/cockroach#115057), and
until 24.2.3 its LIMIT counts locked rows (#121917).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, Select, func, select

from ..queue.spec import Finding
from .base import Adapter
from .connections import READ_COMMITTED, Interrupt
from .inspection import QueryPlan, explain, read_only
from .naming import Product
from .postgresql import PARTIAL_INDEX, CatalogInspection, PostgreSQLRows, PostgreSQLTypes, PsycopgConnections
from .statements import Rows

_VERSION = re.compile(r"\bv(\d+)\.(\d+)\.(\d+)")
_SORTS = ("sort", "top-k")
_OPERATOR = "\N{BULLET} "
"""The prefix of an operator's name in a plan."""


class CockroachDBRows(PostgreSQLRows):
    """Rows that a plan which sorts locks all (cockroachdb/cockroach#173245)."""

    locks_after_sorting = False
    walks_keys = False
    claims_in_order = False
    begin_look = Rows.begin_look
    claim_lanes = Rows.claim_lanes  # no rows are locked in a lateral subquery


class CockroachDBInspection(CatalogInspection):
    """Reads the version from the banner, since the dialect reports a PostgreSQL version, and plans from EXPLAIN, which
    is a tree in text.

    There is no row_security_active(), and rows have no xmax, from which PostgreSQL's checks read.
    """

    @property
    def predicate_option(self) -> str | None:
        # the dialect reads PostgreSQL's index options, so indexes already have their predicates
        return PARTIAL_INDEX

    def locks_elsewhere(self, connection: Connection) -> bool:
        return True  # weak shared locks are not replicated

    def banner(self, connection: Connection) -> str:
        return str(connection.scalar(select(func.pg_catalog.version())))

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        found = _VERSION.search(banner)
        super().judge(tuple(map(int, found.groups())) if found else version, banner)

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        if connection.scalar(select(func.pg_catalog.current_setting("default_transaction_read_only"))) == "on":
            yield read_only("transactions start read-only", "set default_transaction_read_only to off for this role")

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
        if forced:
            return None
        return plan_of(explain(connection, "EXPLAIN", statement).scalars())


def plan_of(lines: Iterable[str]) -> QueryPlan:
    """Return the plan that these lines of EXPLAIN describe."""
    indexes, sorts = set[str](), 0
    for line in lines:
        _, is_operator, operator = line.partition(_OPERATOR)
        sorts += bool(is_operator) and operator.strip() in _SORTS
        _, is_table, name = line.partition("table: ")
        if is_table:
            indexes.add(name.strip().rpartition("@")[2])
    return QueryPlan(indexes=frozenset(indexes), sorted=sorts)


class CockroachDBConnections(PsycopgConnections):
    """At SERIALIZABLE, the default, the server itself retries statements where possible."""

    harmless_levels = (READ_COMMITTED, "SERIALIZABLE")

    def interruption(self, connection: Connection) -> Interrupt:
        # through the driver, since there is no process id
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.cancel()


class CockroachDB(Adapter):
    """CockroachDB.  Uses PostgreSQL's SQL, including for claims, but has no NOTIFY and a different EXPLAIN format."""

    product = Product(
        dialect="cockroachdb",
        name="CockroachDB",
        minimum=(24, 2, 3),
        needed="a SKIP LOCKED that skips locked rows before it counts them",
    )
    parts = (PostgreSQLTypes, CockroachDBRows, CockroachDBConnections, CockroachDBInspection)
