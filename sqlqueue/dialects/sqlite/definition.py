"""Code for revisions that changes the defaults of columns on SQLite, which has no statement for it.

A copy of the table, as in Alembic's batch mode, is no substitute.  It ends with a DROP TABLE, which deletes or changes
the rows that refer to the table, and foreign keys cannot be disabled within a transaction.  It also loses triggers,
indexes on expressions, CHECK constraints and collations.  SQLite's documentation describes another way: to edit the
definition, which the database stores as text (https://www.sqlite.org/lang_altertable.html#otheralter).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Column, Integer, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateColumn

DEFINITION_DIALECT = "sqlite"
_DIALECT = sqlite.dialect()
_QUOTE = _DIALECT.identifier_preparer.quote

# rows that are older than a column store no value for it, and have the column's present default
_CODE = """\
# SQLite cannot change a default, and a copy of the table would lose rows that refer to it, triggers and more. So each
# row is written, without triggers, which keeps its values, and then the table's stored definition is edited.
if {op}get_context().as_sql:
    raise NotImplementedError({offline!r})
bind = {op}get_bind()
triggers = bind.exec_driver_sql({triggers!r}).all()
for drop, _ in triggers:
    bind.exec_driver_sql(drop)
bind.exec_driver_sql({write!r})
for _, create in triggers:
    bind.exec_driver_sql(create)
columns = bind.exec_driver_sql({columns!r}).all()
definition = bind.exec_driver_sql({definition!r}).scalar_one()
defaults = {defaults!r}
for name, *_, live in columns:
    if name in defaults:
        pattern = r'(?is)([\\s,(]["`\\[]?%s["`\\]]?\\s[^,]*?)\\sDEFAULT\\s*(\\()?%s(?(2)\\s*\\))(?!\\w)'
        clause = '' if defaults[name] is None else f' DEFAULT ({{defaults[name]}})'
        pattern %= re.escape(name), re.escape(str(live))
        definition = re.sub(pattern, lambda found: found[1] + clause, definition, count=1)
version = bind.exec_driver_sql({version!r}).scalar_one()
bind.exec_driver_sql('PRAGMA writable_schema = ON')
bind.exec_driver_sql({edit!r}, (definition,))
bind.exec_driver_sql({version!r} + f' = {{version + 1}}')
bind.exec_driver_sql('PRAGMA writable_schema = RESET')
meant = [(name, *rest, defaults.get(name, live)) for name, *rest, live in columns]
missing = defaults.keys() - {{name for name, *_ in columns}}
if missing or meant != list(map(tuple, bind.exec_driver_sql({columns!r}))):
    raise RuntimeError({failed!r})"""


def setting_defaults(op: str, table: Table, columns: Sequence[Column[object]]) -> str:
    """Return the code that gives ``columns`` of ``table`` their declared defaults, for a revision that imports ``re``.

    ``op`` is the prefix of Alembic's operations.  The code raises an error if the result is not as intended, and relies
    on the transaction to undo it.
    """
    schema = "" if table.schema is None else f"{_QUOTE(table.schema)}."
    of_table = "{} = " + _literal(table.name) + " COLLATE NOCASE"
    master, written = f"{schema}sqlite_master", _QUOTE(columns[0].name)
    named = ", ".join(map(_literal, filter(None, (table.name, table.schema))))
    drop, create = _literal(f'DROP TRIGGER {schema}"'), _literal(f"CREATE TRIGGER {schema}")
    what = f"the defaults of {', '.join(column.name for column in columns)} in {table.fullname}"
    return _CODE.format(
        op=op,
        offline=f"changing {what} on SQLite needs a connection: run the upgrade without --sql",
        triggers=f"SELECT {drop} || replace(name, '\"', '\"\"') || '\"', {create} || substr(sql, 16)"
        f" FROM {master} WHERE type = 'trigger' AND {of_table.format('tbl_name')}",
        write=f"UPDATE {schema}{_QUOTE(table.name)} SET {written} = {written}",
        columns=f'SELECT name, type, "notnull", pk, hidden, dflt_value FROM pragma_table_xinfo({named})',
        definition=f"SELECT sql FROM {master} WHERE type = 'table' AND {of_table.format('name')}",
        defaults={column.name: _default(column) for column in columns},
        version=f"PRAGMA {schema}schema_version",
        edit=f"UPDATE {master} SET sql = ? WHERE type = 'table' AND {of_table.format('name')}",
        failed=f"cannot change {what}: the definition of the table is unusual. Nothing is changed",
    )


def _default(column: Column[object]) -> str | None:
    """Return a default as the database reports it: an expression without its parentheses."""
    compiled = CreateColumn(Column("x", Integer(), server_default=column.server_default)).compile(dialect=_DIALECT)
    _, _, default = str(compiled).partition(" DEFAULT ")
    return (default[1:-1] if default.startswith("(") else default) or None


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
