"""A server's state, its plans, and the rights of an account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, func, select, true
from sqlalchemy.engine.interfaces import ReflectedColumn

from ...queue.findings import Finding
from ...queue.spec import QueueSpec
from ..naming import live_name
from ..parts.plans import Plan, Plans, explain
from ..parts.server import Server, read_only


class PostgreSQLServer(Server):
    """Standbys, and rights to schemas, columns and sequences."""

    def findings(self, connection: Connection) -> Iterator[Finding]:
        standby, default = connection.execute(
            select(func.pg_is_in_recovery(), func.current_setting("default_transaction_read_only"))
        ).one()
        if standby:
            yield read_only("this server is a hot standby", "connect to the primary")
        if default == "on":
            yield read_only("transactions start read-only", "set default_transaction_read_only to off for this role")

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        schema = connection.schema_for_object(spec.table)
        if schema and not connection.scalar(select(func.has_schema_privilege(schema, "USAGE"))):
            return [f"USAGE on the schema {schema}"]
        # rights to single columns are enough, if they are the right ones
        name = live_name(connection, spec.table)
        of_queue = {each.name for each in spec.columns.values()}
        present = [column["name"] for column in live]
        needed = {"SELECT": present, "INSERT": present, "UPDATE": [each for each in present if each in of_queue]}
        rights = {
            privilege: and_(*(func.has_column_privilege(name, each, privilege) for each in columns))
            for privilege, columns in needed.items()
        }
        rights["DELETE"] = func.has_table_privilege(name, "DELETE")
        for column in live:
            if "nextval(" in (column["default"] or ""):  # an identity needs no right of its own
                sequence = func.pg_get_serial_sequence(name, column["name"])
                right = func.coalesce(func.has_sequence_privilege(sequence, "USAGE"), true())
                rights[f"USAGE on the sequence of {column['name']}"] = right
        granted = connection.execute(select(*(right.label(None) for right in rights.values()))).one()
        return [privilege for privilege, has in zip(rights, granted, strict=True) if not has]


class PostgreSQLPlans(Plans):
    """EXPLAIN as JSON."""

    def of(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> Plan | None:
        if not forced:
            return _plan(connection, statement)
        with connection.begin_nested() as savepoint:
            for way in ("seqscan", "sort", "bitmapscan"):
                connection.execute(select(func.set_config(f"enable_{way}", "off", true())))
            plan = _plan(connection, statement)
            savepoint.rollback()  # and the settings with it
        return plan


def _plan(connection: Connection, statement: Select[Any]) -> Plan:
    (found,) = explain(connection, "EXPLAIN (FORMAT JSON)", statement).scalar_one()
    nodes = list(_nodes(found["Plan"]))
    return Plan(
        indexes=frozenset(node["Index Name"] for node in nodes if "Index Name" in node),
        sorted=sum(node["Plan Rows"] for node in nodes if "Sort" in node["Node Type"]),
    )


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)
