"""Checks the tables that accompany queues: the history of attempts, the register of workers and the pauses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Table, inspect
from sqlalchemy.engine.interfaces import ReflectedColumn

from ..dialects import adapter_for
from ..model.history import history_of
from ..model.pause import pause_table
from ..model.registry import worker_table
from ..queue.findings import MIGRATE, Finding, Severity
from .column_types import fills_itself, wrong_type
from .schema_drift import unlike_indexes

_ALTER = "in a migration, alter the column to what the model declares"


def of_companions(connection: Connection, metadata: MetaData) -> Iterator[Finding]:
    """Yield findings about the history, the register of workers and the pauses, if the application has them.

    It is an error if settlements or workers cannot use a table; a missing index only slows reading and pruning
    down.
    """
    history, workers, pauses = history_of(metadata), worker_table(metadata), pause_table(metadata)
    if history is not None:
        yield from _of_table(connection, history.table, "which keeps the history of attempts")
    if workers is not None:
        yield from _of_table(connection, workers, "in which workers are registered")
    if pauses is not None:
        yield from _of_table(connection, pauses, "which stores the paused queues")


def _of_table(connection: Connection, table: Table, purpose: str) -> Iterator[Finding]:
    inspector, schema = inspect(connection), connection.schema_for_object(table)
    error = partial(Finding, severity=Severity.ERROR, table=table.fullname)
    if not inspector.has_table(table.name, schema=schema):
        message = f"there is no table {table.fullname}, {purpose}"
        yield error(code="missing-table", message=message, fix=MIGRATE)
        return
    live = {column["name"]: column for column in inspector.get_columns(table.name, schema=schema)}
    for column in table.columns:
        found = live.pop(column.name, None)
        if found is None:
            message = f"{table.fullname} has no column {column.name}"
            yield error(code="missing-column", message=message, fix=MIGRATE)
            continue
        for severity, code, what in _of_column(connection, column, found):
            yield Finding(
                severity=severity, code=code, message=f"{table.fullname} {what}", fix=_ALTER, table=table.fullname
            )
    for unknown in live.values():
        if not unknown["nullable"] and not fills_itself(unknown):
            what = f"has a column {unknown['name']} that the model does not declare and every insert must provide"
            yield error(code="unknown-column", message=f"{table.fullname} {what}", fix=_ALTER)
    yield from _of_indexes(connection, table)


def _of_column(
    connection: Connection, column: Column[Any], live: ReflectedColumn
) -> Iterator[tuple[Severity, str, str]]:
    adapter = adapter_for(connection.dialect)
    if column.nullable and not live["nullable"]:
        yield Severity.ERROR, "not-nullable", f"does not allow NULL in {column.name}"
    if column is column.table.autoincrement_column and not (adapter.inserts.numbers_keys or fills_itself(live)):
        what = f"does not generate keys that inserts leave out: {column.name} is not an identity"
        yield Severity.ERROR, "unnumbered-key", what
    for severity, what in wrong_type(connection.dialect, column, live):
        yield severity, "wrong-type", what


def _of_indexes(connection: Connection, table: Table) -> Iterator[Finding]:
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    for index, live, reason in unlike_indexes(connection, table, indexes):
        fix = MIGRATE
        if live is not None and not live.usable:
            fix = adapter_for(connection.dialect).schema.revival(connection, index) or MIGRATE
        yield Finding(
            severity=Severity.WARNING,
            code="missing-index" if live is None else "wrong-index",
            message=f"the index {index.name} of {table.fullname} {reason}",
            fix=fix,
            table=table.fullname,
        )
