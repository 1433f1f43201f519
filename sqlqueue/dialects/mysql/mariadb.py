"""MariaDB 10.6 and newer."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from sqlalchemy import Connection, Delete, Table, column, select, table, text

from ...queue.spec import QueueSpec
from ..base import Adapter
from ..naming import Naming
from ..parts.product import Product
from ..parts.schema import LiveIndex, Term
from .catalog import is_of
from .errors import MySQLErrors
from .inserts import MySQLInserts
from .keys import HintedKeys, force_index
from .locking import MySQLLocking
from .network import MariaDBNetwork
from .requests import KilledRequests
from .schema import ListedSchema
from .server import MySQLPlans, MySQLServer
from .transactions import MySQLTransactions
from .types import MySQLTypes

_STATISTICS = table(
    "statistics",
    *map(column, ("table_schema", "table_name", "index_name", "seq_in_index", "column_name")),
    *map(column, ("collation", "non_unique", "ignored")),
    schema="information_schema",
)
_PLACE = (_STATISTICS.c.index_name, _STATISTICS.c.seq_in_index)
_TERM = (_STATISTICS.c.index_name, _STATISTICS.c.column_name, _STATISTICS.c.collation, _STATISTICS.c.non_unique)
_IGNORED = select(*_TERM).where(_STATISTICS.c.ignored == "YES").order_by(*_PLACE)


class MariaDB(Adapter):
    """MariaDB 10.6 and newer."""

    def __init__(self) -> None:
        product = Product(dialect="mariadb", name="MariaDB", minimum=(10, 6), needed="SKIP LOCKED")
        errors = MySQLErrors()
        super().__init__(
            product,
            types=MySQLTypes(exact="utf8mb4_nopad_bin"),
            locking=MySQLLocking(MariaDBKeys()),
            inserts=MySQLInserts(product),
            transactions=MySQLTransactions(product),
            errors=errors,
            schema=MariaDBSchema(),
            server=MySQLServer(product, errors, reads_only="tx_read_only"),
            plans=MySQLPlans(),
            requests=MariaDBRequests(),
            network=MariaDBNetwork(),
        )


class MariaDBKeys(HintedKeys):
    """Uses the form of DELETE that supports index hints."""

    # with 1,000 values or more, IN becomes a join with a derived table, which may read, and lock, rows in any order
    batch: ClassVar[int] = 999

    def deleting(self, spec: QueueSpec, statement: Delete) -> Delete:
        # only the multiple-table form of DELETE, which names the table twice, supports index hints
        target = Naming("{}", spec.table, qualified=True)
        multiple: Delete = force_index(statement.prefix_with(target), spec, "PRIMARY")
        return multiple


class MariaDBSchema(ListedSchema):
    """Finds ignored indexes."""

    reviving: ClassVar[str | None] = "ALTER TABLE {table} ALTER INDEX {index} NOT IGNORED"

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        # SQLAlchemy does not reflect IGNORED indexes
        terms = _IGNORED.where(is_of(connection, table, _STATISTICS))
        ignored = {
            name: LiveIndex(
                terms=tuple(Term(each.column_name, each.collation == "D") for each in rows),
                predicate=None,
                unique=not rows[0].non_unique,
                usable=False,
            )
            for name, group in groupby(connection.execute(terms), key=itemgetter(0))
            if (rows := list(group))
        }
        return {**super().live_indexes(connection, table), **ignored}


class MariaDBRequests(KilledRequests):
    """Limits time with ``max_statement_time``."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        connection.execute(text(f"SET SESSION max_statement_time = {timeout.total_seconds():f}"))

    def lift_limit(self, connection: Connection) -> None:
        connection.execute(text("SET SESSION max_statement_time = DEFAULT"))
