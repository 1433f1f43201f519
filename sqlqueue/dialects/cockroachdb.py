"""CockroachDB, for those who outgrow one machine.  Never run on a real server by this project."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from sqlalchemy import Connection

from .base import Adapter
from .parts.product import Product
from .parts.requests import Interrupt
from .parts.transactions import READ_COMMITTED, Transactions
from .postgresql.claims import PostgreSQLClaims, PostgreSQLLocking
from .postgresql.errors import PostgreSQLErrors
from .postgresql.inserts import PostgreSQLInserts
from .postgresql.keys import PostgreSQLKeys
from .postgresql.requests import PsycopgRequests
from .postgresql.schema import PARTIAL_INDEX, CatalogSchema
from .postgresql.server import PostgreSQLServer
from .postgresql.types import PostgreSQLTypes


class CockroachDB(Adapter):
    """Speaks PostgreSQL's language, claim included.  It has no NOTIFY, and its EXPLAIN has a form of its own."""

    def __init__(self) -> None:
        product = Product(dialect="cockroachdb", name="CockroachDB", minimum=(22, 2), needed="SKIP LOCKED")
        super().__init__(
            product,
            types=PostgreSQLTypes(),
            locking=PostgreSQLLocking(PostgreSQLKeys()),
            claims=PostgreSQLClaims,
            inserts=PostgreSQLInserts(product),
            transactions=CockroachDBTransactions(product),
            errors=PostgreSQLErrors(),
            schema=CockroachDBSchema(),
            server=PostgreSQLServer(product),
            requests=CockroachDBRequests(),
        )


class CockroachDBTransactions(Transactions):
    """At SERIALIZABLE, its default, it retries what it can by itself."""

    harmless_levels: ClassVar[Collection[str]] = (READ_COMMITTED, "SERIALIZABLE")


class CockroachDBSchema(CatalogSchema):
    """Its dialect reads the options of PostgreSQL's, which an index therefore has already."""

    @property
    def predicate_option(self) -> str | None:
        return PARTIAL_INDEX


class CockroachDBRequests(PsycopgRequests):
    """Ends a statement by the driver: there is no number of a process."""

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.cancel()
