"""Rows, and the evaluation of statements on them. Whether a criterion holds for a version of a row, the effect of an
assignment, and the result of a plain SELECT do not depend on locks. SQLite evaluates them: it gets the relevant
versions and the statement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Column, Index, StaticPool, Table, create_engine, event, insert, literal_column, select
from sqlalchemy.sql import visitors

from tests.support.models import Base

Row = dict[str, Any]
"""A version of a row, as stored by SQLite."""
World = Mapping[Table, Mapping[int, Row]]
"""Versions by table and number, which is the `id` if there is one."""
Parameters = Mapping[str, Any]
_LISTED = re.compile(r"unnest\((array\(\(.+?\)\))\) WITH ORDINALITY AS (\w+)\(([\w, ]+), position\)", re.DOTALL)
_ARRAY = re.compile(r"array\(\((.+?)\)\)", re.DOTALL)
_OF_FOUND = re.compile(r"= ANY \(array\(\((SELECT .+?)\)\)\)", re.DOTALL)
_UNNESTED = re.compile(r"SELECT (unnest\(\?\) AS \w+(, )?)+")


class Evaluator:
    def __init__(self) -> None:
        engine = create_engine("sqlite://", poolclass=StaticPool)
        event.listen(engine, "before_cursor_execute", _in_its_words, retval=True)
        self._connection = engine.connect()
        self._shown: set[Table] = set()
        self._made: dict[Any, Any] = {}
        Base.metadata.create_all(self._connection)
        self._driver: Any = self._connection.connection.driver_connection
        # additional expressions that operations use
        self._driver.create_function("pg_notify", 2, lambda *_: None)
        self._driver.create_function("version", 0, lambda: "")

    def _show(self, world: World) -> None:
        for table in self._shown:
            self._driver.execute(f"DELETE FROM {table.name}")
        self._shown = set(world)
        for table, rows in world.items():
            names = [column.name for column in table.columns]
            marks = ", ".join("?" * (len(names) + 1))
            values = [(number, *map(row.get, names)) for number, row in rows.items()]
            self._driver.executemany(f"INSERT INTO {table.name} (rowid, {_quoted(names)}) VALUES ({marks})", values)

    def _shown_rows(self, table: Table) -> dict[int, Row]:
        names = [column.name for column in table.columns]
        found = self._driver.execute(f"SELECT rowid, {_quoted(names)} FROM {table.name}").fetchall()
        return {number: dict(zip(names, values, strict=True)) for number, *values in found}

    def read(self, world: World, statement: Any, parameters: Parameters) -> list[tuple[Any, ...]]:
        """Return the result of a SELECT."""
        self._show(world)
        return [tuple(row) for row in self._connection.execute(statement, dict(parameters))]

    def numbers(self, world: World, table: Table, terms: Sequence[Any], parameters: Parameters) -> list[int]:
        """Return the rows for which all of ``terms`` hold."""
        statement = select(rowid(table)).select_from(table).where(*terms)
        return [number for (number,) in self.read(world, statement, parameters)]

    def selected(self, table: Table, number: int, row: Row, statement: Any) -> tuple[Any, ...]:
        """Return the columns of a SELECT, ignoring its criteria."""
        (found,) = self.read({table: {number: row}}, _bare(statement).limit(None), {})
        return found

    def changed(self, table: Table, row: Row, update: Any, parameters: Parameters) -> Row:
        """Return a row as changed by an UPDATE, ignoring its criteria."""
        self._show({table: {1: row}})
        self._connection.execute(_bare(update), dict(parameters))
        (new,) = self._shown_rows(table).values()
        return new

    def inserted(self, worlds: Sequence[World], statement: Any, given: Mapping[str, Any]) -> tuple[int, Row]:
        """Return a new row, with the defaults of its table and the next number; conflicts are not checked."""
        table = statement.table
        self._show({table: {}})
        values = {getattr(column, "name", column): value for column, value in (statement._values or {}).items()}
        self._connection.execute(insert(table).values(values) if values else insert(table), dict(given))
        ((number, row),) = self._shown_rows(table).items()
        taken = [each for world in worlds for each in world.get(table, {})]
        key = table.autoincrement_column
        is_made = key is not None and key.name not in {*given, *values}
        if number in taken or key is None or is_made:
            number = max(taken, default=0) + 1
        if key is not None and is_made:
            row[key.name] = number
        return number, row

    def is_within(self, index: Index, row: Row) -> bool:
        """Return whether a filtered index of SQL Server has an entry for this row."""
        predicate = index.dialect_options["mssql"]["where"]
        if predicate is None:
            return True
        seen = (index.name, *row.values())
        if seen not in self._made:
            self._made[seen] = bool(self.numbers({index.table: {1: row}}, index.table, [predicate], {}))
        return bool(self._made[seen])


def _in_its_words(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
    """Translate PostgreSQL's arrays, and its names of built-in functions, for SQLite."""
    statement = statement.replace("pg_catalog.", "").replace("= ANY (?)", "IN (SELECT value FROM json_each(?))")
    statement = _UNNESTED.sub(_joined, _OF_FOUND.sub(r"IN (\1)", statement))
    statement = _LISTED.sub(_listed, statement)
    return statement, tuple(json.dumps(value) if isinstance(value, list) else value for value in parameters)


def _joined(found: re.Match[str]) -> str:
    names = [f"array_{n}" for n in range(found[0].count("?"))]
    arrays = " JOIN ".join(f"json_each(?) AS {name}" + (" USING (key)" if n else "") for n, name in enumerate(names))
    return f"SELECT {', '.join(f'{name}.value' for name in names)} FROM {arrays}"


def _listed(found: re.Match[str]) -> str:
    arrays, alias, names = found.groups()
    columns = names.split(", ")
    values = [
        f"json_each((SELECT json_group_array({name}) FROM ({query}))) AS {name}"
        for name, query in zip(columns, _ARRAY.findall(arrays), strict=True)
    ]
    shown = ", ".join(f"{name}.value AS {name}" for name in columns)
    joined = "".join(f" JOIN {value} USING (key)" for value in values[1:])
    return f"(SELECT {shown}, {columns[0]}.key + 1 AS position FROM {values[0]}{joined}) AS {alias}"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


@cache
def evaluator() -> Evaluator:
    """Return the shared evaluator, which keeps no state between two evaluations."""
    return Evaluator()


def rowid(table: Table) -> Any:
    column: Any = literal_column("ROWID")
    column.table = table
    return column


def _bare(statement: Any) -> Any:
    bare = statement._clone()
    bare._where_criteria = bare._returning = bare._prefixes = ()
    return bare


def columns_of(expression: Any) -> set[Column[Any]]:
    return {each for each in visitors.iterate(expression) if isinstance(each, Column)}
