"""Names of tables where SQLAlchemy does not write them itself: in hints, in bulk protocols, in the catalog."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.visitors import InternalTraversal


class Naming(ColumnElement[Any]):
    """``form`` with the quoted name of a table in its place, with its schema if it is to be ``qualified``."""

    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012 - as SQLAlchemy has it
        ("form", InternalTraversal.dp_string),
        ("table", InternalTraversal.dp_clauseelement),
        ("qualified", InternalTraversal.dp_boolean),
    ]

    def __init__(self, form: str, table: Table, *, qualified: bool) -> None:
        self.form = form
        self.table = table
        self.qualified = qualified


@compiles(Naming)
def _compile_naming(element: Naming, compiler: Any, **kw: Any) -> str:
    # the compiler's own: it knows what the driver takes for a parameter, and of a schema_translate_map
    preparer, table = compiler.preparer, element.table
    # always quoted where there is no schema: in a hint other words are reserved
    name = preparer.format_table(table) if element.qualified else preparer.quote_identifier(table.name)
    return element.form.format(name)


def live_name(connection: Connection, table: Table) -> str:
    """The quoted name of ``table`` here, for what takes no parameters, or takes it as the value of one."""
    return live_qualifier(connection, table) + plain(connection.dialect, table.name)


def live_qualifier(connection: Connection, table: Table) -> str:
    """What stands before the name of ``table`` here, and before those of its indexes: its quoted schema, if any."""
    schema, preparer = connection.schema_for_object(table), connection.dialect.identifier_preparer
    return f"{_undoubled(connection.dialect, preparer.quote_schema(schema))}." if schema else ""


def plain(dialect: Dialect, name: str) -> str:
    """``name``, quoted, for what takes no parameters."""
    return _undoubled(dialect, dialect.identifier_preparer.quote(name))


def _undoubled(dialect: Dialect, quoted: str) -> str:
    # a preparer doubles each percent sign for drivers that look for parameters
    return quoted % () if dialect.paramstyle in ("format", "pyformat") else quoted
