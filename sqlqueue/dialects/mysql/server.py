"""Checks the server's state and the privileges of an account, and reads plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Select, String, column, false, func, literal_column, null, select, text
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError

from ...queue.spec import Finding, QueueSpec, Severity
from ..naming import live_name
from ..parts.errors import Errors
from ..parts.plans import Plans, QueryPlan, explain
from ..parts.product import Product
from ..parts.server import Server, bare, multi_primary, read_only
from .catalog import PARTITIONS, TABLES, is_of
from .locking import is_partitioned

_CLUSTER_SETTINGS = text(
    "SHOW GLOBAL VARIABLES WHERE variable_name IN"
    " ('wsrep_on', 'wsrep_provider', 'group_replication_single_primary_mode')"
).columns(column("name", String), column("value", String))
_OFF = ("0", "OFF")
_READ_ONLY = (1290, 1792, 1836)
"""The server or the transaction is read-only, regardless of the account's privileges."""


class MySQLServer(Server):
    """Detects replicas and unsuitable storage engines; checks privileges with EXPLAIN."""

    def __init__(self, product: Product, errors: Errors, *, reads_only: str) -> None:
        """``reads_only``: the name of the session variable for read-only transactions."""
        super().__init__(product)
        self._errors = errors
        self._reads_only = reads_only

    def banner(self, connection: Connection) -> str:
        return str(connection.scalar(select(func.version())))

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        if "tidb" in banner.lower():
            self.refuse(f"(TiDB, {banner})", "MySQL itself, or MariaDB,", "SKIP LOCKED, which TiDB does not support")
        if "vitess" in banner.lower():
            lacked = "ordering, unique indexes and atomic commits across all shards, which Vitess does not guarantee"
            self.refuse(f"(Vitess, {banner})", "MySQL itself, or MariaDB,", lacked)
        super().judge(version, banner)

    def findings(self, connection: Connection) -> Iterator[Finding]:
        of_session = literal_column(f"@@session.{self._reads_only}", String)
        if connection.scalar(select(func.upper(of_session))) not in _OFF:
            yield read_only("transactions start read-only", "SET SESSION TRANSACTION READ WRITE")
        of_server = literal_column("@@global.read_only", String)
        if connection.scalar(select(func.upper(of_server))) not in _OFF:
            yield read_only("read_only is set on this server, as on a replica", "connect to the primary")
        if cluster := self.cluster(connection):
            yield multi_primary(cluster)

    def cluster(self, connection: Connection) -> str | None:
        # servers built without cluster support do not have these variables, so they cannot be selected
        settings = {name.lower(): value for name, value in connection.execute(_CLUSTER_SETTINGS)}
        if settings.get("wsrep_on") == "ON" and settings.get("wsrep_provider", "none") != "none":
            return "a Galera cluster (wsrep_on is ON)"
        if settings.get("group_replication_single_primary_mode") == "OFF":
            return "a replication group of several primaries (group_replication_single_primary_mode is OFF)"
        return None

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        storage = connection.scalar(select(TABLES.c.engine).where(is_of(connection, spec.table, TABLES)))
        if storage and storage.upper() != "INNODB":
            name = live_name(connection, spec.table)
            message = (
                f"{spec.table.fullname} uses the storage engine {storage}, which has no transactions: claims are not"
                " exclusive"
            )
            fix = f"ALTER TABLE {name} ENGINE = InnoDB"
            yield Finding.of(spec, Severity.ERROR, "storage-engine", message, fix)
        partitioned = PARTITIONS.c.partition_name.is_not(None)
        parts = connection.scalar(select(func.count()).where(is_of(connection, spec.table, PARTITIONS), partitioned))
        if parts and not is_partitioned(spec.table):
            message = f"{spec.table.fullname} has partitions that its model does not declare: claims are out of order"
            fix = f'__table_args__ = {{"{self.product.dialect}_partition_by": "..."}}, as the table has it'
            yield Finding.of(spec, Severity.WARNING, "undeclared-partitions", message, fix)

    def unindexed_reference(self, connection: Connection) -> str | None:
        return None  # InnoDB creates an index for each foreign key, and does not let it be dropped

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # EXPLAIN needs the privileges of the statement, and takes roles, patterns and column privileges into account
        target = bare(connection, spec.table, live)
        nothing: dict[str, Any] = {each.name: null() for each in spec.columns.values() if each.name in target.c}
        asked: dict[str, Any] = {
            "SELECT": select(*target.columns).where(false()),
            "INSERT": target.insert().values({each.name: null() for each in target.columns}),
            "UPDATE": target.update().values(nothing).where(false()),
            "DELETE": target.delete().where(false()),
        }
        return [privilege for privilege, statement in asked.items() if self._is_refused(connection, statement)]

    def _is_refused(self, connection: Connection, statement: Any) -> bool:
        try:
            explain(connection, "EXPLAIN", statement).close()
        except DBAPIError as error:
            if not self._errors.is_denied(error) and self._errors.code(error) not in _READ_ONLY:
                raise
            return self._errors.is_denied(error)
        return False


class MySQLPlans(Plans):
    """Plans from EXPLAIN in its traditional format."""

    def of(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
        if forced:
            return None  # a claim forces its index anyway
        rows = explain(connection, "EXPLAIN FORMAT=TRADITIONAL", statement).mappings().all()
        return QueryPlan(
            indexes=frozenset(row["key"] for row in rows if row["key"]),
            sorted=sum("filesort" in (row["Extra"] or "") for row in rows),
        )
