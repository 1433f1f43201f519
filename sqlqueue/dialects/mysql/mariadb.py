"""MariaDB 10.6 and newer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

from sqlalchemy import Connection, Delete, Select, Table, column, func, select, table, text
from sqlalchemy.orm import Session

from ...queue.spec import Identity, QueueSpec
from ...sql.clock import utcnow
from ...sql.selection import Pick, is_available
from ..base import Adapter
from ..naming import Naming
from ..parts.claims import Claims
from ..parts.product import Product
from ..parts.schema import LiveIndex, Term
from .catalog import is_of
from .errors import MySQLErrors
from .inserts import MySQLInserts
from .keys import HintedKeys, force_index
from .locking import MySQLLocking
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
_PASSED = 300
"""So many rows, locked by others, a claim is expected to pass."""


class MariaDB(Adapter):
    """MariaDB 10.6 and newer."""

    def __init__(self) -> None:
        product = Product(dialect="mariadb", name="MariaDB", minimum=(10, 6), needed="SKIP LOCKED")
        errors = MySQLErrors()
        super().__init__(
            product,
            types=MySQLTypes(exact="utf8mb4_nopad_bin"),
            locking=MySQLLocking(MariaDBKeys()),
            claims=MariaDBClaims,
            inserts=MySQLInserts(product),
            transactions=MySQLTransactions(product),
            errors=errors,
            schema=MariaDBSchema(),
            server=MySQLServer(product, errors, reads_only="tx_read_only"),
            plans=MySQLPlans(),
            requests=MariaDBRequests(),
        )


class MariaDBKeys(HintedKeys):
    """With the form of DELETE that takes index hints."""

    # from 1,000 values on an IN becomes a join with a derived table, which may be read, and locked, in any order
    batch: ClassVar[int] = 999

    def deleting(self, spec: QueueSpec, statement: Delete) -> Delete:
        # index hints belong to the form of DELETE that names its tables twice
        target = Naming("{}", spec.table, qualified=True)
        multiple: Delete = force_index(statement.prefix_with(target), spec, "PRIMARY")
        return multiple


class MariaDBSchema(ListedSchema):
    """With ignored indexes."""

    reviving: ClassVar[str | None] = "ALTER TABLE {table} ALTER INDEX {index} NOT IGNORED"

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        # one that is IGNORED, SQLAlchemy does not find
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


class MariaDBClaims(Claims):
    """Claims as MySQL does, but for available rows whose moment has not come.

    MySQL lets go of an entry of an index that it has locked and found not to match; MariaDB keeps it until the end of
    the transaction.  So a claim looks first whether it would come upon such rows, and does not go by the index if so.
    """

    def lock(self, session: Session, pick: Pick) -> list[Identity]:
        if pick.exact and pick.index is not None:
            looking = pick.made.get((self, "early"), partial(self._looking_for_early, pick))
            some_are_early = self.rows.execute(session, pick.spec, looking).scalar()
            if some_are_early is None:
                return []  # none is available
            if some_are_early:
                return super().lock(session, replace(pick, exact=False))
        return super().lock(session, pick)

    def _looking_for_early(self, pick: Pick) -> Select[Any]:
        """Whether one is available for a later moment, as far from the front as a claim goes to get past others."""
        available = replace(pick, state=(is_available(pick.spec),), limit=_PASSED + 4 * pick.limit)
        nearest = self.rows.locking.looking(available, pick.spec["available_at"].label("moment")).subquery("nearest")
        return select((func.max(nearest.c.moment) > utcnow()).label("some_are_early"))


class MariaDBRequests(KilledRequests):
    """With a limit of MariaDB's own."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        connection.execute(text(f"SET SESSION max_statement_time = {timeout.total_seconds():f}"))
