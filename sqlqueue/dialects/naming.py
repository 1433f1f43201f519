"""Names of engines, and of tables where SQLAlchemy does not write them: in hints, bulk protocols, catalog queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.visitors import InternalTraversal

# -- writes table names where SQLAlchemy does not: in hints, in bulk protocols and in catalog queries -----------------


class Naming(ColumnElement[Any]):
    """SQL text that contains the quoted name of a table at ``{}`` in ``form``, with its schema if ``qualified``."""

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
    # the compiler's own preparer knows the driver's parameter style and the schema_translate_map
    preparer, table = compiler.preparer, element.table
    # always quoted without a schema: hints have other reserved words
    name = preparer.format_table(table) if element.qualified else preparer.quote_identifier(table.name)
    return element.form.format(name)


def live_name(connection: Connection, table: Table) -> str:
    """Return the quoted, qualified name of ``table`` on this connection, for SQL text without parameters."""
    return live_qualifier(connection, table) + plain(connection.dialect, table.name)


def live_qualifier(connection: Connection, table: Table) -> str:
    """Return the prefix of the names of ``table`` and its indexes on this connection: its quoted schema, if any."""
    schema, preparer = connection.schema_for_object(table), connection.dialect.identifier_preparer
    return f"{_undoubled(connection.dialect, preparer.quote_schema(schema))}." if schema else ""


def plain(dialect: Dialect, name: str) -> str:
    """Return ``name`` quoted, for SQL text without parameters."""
    return _undoubled(dialect, dialect.identifier_preparer.quote(name))


def _undoubled(dialect: Dialect, quoted: str) -> str:
    # preparers double percent signs for drivers that parse parameters
    return quoted % () if dialect.paramstyle in ("format", "pyformat") else quoted


# -- the name of an engine, and its oldest supported version ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The names and the minimum version of an engine."""

    dialect: str
    """The name of SQLAlchemy's dialect."""
    name: str
    """The engine's name in messages."""
    minimum: tuple[int, ...]
    """The oldest supported version."""
    needed: str
    """What older versions lack."""
