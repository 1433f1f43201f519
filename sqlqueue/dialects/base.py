"""The adapter of an engine: everything that is specific to the engine, composed of parts."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.engine import Dialect

from .connections import Errors, Network, Notifications, Requests, Transactions
from .inspection import Plans, Schema, Server, Types
from .naming import Product
from .statements import Claims, Inserts, Locking, Rows


class Adapter:
    """One engine.  Everything that its parts do not define is standard SQL, compiled by SQLAlchemy."""

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
        network: Network | None = None,
    ) -> None:
        """Parts that are not given are the standard ones; parts without a default are required."""
        self.product = product
        self.types = types
        self.keys = locking.keys
        self.locking = locking
        self.rows = Rows(locking, errors)
        self.claims = claims(self.rows)
        self.errors = errors
        self.server = server
        self.inserts = inserts or Inserts(product)
        self.transactions = transactions or Transactions(product)
        self.schema = schema or Schema()
        self.plans = plans or Plans()
        self.notifications = notifications or Notifications()
        self.requests = requests or Requests()
        self.network = network or Network()

    @property
    def name(self) -> str:
        """The name of SQLAlchemy's dialect."""
        return self.product.dialect

    def specialize(self, dialect: Dialect, adapters: Mapping[str, Adapter]) -> Adapter:
        """Return the adapter of the connected engine, where several engines share one dialect."""
        return self
