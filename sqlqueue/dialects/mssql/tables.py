"""Checks a table's settings, its indexes, and the procedures and triggers that refer to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, String, Unicode, cast, func, literal, or_, select
from sqlalchemy.dialects import mssql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from ...queue.spec import Finding, QueueSpec, Severity
from ..naming import live_name, plain
from .keys import collation_of, index_of_key
from .schema import INDEXES, SQLServerSchema, is_of, name_of

_READERS = ("View", "ScalarFunction", "InlineFunction", "TableFunction")


def findings_of_table(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield the problems of a queue's existing table."""
    has_ansi_nulls = func.objectproperty(func.object_id(name_of(connection, spec.table)), "IsAnsiNullsOn")
    if connection.scalar(select(has_ansi_nulls)) == 0:  # NULL where the property is unknown
        message = (
            f"{spec.table.fullname} was created with ANSI_NULLS off, which filtered indexes do not allow: creating"
            " them fails (error 1935)"
        )
        fix = "copy its rows into a table that is created with SET ANSI_NULLS ON"
        yield Finding.of(spec, Severity.WARNING, "ansi-nulls", message, fix)
    if modules := _unsuited_modules(connection, spec):
        message = (
            f"{', '.join(modules)} had QUOTED_IDENTIFIER or ANSI_NULLS off when created: what they write to"
            f" {spec.table.fullname} fails (error 1934) because of its filtered indexes"
        )
        fix = "SET QUOTED_IDENTIFIER ON, SET ANSI_NULLS ON, and then ALTER each with the definition that it has"
        yield Finding.of(spec, Severity.WARNING, "set-options", message, fix)
    name = live_name(connection, spec.table)
    own = {index.name for index in spec.table.indexes}
    without = select(INDEXES.c.name, INDEXES.c.is_primary_key).where(INDEXES.c.allow_row_locks == 0)
    for index, is_key in connection.execute(without.where(is_of(connection, spec.table)).order_by(INDEXES.c.name)):
        if not is_key and index not in own:
            continue
        message = (
            f"the index {index} of {spec.table.fullname} has ALLOW_ROW_LOCKS off: claims and writes lock whole pages"
            " of it, and wait for each other instead of skipping rows, so leases expire, and a task may run twice"
        )
        fix = f"ALTER INDEX {plain(connection.dialect, str(index))} ON {name} SET (ALLOW_ROW_LOCKS = ON)"
        yield Finding.of(spec, Severity.ERROR, "no-row-locks", message, fix)
    if _sets_identities(spec) and not connection.scalar(select(may(connection, spec, "ALTER"))):
        key = getattr(spec.table.autoincrement_column, "name", None)
        message = (
            f"this account lacks ALTER on {spec.table.fullname}, without which declare_schedules() cannot insert"
            f" tasks whose {key} it is given (SET IDENTITY_INSERT)"
        )
        fix = (
            f"declare {key} as mapped_column(primary_key=True, autoincrement=False), or derive the model from"
            f" UniqueMixin and declare tasks by unique_key, or GRANT ALTER ON {name} to this account"
        )
        yield Finding.of(spec, Severity.WARNING, "missing-privilege", message, fix)


