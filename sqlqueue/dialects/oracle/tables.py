"""Checks a table's organization and keys, and how the session and the database treat its texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    String,
    Table,
    Unicode,
    Uuid,
    and_,
    column,
    outparam,
    select,
    table,
    text,
)
from sqlalchemy.sql.expression import TableClause

from ...queue.spec import Finding, QueueSpec, Severity
from ...sql.rows import KeyText
from ..naming import live_name

_PARAMETERS, _DATABASE = (
    table(name, column("parameter", String), column("value", String), schema="sys")
    for name in ("nls_session_parameters", "nls_database_parameters")
)
_TABLES = table("all_tables", *map(column, ("owner", "table_name", "iot_type", "row_movement")), schema="sys")
_IDENTITIES = table(
    "all_tab_identity_cols",
    *(column(name, String) for name in ("owner", "table_name", "column_name", "identity_options")),
    schema="sys",
)
_PARTITIONED_BY = [
    table(name, *map(column, ("owner", "name", "object_type")), column("column_name", String), schema="sys")
    for name in ("all_part_key_columns", "all_subpart_key_columns")
]
_UNICODE = ("AL32UTF8", "UTF8", "UTFE")
"""The character sets of databases that can store all texts."""
_CLAIMED = ("status", "available_at", "attempt", "max_attempts", "claimed_by", "claimed_at", "claim_token", "crashes")
"""The roles of the columns that a claim writes."""
_SETTLED = ("finished_at", "error")
_IS_CLUSTER = text(
    "BEGIN :clustered := CASE WHEN sys.dbms_utility.is_cluster_database THEN 1 ELSE 0 END; END;"
).bindparams(outparam("clustered", Integer()))
"""Not v$parameter, which ordinary accounts cannot read.  A BOOLEAN can be selected since 23ai only."""


def owner_of(connection: Connection, of: Table) -> Any:
    """Return the owner of a table, as the dictionary writes it."""
    dialect: Any = connection.dialect
    return dialect.denormalize_name(connection.schema_for_object(of) or dialect.default_schema_name)


def comparison(connection: Connection) -> Mapping[str, str]:
    """Return the session's parameters NLS_COMP and NLS_SORT."""
    asked = select(_PARAMETERS).where(_PARAMETERS.c.parameter.in_(("NLS_COMP", "NLS_SORT")))
    return {each[0]: each[1] for each in connection.execute(asked)}


def findings_of_table(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield the problems of a queue's existing table."""
    yield from _of_storage(connection, spec)
    yield from _of_order(connection, spec)
    yield from _of_characters(connection, spec)
    yield from _of_identity(connection, spec)


def _of_storage(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    stored = select(_TABLES.c.iot_type, _TABLES.c.row_movement).where(_is_of(connection, spec.table, _TABLES))
    index_organized, moves = connection.execute(stored).one_or_none() or (None, None)
    if index_organized:
        message = (
            f"{spec.table.fullname} is index-organized: a claim returns rowids, and those of such a table are too long"
            " for a claim of many tasks, which fails (ORA-06502)"
        )
        fix = "copy its rows into a table with ORGANIZATION HEAP, which is the default"
        yield Finding.of(spec, Severity.ERROR, "index-organized", message, fix)
    changed = {spec[role].name for role in (*_CLAIMED, *(() if moves == "ENABLED" else _SETTLED))}
    dialect: Any = connection.dialect
    by = {
        dialect.normalize_name(name)
        for source in _PARTITIONED_BY
        for name in connection.scalars(
            select(source.c.column_name).where(
                _is_of(connection, spec.table, source, source.c.name), source.c.object_type.like("TABLE%")
            )
        )
    }
    if moving := sorted(by & changed):
        message = (
            f"{spec.table.fullname} is partitioned by {', '.join(moving)}, which the queue changes: the row would move"
            " to another partition, where its claim does not find it, or the change fails (ORA-14402)"
        )
        fix = "partition it by columns that do not change, such as its primary key or created_at"
        yield Finding.of(spec, Severity.ERROR, "partition-key", message, fix)


def _of_order(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield a finding if the session does not sort the texts of the claim order as indexes do."""
    texts = sorted({term.column.name for term in (*spec.ready_order, *spec.due_order) if _is_text(term.column)})
    if texts and (sort := comparison(connection).get("NLS_SORT", "BINARY")) != "BINARY":
        message = (
            f"NLS_SORT is {sort}, by which no index orders {', '.join(texts)}: a claim from {spec.table.fullname} reads"
            " and sorts all ready tasks"
        )
        fix = "ALTER SESSION SET NLS_SORT = BINARY on each new connection"
        yield Finding.of(spec, Severity.WARNING, "linguistic-order", message, fix)


def _of_characters(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield a finding if the database cannot store all characters of the queue's keys."""
    keys = {column.name for column in spec.columns.values() if isinstance(column.type, KeyText)}
    keys |= {column.name for column in spec.primary_key if _is_text(column) and not isinstance(column.type, Unicode)}
    if not keys:
        return
    asked = select(_DATABASE.c.value).where(_DATABASE.c.parameter == "NLS_CHARACTERSET")
    if (characters := connection.scalar(asked)) not in _UNICODE:
        message = (
            f"the character set of this database is {characters}: keys in {', '.join(sorted(keys))} of"
            f" {spec.table.fullname} that differ only in other characters are stored as the same key"
        )
        fix = "keep such keys to characters of that set, or migrate the database to AL32UTF8"
        yield Finding.of(spec, Severity.NOTE, "character-set", message, fix)  # nobody can change it at will


def _of_identity(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield a finding if the messages of an outbox are not numbered in the order of their transactions."""
    if "message_key" not in spec.columns:  # other queues are not ordered by their keys
        return
    options = select(_IDENTITIES.c.column_name, _IDENTITIES.c.identity_options)
    for name, option in connection.execute(options.where(_is_of(connection, spec.table, _IDENTITIES))):
        if "ORDER_FLAG: Y" in option or not _is_cluster(connection):
            continue
        dialect: Any = connection.dialect
        key, target = dialect.normalize_name(name), live_name(connection, spec.table)
        message = (
            f"this database is a cluster, each instance of which numbers {key} of {spec.table.fullname} from a range of"
            " its own: messages with the same message_key may be published out of order"
        )
        fix = (
            f"ALTER TABLE {target} MODIFY ({key} GENERATED BY DEFAULT AS IDENTITY (ORDER)), and Identity(order=True),"
            " or oracle_order=True since SQLAlchemy 2.1, in the model"
        )
        yield Finding.of(spec, Severity.WARNING, "unordered-identity", message, fix)


def _is_cluster(connection: Connection) -> bool:
    parameters: Any = connection.execute(_IS_CLUSTER).out_parameters  # type: ignore[attr-defined]
    return bool(parameters["clustered"] == 1)


def _is_text(of: ColumnElement[Any] | Column[Any]) -> bool:
    return isinstance(of.type, String | KeyText) and not isinstance(of.type, Uuid)


def _is_of(
    connection: Connection, of: Table, source: TableClause, name: ColumnElement[Any] | None = None
) -> ColumnElement[bool]:
    dialect: Any = connection.dialect
    named = source.c.table_name if name is None else name
    return and_(source.c.owner == owner_of(connection, of), named == dialect.denormalize_name(of.name))
