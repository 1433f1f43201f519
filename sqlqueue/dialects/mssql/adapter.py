"""SQL Server's parts."""

from __future__ import annotations

from ..base import Adapter
from ..parts.product import Product
from .claims import SQLServerClaims
from .errors import SQLServerErrors
from .inserts import SQLServerInserts
from .keys import SQLServerKeys
from .locking import SQLServerLocking
from .network import SQLServerNetwork
from .requests import SQLServerRequests
from .schema import SQLServerSchema
from .server import SQLServerServer
from .transactions import SQLServerTransactions
from .types import SQLServerTypes


class SQLServer(Adapter):
    """SQL Server 2016 and newer, and Azure SQL."""

    def __init__(self) -> None:
        product = Product(
            dialect="mssql",
            name="SQL Server",
            minimum=(13,),
            needed="filtered indexes and DATETIME2 arithmetic as this library uses them",
        )
        errors = SQLServerErrors()
        super().__init__(
            product,
            types=SQLServerTypes(),
            locking=SQLServerLocking(SQLServerKeys()),
            claims=SQLServerClaims,
            transactions=SQLServerTransactions(product, errors),
            inserts=SQLServerInserts(product),
            errors=errors,
            schema=SQLServerSchema(),
            server=SQLServerServer(product),
            requests=SQLServerRequests(),
            network=SQLServerNetwork(),
        )
