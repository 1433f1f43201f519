"""Checks the server's state and the privileges of an account, and reads plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    Select,
    String,
    and_,
    any_,
    cast,
    column,
    false,
    func,
    literal_column,
    or_,
    select,
    table,
    true,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import ReflectedColumn

from ...queue.spec import Finding, Identity, QueueSpec, Severity
from ..naming import live_name
from ..parts.plans import Plans, QueryPlan, explain
from ..parts.server import Server, read_only
from .catalog import partitioned_indexes

_SESSIONS = table(
    "pg_stat_activity",
    *map(column, ("pid", "usename", "application_name", "state", "backend_xid")),
    schema="pg_catalog",
)
_SCHEMAS = table("pg_namespace", column("nspname", String), column("nspowner"), column("nspacl"), schema="pg_catalog")
_ROLES = table("pg_roles", column("oid"), column("rolname", String), column("rolsuper"), schema="pg_catalog")
_DISTRIBUTED = table("pg_dist_partition", *map(column, ("logicalrelid", "partmethod")))
"""The catalog of Citus.  The method of a table that is not distributed is 'n'."""
_ATTRIBUTES = table("pg_attribute", column("attrelid"), column("attname", String), schema="pg_catalog")
_SEQUENCES = table("pg_sequence", column("seqrelid"), column("seqcache", Integer), schema="pg_catalog")


class PostgreSQLServer(Server):
    """Detects standbys, tables that Citus distributes, and messages whose keys are not in order; checks privileges on
    schemas, columns and sequences."""

    def findings(self, connection: Connection) -> Iterator[Finding]:
        read_only_default = func.pg_catalog.current_setting("default_transaction_read_only")
        state: Any = connection.execute(select(func.pg_catalog.pg_is_in_recovery(), read_only_default)).one()
        standby, default = state
        if standby:
            yield read_only("this server is a hot standby", "connect to the primary")
        if default == "on":
            yield read_only("transactions start read-only", "set default_transaction_read_only to off for this role")
        quoted = connection.dialect.identifier_preparer.quote
        for schema, role in connection.execute(_intruders()):
            message = (
                f"{role or 'every role'} may create functions and operators in the schema {schema}, which is in the"
                " search_path: this account's statements could call them instead of built-in ones"
            )
            grantee = quoted(role) if role else "PUBLIC"
            fix = f"REVOKE CREATE ON SCHEMA {quoted(schema)} FROM {grantee}, or leave it out of the search_path"
            yield Finding(severity=Severity.WARNING, code="open-schema", message=message, fix=fix)

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        yield from _of_distribution(connection, spec)
        if "message_key" in spec.columns:  # other queues are not ordered by their keys
            yield from _of_sequences(connection, spec)

    def hides_rows(self, connection: Connection, spec: QueueSpec) -> bool:
        name = live_name(connection, spec.table)
        return connection.scalar(select(func.pg_catalog.row_security_active(func.pg_catalog.to_regclass(name)))) is True

    def lock_owner(self, connection: Connection, spec: QueueSpec, identity: Identity) -> str | None:
        # the system column xmax shows the transaction that locked a row last, unless several share the lock
        last = select(cast(literal_column("xmax"), String)).where(spec.key(identity)).scalar_subquery()
        told = select(*_SESSIONS.c).where(cast(_SESSIONS.c.backend_xid, String) == last)
        owner = connection.execute(told).one_or_none()
        if owner is None:
            return None
        program = f", {owner.application_name}" if owner.application_name else ""
        return f"{owner.usename} (backend {owner.pid}{program}, {owner.state})"

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        schema = connection.schema_for_object(spec.table)
        if schema and not connection.scalar(select(func.pg_catalog.has_schema_privilege(schema, "USAGE"))):
            return [f"USAGE on the schema {schema}"]
        # privileges on single columns are enough, if they cover the needed columns
        name = live_name(connection, spec.table)
        of_queue = {each.name for each in spec.columns.values()}
        present = [column["name"] for column in live]
        needed = {"SELECT": present, "INSERT": present, "UPDATE": [each for each in present if each in of_queue]}
        rights = {
            privilege: and_(*(func.pg_catalog.has_column_privilege(name, each, privilege) for each in columns))
            for privilege, columns in needed.items()
        }
        rights["DELETE"] = func.pg_catalog.has_table_privilege(name, "DELETE")
        for each in live:
            if "nextval(" in (each["default"] or ""):  # an identity needs no separate privilege
                sequence = func.pg_catalog.pg_get_serial_sequence(name, each["name"])
                right = func.coalesce(func.pg_catalog.has_sequence_privilege(sequence, "USAGE"), true())
                rights[f"USAGE on the sequence of {each['name']}"] = right
        granted = connection.execute(select(*(right.label(None) for right in rights.values()))).one()
        return [privilege for privilege, has in zip(rights, granted, strict=True) if not has]


def _of_distribution(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    if connection.scalar(select(cast(func.pg_catalog.to_regclass(_DISTRIBUTED.name), String))) is None:
        return
    name = live_name(connection, spec.table)
    relation = cast(_DISTRIBUTED.c.logicalrelid, String) == cast(func.pg_catalog.to_regclass(name), String)
    if connection.scalar(select(_DISTRIBUTED.c.partmethod != "n").where(relation)):
        message = (
            f"{spec.table.fullname} is distributed by Citus, which rejects FOR UPDATE across shards: nothing"
            " can be claimed"
        )
        fix = f"keep queues in tables that are not distributed: SELECT undistribute_table('{name}')"
        yield Finding.of(spec, Severity.ERROR, "distributed-table", message, fix)


def _of_sequences(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about keys of an outbox that are not generated in the order of their transactions."""
    name = live_name(connection, spec.table)
    sequence = func.pg_catalog.to_regclass(func.pg_catalog.pg_get_serial_sequence(name, _ATTRIBUTES.c.attname))
    is_its = _SEQUENCES.c.seqrelid == cast(sequence, postgresql.OID)
    keys = (
        select(_ATTRIBUTES.c.attname, cast(sequence, String), _SEQUENCES.c.seqcache)
        .join_from(_ATTRIBUTES, _SEQUENCES, is_its)
        .where(_ATTRIBUTES.c.attrelid == cast(func.pg_catalog.to_regclass(name), postgresql.OID))
        .where(_ATTRIBUTES.c.attname.in_([key.name for key in spec.primary_key]), _SEQUENCES.c.seqcache > 1)
    )
    for key, numbers, cached in connection.execute(keys):
        message = (
            f"each session takes {cached} numbers at once from {numbers}, which generates {key} of"
            f" {spec.table.fullname}: messages with the same message_key may be published out of order"
        )
        fix = f"ALTER SEQUENCE {numbers} CACHE 1"
        yield Finding.of(spec, Severity.WARNING, "unordered-identity", message, fix)


