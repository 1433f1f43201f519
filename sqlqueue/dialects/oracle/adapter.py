"""Oracle's parts."""

from __future__ import annotations

from ..base import Adapter
from ..parts.product import Product
from .claims import OracleClaims, OracleKeys, OracleLocking
from .errors import OracleErrors
from .inserts import OracleInserts
from .network import OracleNetwork
from .requests import OracleRequests
from .schema import OracleSchema
from .server import OracleServer
from .types import OracleTypes


class Oracle(Adapter):
    """Oracle Database 12.2 and newer."""

    def __init__(self) -> None:
        product = Product(
            dialect="oracle", name="Oracle Database", minimum=(12, 2), needed="FETCH FIRST and long names"
        )
        super().__init__(
            product,
            types=OracleTypes(),
            locking=OracleLocking(OracleKeys()),
            claims=OracleClaims,
            inserts=OracleInserts(product),
            errors=OracleErrors(),
            schema=OracleSchema(),
            server=OracleServer(product),
            requests=OracleRequests(),
            network=OracleNetwork(),
        )
