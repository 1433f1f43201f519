"""CockroachDB 24.2.3 and newer.  This project has never run it on a real server.

Before 24.1, SKIP LOCKED fails at READ COMMITTED as soon as it encounters a lock (cockroachdb/cockroach#115057), and
until 24.2.3 its LIMIT counts locked rows (#121917).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, ClassVar

from sqlalchemy import Connection, Select, func, select

from ..queue.spec import Finding, Identity, QueueSpec
from .base import Adapter
from .connections import READ_COMMITTED, Interrupt, Transactions
from .inspection import Plans, QueryPlan, explain, read_only
from .naming import Product
from .postgresql import (
    PARTIAL_INDEX,
    CatalogSchema,
    PostgreSQLClaims,
    PostgreSQLErrors,
    PostgreSQLInserts,
    PostgreSQLKeys,
    PostgreSQLLocking,
    PostgreSQLNetwork,
    PostgreSQLServer,
    PostgreSQLTypes,
    PsycopgRequests,
)

_VERSION = re.compile(r"\bv(\d+)\.(\d+)\.(\d+)")
_SORTS = ("sort", "top-k")
_OPERATOR = "\N{BULLET} "
"""The prefix of an operator's name in a plan."""


class CockroachDB(Adapter):
    """CockroachDB.  Uses PostgreSQL's SQL, including for claims, but has no NOTIFY and a different EXPLAIN format."""

    def __init__(self) -> None:
        needed = "a SKIP LOCKED that skips locked rows before it counts them"
        product = Product(dialect="cockroachdb", name="CockroachDB", minimum=(24, 2, 3), needed=needed)
        super().__init__(
            product,
            types=PostgreSQLTypes(),
            locking=CockroachDBLocking(PostgreSQLKeys()),
            claims=PostgreSQLClaims,
            inserts=PostgreSQLInserts(product),
            transactions=CockroachDBTransactions(product),
            errors=PostgreSQLErrors(),
            schema=CockroachDBSchema(),
            server=CockroachDBServer(product),
            plans=CockroachDBPlans(),
            requests=CockroachDBRequests(),
            network=PostgreSQLNetwork(),
        )


class CockroachDBLocking(PostgreSQLLocking):
    """Locking in which a plan that sorts locks all rows that it sorts (cockroachdb/cockroach#173245)."""

    orders_freely: ClassVar[bool] = False


class CockroachDBTransactions(Transactions):
    """At SERIALIZABLE, the default, the server itself retries statements where possible."""

    ends_with_error: ClassVar[bool] = True
    impatient: ClassVar[str | None] = "SET lock_timeout = '1s'"
    harmless_levels: ClassVar[Collection[str]] = (READ_COMMITTED, "SERIALIZABLE")


class CockroachDBSchema(CatalogSchema):
    """The dialect reads PostgreSQL's index options, so indexes already have their predicates."""

    @property
    def predicate_option(self) -> str | None:
        return PARTIAL_INDEX


class CockroachDBServer(PostgreSQLServer):
    """Reads the version from the banner: the dialect reports a PostgreSQL version."""

    def banner(self, connection: Connection) -> str:
        return str(connection.scalar(select(func.pg_catalog.version())))

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        found = _VERSION.search(banner)
        super().judge(tuple(map(int, found.groups())) if found else version, banner)

    def findings(self, connection: Connection) -> Iterator[Finding]:
        if connection.scalar(select(func.pg_catalog.current_setting("default_transaction_read_only"))) == "on":
            yield read_only("transactions start read-only", "set default_transaction_read_only to off for this role")

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        return iter(())

    def hides_rows(self, connection: Connection, spec: QueueSpec) -> bool:
        return False  # there is no row_security_active()

    def lock_owner(self, connection: Connection, spec: QueueSpec, identity: Identity) -> str | None:
        return None  # rows have no xmax


class CockroachDBPlans(Plans):
    """Plans from EXPLAIN, which is a tree in text."""

    def of(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
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


class CockroachDBRequests(PsycopgRequests):
    """Cancels statements through the driver, since there is no process id."""

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.cancel()