def findings_of_key(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield the reasons why statements that find tasks by primary key fail."""
    is_key = (is_of(connection, spec.table), INDEXES.c.is_primary_key == 1)
    live = connection.execute(select(INDEXES.c.type, INDEXES.c.name).where(*is_key)).first()
    named = index_of_key(spec.table)
    if live is None and named is not None:
        number = 307 if named == "1" else 308
        message = (
            f"{spec.table.fullname} has no primary key: every statement that finds tasks by key fails (error {number})"
        )
        of = ", ".join(plain(connection.dialect, column.name) for column in spec.primary_key)
        key = "PRIMARY KEY CLUSTERED" if named == "1" else f"CONSTRAINT {named} PRIMARY KEY NONCLUSTERED"
        fix = f"ALTER TABLE {live_name(connection, spec.table)} ADD {key} ({of})"
        yield Finding.of(spec, Severity.ERROR, "key-index", message, fix)
    elif live is not None and named not in {plain(connection.dialect, live[1]), *(["1"] if live[0] == 1 else [])}:
        columns = ", ".join(repr(column.name) for column in spec.primary_key)
        key = f"PrimaryKeyConstraint({columns}, name={live[1]!r}, mssql_clustered={live[0] == 1})"
        fix = f"declare it in __table_args__ as {key}"
        if named is None:
            message = (
                f"the model does not name the primary key of {spec.table.fullname}, which it declares as not clustered:"
                " statements that lock tasks by key may read, and lock, others through another index"
            )
            yield Finding.of(spec, Severity.WARNING, "key-index", message, fix)
        else:
            what = "is not its clustered index" if named == "1" else f"is not the index {named}"
            numbers = "error 307 or 8622" if named == "1" else "error 308"
            message = (
                f"the primary key of {spec.table.fullname} {what}, as the model declares: every statement that"
                f" finds tasks by key fails ({numbers})"
            )
            yield Finding.of(spec, Severity.ERROR, "key-index", message, fix)
    yield from _findings_of_collations(connection, spec)


def _findings_of_collations(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield the columns of the primary key that are converted before they are compared, so that no index is used."""
    collations = SQLServerSchema().collations(connection, spec.table)
    live = [(column, text) for column in spec.primary_key if (text := collations.get(column.name))]
    # of other collations, the server derives a range of the index from the wide text
    narrow = [each.name for each, text in live if text[:4] == "SQL_" and is_narrow(each.type, connection.dialect)]
    if narrow and connection.dialect.driver == "pymssql":
        message = (
            f"pymssql sends every text as NVARCHAR, and {', '.join(narrow)} in the primary key of"
            f" {spec.table.fullname} is VARCHAR with a collation of SQL Server's own: rows are not looked up by index,"
            " so statements fail (error 8622)"
        )
        fix = "use pyodbc or aioodbc, or make the column NVARCHAR, as Unicode declares it"
        yield Finding.of(spec, Severity.ERROR, "narrow-key", message, fix)
    if len(spec.primary_key) == 1 or not live:
        return  # a single column is compared with parameters, in its own collation
    default = connection.scalar(select(cast(func.databasepropertyex(func.db_name(), "Collation"), mssql.NVARCHAR(128))))
    for column, collation in live:
        expected = str(collation_of(column.type, connection.dialect) or default)
        if expected.lower() != collation.lower():
            message = (
                f"{spec.table.fullname}.{column.name} in the primary key has the collation {collation} instead of"
                f" {expected}: statements that find several tasks by key fail (error 468 or 8622)"
            )
            fix = f"declare it in the model, as String(..., collation={collation!r}), or alter the column"
            yield Finding.of(spec, Severity.ERROR, "key-collation", message, fix)


def is_narrow(kind: TypeEngine[Any], dialect: Dialect) -> bool:
    """Return whether a column of this type is VARCHAR, in a code page."""
    stored: Any = kind.dialect_impl(dialect)
    stored = getattr(stored, "impl_instance", stored)
    return isinstance(stored, String) and not isinstance(stored, Unicode)


def may(connection: Connection, spec: QueueSpec, privilege: str) -> Any:
    """Return the expression for whether this account has a privilege on the whole table."""
    return func.has_perms_by_name(name_of(connection, spec.table), "OBJECT", privilege)


def _unsuited_modules(connection: Connection, spec: QueueSpec) -> Sequence[str]:
    """Return the procedures and triggers that refer to the table, and were created with settings under which it cannot
    be written; those that this account can see."""
    # sys.sql_expression_dependencies is for owners of the database only, and this function for all
    schema = connection.schema_for_object(spec.table) or connection.dialect.default_schema_name or ""
    name = ".".join(plain(connection.dialect, part) for part in (schema, spec.table.name))
    referring = func.sys.dm_sql_referencing_entities(literal(name, Unicode()), "OBJECT").table_valued(
        "referencing_id", "referencing_class_desc", name="referring"
    )
    module = referring.c.referencing_id
    is_off = (func.objectproperty(module, f"ExecIs{each}On") == 0 for each in ("QuotedIdent", "AnsiNulls"))
    full_name = func.object_schema_name(module, type_=String) + "." + func.object_name(module, type_=String)
    found = select(full_name).where(
        referring.c.referencing_class_desc == "OBJECT_OR_COLUMN",
        or_(*is_off),
        # views and functions write nothing; of a property that does not apply, the answer is 0
        *(func.objectproperty(module, f"Is{kind}") == 0 for kind in _READERS),
    )
    return sorted(set(connection.scalars(found)))


def _sets_identities(spec: QueueSpec) -> bool:
    """Return whether declared schedules give their tasks keys that the server generates otherwise."""
    key = spec.table.autoincrement_column
    return "schedule" in spec.columns and "unique_key" not in spec.columns and key is not None