def _intruders() -> Select[*tuple[Any, ...]]:
    """Return a query for the schemas of the search_path in which others may create objects, with each such role, or
    ``None`` for all roles.  Owners and superusers are trusted."""
    granted = func.pg_catalog.aclexplode(_SCHEMAS.c.nspacl).table_valued("grantee", "privilege_type", name="granted")
    searched = _SCHEMAS.c.nspname == any_(func.pg_catalog.current_schemas(true()))
    may_create = and_(granted.c.privilege_type == "CREATE", granted.c.grantee != _SCHEMAS.c.nspowner)
    trusted = func.coalesce(or_(_ROLES.c.rolsuper, _ROLES.c.rolname == func.current_user()), false())
    return (
        select(_SCHEMAS.c.nspname, _ROLES.c.rolname)
        .select_from(_SCHEMAS.join(granted, true()).outerjoin(_ROLES, _ROLES.c.oid == granted.c.grantee))
        .where(searched, may_create, ~trusted)
        .order_by(_SCHEMAS.c.nspname, _ROLES.c.rolname)
    )


class PostgreSQLPlans(Plans):
    """Plans from EXPLAIN in JSON format."""

    def of(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
        if not forced:
            return _plan(connection, statement)
        with connection.begin_nested() as savepoint:
            for way in ("seqscan", "sort", "bitmapscan"):
                connection.execute(select(func.pg_catalog.set_config(f"enable_{way}", "off", true())))
            plan = _plan(connection, statement)
            savepoint.rollback()  # resets the settings
        return plan


def _plan(connection: Connection, statement: Select[Any]) -> QueryPlan:
    (found,) = explain(connection, "EXPLAIN (FORMAT JSON)", statement).scalar_one()
    nodes = list(_nodes(found["Plan"]))
    names = {node["Index Name"] for node in nodes if "Index Name" in node}
    return QueryPlan(
        indexes=frozenset(names | partitioned_indexes(connection, names)),
        sorted=sum(node["Plan Rows"] for node in nodes if "Sort" in node["Node Type"]),
    )


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)
