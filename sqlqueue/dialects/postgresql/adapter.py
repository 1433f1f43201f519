"""PostgreSQL's parts."""

from __future__ import annotations

from ..base import Adapter
from ..parts.product import Product
from .claims import PostgreSQLClaims, PostgreSQLLocking
from .errors import PostgreSQLErrors
from .inserts import PostgreSQLInserts
from .keys import PostgreSQLKeys
from .network import PostgreSQLNetwork
from .notifications import PostgreSQLNotifications
from .requests import PostgreSQLRequests
from .schema import PostgreSQLSchema
from .server import PostgreSQLPlans, PostgreSQLServer
from .transactions import PostgreSQLTransactions
from .types import PostgreSQLTypes


class PostgreSQL(Adapter):
    """PostgreSQL 12 and newer."""

    def __init__(self) -> None:
        product = Product(dialect="postgresql", name="PostgreSQL", minimum=(12,), needed="AS MATERIALIZED")
        super().__init__(
            product,
            types=PostgreSQLTypes(),
            locking=PostgreSQLLocking(PostgreSQLKeys()),
            claims=PostgreSQLClaims,
            inserts=PostgreSQLInserts(product),
            transactions=PostgreSQLTransactions(product),
            errors=PostgreSQLErrors(),
            schema=PostgreSQLSchema(),
            server=PostgreSQLServer(product),
            plans=PostgreSQLPlans(),
            notifications=PostgreSQLNotifications(),
            requests=PostgreSQLRequests(),
            network=PostgreSQLNetwork(),
        )
