"""An adapter is all that is particular to an engine, in parts."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.engine import Dialect

from .parts.claims import Claims
from .parts.errors import Errors
from .parts.inserts import Inserts
from .parts.locking import Locking
from .parts.notifications import Notifications
from .parts.plans import Plans
from .parts.product import Product
from .parts.requests import Requests
from .parts.rows import Rows
from .parts.schema import Schema
from .parts.server import Server
from .parts.transactions import Transactions
from .parts.types import Types


class Adapter:
    """One engine.  What it does not say is standard SQL as SQLAlchemy compiles it."""

    def __init__(
        self,
        product: Product,
        *,
        types: Types,
        locking: Locking,
        errors: Errors,
        server: Server,
        claims: type[Claims] = Claims,
        inserts: Inserts | None = None,
        transactions: Transactions | None = None,
        schema: Schema | None = None,
        plans: Plans | None = None,
        notifications: Notifications | None = None,
        requests: Requests | None = None,
    ) -> None:
        """Each part that is not given is the standard one; those that have no default the engine must decide."""
        self.product = product
        self.types = types
        self.keys = locking.keys
        self.locking = locking
        self.rows = Rows(locking)
        self.claims = claims(self.rows)
        self.errors = errors
        self.server = server
        self.inserts = inserts or Inserts(product)
        self.transactions = transactions or Transactions(product)
        self.schema = schema or Schema()
        self.plans = plans or Plans()
        self.notifications = notifications or Notifications()
        self.requests = requests or Requests()

    @property
    def name(self) -> str:
        """The name of SQLAlchemy's dialect."""
        return self.product.dialect

    def specialize(self, dialect: Dialect, adapters: Mapping[str, Adapter]) -> Adapter:
        """Return the adapter of the engine that answers, where several speak one dialect (known once connected)."""
        return self
