"""MySQL's parts."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.engine import Dialect

from ..base import Adapter
from ..parts.product import Product
from .errors import MySQLErrors
from .inserts import MySQLInserts
from .keys import MySQLKeys
from .locking import MySQLLocking
from .network import MySQLNetwork
from .requests import MySQLRequests
from .schema import MySQLSchema
from .server import MySQLPlans, MySQLServer
from .transactions import MySQLTransactions
from .types import MySQLTypes


class MySQL(Adapter):
    """MySQL 8.0.2 and newer."""

    def __init__(self) -> None:
        product = Product(dialect="mysql", name="MySQL", minimum=(8, 0, 2), needed="window functions")
        errors = MySQLErrors()
        super().__init__(
            product,
            types=MySQLTypes(exact="utf8mb4_0900_bin"),
            locking=MySQLLocking(MySQLKeys()),
            inserts=MySQLInserts(product),
            transactions=MySQLTransactions(product),
            errors=errors,
            schema=MySQLSchema(),
            server=MySQLServer(product, errors, reads_only="transaction_read_only"),
            plans=MySQLPlans(),
            requests=MySQLRequests(),
            network=MySQLNetwork(),
        )

    def specialize(self, dialect: Dialect, adapters: Mapping[str, Adapter]) -> Adapter:
        return adapters["mariadb"] if getattr(dialect, "is_mariadb", False) else self
