"""Enqueues rows with PostgreSQL's COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Column
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from .._support.exc import ArgumentError
from ..dialects.base import Adapter
from ..queue.spec import QueueSpec
from .duplicates import translating


def copy_rows(session: Session, adapter: Adapter, spec: QueueSpec, rows: list[dict[str, Any]]) -> None:
    """Load ``rows``, which all have the same keys, in the session's transaction."""
    if spec.mapper.inherits is not None or len(spec.mapper.tables) > 1:
        raise ArgumentError("copy=True writes to a single table and does not support classes with mapped inheritance")
    names = list(rows[0])
    for number, row in enumerate(rows):
        if list(row) != names:  # the order may differ
            if row.keys() != rows[0].keys():
                raise ArgumentError("copy=True needs the same keys in every row")
            rows[number] = {name: row[name] for name in names}
    dialect = session.get_bind(**spec.bind_arguments).dialect
    columns = [spec.mapper.columns[name] for name in names]
    made = [c for c in spec.table.columns if c not in columns and c.default and not c.default.is_clause_element]
    processors = [(n, _processor(column, dialect)) for n, column in enumerate((*columns, *made))]
    processed = [(n, process) for n, process in processors if process is not None]
    connection = session.connection(spec.bind_arguments)

    def complete() -> Iterator[list[Any]]:
        for row in rows:
            given = [*row.values(), *map(_default, made)]
            for n, process in processed:
                given[n] = process(given[n])
            yield given

    with translating(adapter, spec, rows):
        values = complete() if made or processed else map(tuple, map(dict.values, rows))
        adapter.inserts.copy(connection, spec.table, [column.name for column in (*columns, *made)], values)


def _processor(column: Column[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """Return the column type's bind processor, or ``None`` if values are sent unchanged."""
    kind: TypeEngine[Any] = column.type.dialect_impl(dialect)
    return kind.bind_processor(dialect)


def _default(column: Any) -> Any:
    """Return the value of the column's Python default; the server evaluates only SQL expressions."""
    return column.default.arg(None) if column.default.is_callable else column.default.arg
