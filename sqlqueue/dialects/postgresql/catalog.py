"""Reads from the catalog what SQLAlchemy does not reflect: invalid indexes, triggers, storage parameters, added
columns."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, Column, ColumnElement, Connection, Table, cast, column, func, select, table
from sqlalchemy.dialects import postgresql

from ..naming import live_name

STORAGE_DIALECT = "postgresql"
_PARAMETERS = {
    "fillfactor": "80",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_cost_delay": "0",
    "autovacuum_analyze_scale_factor": "0.02",
}
# with named parameters, so that percent signs are not doubled
_FORMAT = postgresql.dialect(paramstyle="named").identifier_preparer.format_table  # type: ignore[no-untyped-call]
_CLASS = table(
    "pg_class",
    column("oid"),
    column("relname"),
    column("relispartition", Boolean),
    column("reloptions", postgresql.ARRAY(postgresql.TEXT)),
    schema="pg_catalog",
)
_INDEX = table("pg_index", column("indrelid"), column("indexrelid"), column("indisvalid", Boolean), schema="pg_catalog")
_ATTRIBUTE = table("pg_attribute", column("attrelid"), column("attname"), column("attmissingval"), schema="pg_catalog")

_TRIGGER = table(
    "pg_trigger", column("tgrelid"), column("tgname"), column("tgisinternal", Boolean), schema="pg_catalog"
)


def invalid_indexes(connection: Connection, of: Table) -> Collection[str]:
    """Return the names of invalid indexes, which a failed CREATE INDEX CONCURRENTLY leaves behind."""
    names = select(_CLASS.c.relname).join_from(_INDEX, _CLASS, _CLASS.c.oid == _INDEX.c.indexrelid)
    return connection.scalars(names.where(_INDEX.c.indrelid == _oid(connection, of), ~_INDEX.c.indisvalid)).all()


def partitioned_indexes(connection: Connection, names: Collection[str]) -> set[str]:
    """Return the names of the indexes of partitioned tables that the indexes ``names``, of partitions, belong to."""
    root = _CLASS.alias("root")
    belongs = root.c.oid == cast(func.pg_catalog.pg_partition_root(_CLASS.c.oid), postgresql.OID)
    roots = select(root.c.relname).join_from(_CLASS, root, belongs)
    return set(connection.scalars(roots.where(_CLASS.c.relname.in_(names), _CLASS.c.relispartition)))


def trigger_names(connection: Connection, of: Table) -> Collection[str]:
    """Return the names of the triggers of a table, except those of its foreign keys."""
    mine = (_TRIGGER.c.tgrelid == _oid(connection, of)) & ~_TRIGGER.c.tgisinternal
    return connection.scalars(select(_TRIGGER.c.tgname).where(mine)).all()


def storage_statement(of: Table, *, give: bool) -> str:
    """Return the statement that sets the table's storage parameters, or resets them."""
    settings = (f"{name} = {value}" if give else name for name, value in _PARAMETERS.items())
    return f"ALTER TABLE {_FORMAT(of)} {'SET' if give else 'RESET'} ({', '.join(settings)})"


def lacks_storage(connection: Connection, of: Table) -> bool:
    """Return whether one of the parameters is not set on the table; its owner may choose other values."""
    options = connection.scalars(select(_CLASS.c.reloptions).where(_CLASS.c.oid == _oid(connection, of))).all()
    return any(not {*_PARAMETERS} <= {option.split("=")[0] for option in given or ()} for given in options)


def added_at(connection: Connection, to: Column[Any]) -> datetime | None:
    """Return the column's value for rows older than the column, which is stored until the table is rewritten."""
    # the value has a pseudo-type that can only be cast to text
    value = cast(cast(_ATTRIBUTE.c.attmissingval, postgresql.TEXT), postgresql.ARRAY(to.type))
    named = select(value).where(_ATTRIBUTE.c.attrelid == _oid(connection, to.table), _ATTRIBUTE.c.attname == to.name)
    return next(iter(connection.scalar(named) or ()), None)


def _oid(connection: Connection, of: Table) -> ColumnElement[int]:
    return cast(func.pg_catalog.to_regclass(live_name(connection, of)), postgresql.OID)
