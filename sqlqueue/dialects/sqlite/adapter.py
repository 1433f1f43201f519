"""SQLite's adapter."""

from __future__ import annotations

from ..base import Adapter
from ..parts.product import Product
from .claims import SQLiteClaims
from .errors import SQLiteErrors
from .inserts import SQLiteInserts
from .keys import SQLiteKeys
from .locking import SQLiteLocking
from .network import SQLiteNetwork
from .plans import SQLitePlans
from .requests import SQLiteRequests
from .schema import SQLiteSchema
from .server import SQLiteServer
from .transactions import SQLiteTransactions
from .types import SQLiteTypes


class SQLite(Adapter):
    """SQLite.  It allows one writer at a time, so a claim becomes the writer before it reads, and locks no rows."""

    def __init__(self) -> None:
        product = Product(dialect="sqlite", name="SQLite", minimum=(3, 35), needed="RETURNING")
        super().__init__(
            product,
            types=SQLiteTypes(),
            locking=SQLiteLocking(SQLiteKeys()),
            claims=SQLiteClaims,
            inserts=SQLiteInserts(product),
            transactions=SQLiteTransactions(product),
            errors=SQLiteErrors(),
            schema=SQLiteSchema(),
            server=SQLiteServer(product),
            plans=SQLitePlans(),
            requests=SQLiteRequests(),
            network=SQLiteNetwork(),
        )
