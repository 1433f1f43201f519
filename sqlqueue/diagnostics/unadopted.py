"""Checks of the rows that were in a table before it became a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, select

from ..dialects import adapter_for
from ..queue.findings import Finding, Severity
from ..queue.spec import QueueSpec
from ..queue.status import FINAL, Status

SAMPLE = 100
"""The number of rows read, the lowest keys first: if keys ascend, these are from before the table became a queue."""


def of_contents(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about rows that were in the table before it became a queue.  Reads at most 100 rows."""
    rows = _sample(connection, spec)
    yield from _of_tasks(connection, spec, rows)
    if spec.options.prunes and any(row.status in FINAL and row.finished_at is None for row in rows):
        table = spec.table.fullname
        message = f"{table} has rows from before it became a queue: prune() keeps them, whatever the retention"
        fix = "nothing; to delete them as well: sqlqueue prune --adopted --older-than ..."
        yield Finding.of(spec, Severity.NOTE, "adopted-rows", message, fix)


def unintended_tasks(connection: Connection, spec: QueueSpec) -> list[Finding]:
    """Return a finding if workers would run rows from before the table became a queue.  Reads at most 100 rows."""
    return list(_of_tasks(connection, spec, _sample(connection, spec)))


def _sample(connection: Connection, spec: QueueSpec) -> Sequence[Any]:
    roles = ("status", "attempt", "available_at", "created_at", "finished_at")
    columns = (spec[role].label(role) for role in roles)
    return connection.execute(select(*columns).order_by(*spec.primary_key).limit(SAMPLE)).all()


def _of_tasks(connection: Connection, spec: QueueSpec, rows: Sequence[Any]) -> Iterator[Finding]:
    """Yield a finding if there are available rows whose timestamps come from an ALTER TABLE instead of an INSERT."""
    waiting = [row for row in rows if row.status == Status.AVAILABLE and row.attempt == 0]
    added_at = adapter_for(connection.dialect).schema.added_at(connection, spec["created_at"]) if waiting else None
    # on other engines a separate statement fills each column, available_at first
    filled = Counter((row.available_at, row.created_at) for row in waiting if row.available_at < row.created_at)
    if any(row.created_at == added_at for row in waiting) or any(count > 1 for count in filled.values()):
        table = spec.table.fullname
        message = f"{table} has rows from before it became a queue that are available: workers run them as tasks"
        fix = (
            f"if they are not tasks: UPDATE {table} SET {spec['status'].name} = 'completed' for the rows from before it"
            " became a queue, before a worker starts"
        )
        yield Finding.of(spec, Severity.WARNING, "unadopted-rows", message, fix)
