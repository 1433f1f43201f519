"""The adapter of an engine: everything that is specific to the engine, in four parts."""

from __future__ import annotations

from typing import ClassVar

from .connections import Connections
from .inspection import Inspection, Types
from .naming import Product
from .statements import Rows


class Adapter:
    """One engine.  Everything that its parts do not define is standard SQL, compiled by SQLAlchemy."""

    product: ClassVar[Product]
    parts: ClassVar[tuple[type[Types], type[Rows], type[Connections], type[Inspection]]]

    def __init__(self) -> None:
        types, rows, connections, inspection = self.parts
        self.types = types()
        self.connections = connections(self.product)
        self.rows = rows(self.product, self.connections)
        self.inspection = inspection(self.product, self.connections)

    @property
    def name(self) -> str:
        """The name of SQLAlchemy's dialect."""
        return self.product.dialect
