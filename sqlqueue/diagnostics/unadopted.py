"""Checks of the rows that did not come from the queue: from before the table was one, or with an unknown status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Select, Subquery, and_, func, literal, literal_column, select

from ..dialects import adapter_for
from ..queue.findings import Finding, Severity
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import FINAL, Status
from ..sql.states import state

RECENT = 10_000
"""The number of rows whose status is checked, the highest keys first: if keys ascend, these are the newest."""
SAMPLE = 100
"""The number of rows read, the lowest keys first: if keys ascend, these are from before the table became a queue."""


def of_contents(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about rows that were in the table before it became a queue, and about unknown statuses.

    Reads at most 10,000 rows.
    """
    yield from _of_statuses(connection, spec)
    yield from unintended_tasks(connection, spec)
    rows = _sample(spec)
    final = rows.c.status.in_([state(status) for status in FINAL])
    if spec.options.prunes and _has(connection, rows, and_(final, rows.c.finished_at.is_(None))):
        table = spec.table.fullname
        message = f"{table} has rows from before it became a queue: prune() keeps them, whatever the retention"
        fix = "nothing; to delete them as well: sqlqueue prune --adopted --older-than ..."
        yield Finding.of(spec, Severity.NOTE, "adopted-rows", message, fix)


def _of_statuses(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    newest = select(spec["status"].label("status")).order_by(*(key.desc() for key in spec.primary_key)).limit(RECENT)
    recent = newest.subquery("recent")
    unknown = select(recent.c.status).where(recent.c.status.not_in([state(status) for status in Status]))
    found = connection.scalars(unknown.distinct().order_by(recent.c.status)).all()
    if found:
        table, several = spec.table.fullname, ", ".join(map(repr, found))
        message = f"{table} has rows with a status that sqlqueue does not know ({several}): no claim finds them"
        fix = f"UPDATE {table} SET {spec['status'].name} = 'available' for these rows, or any of {', '.join(FINAL)}"
        yield Finding.of(spec, Severity.WARNING, "unknown-status", message, fix)


def unintended_tasks(connection: Connection, spec: QueueSpec) -> list[Finding]:
    """Return a finding if workers would run rows from before the table became a queue.  Reads at most 100 rows.

    These are available rows whose timestamps come from an ALTER TABLE instead of an INSERT.
    """
    rows = _sample(spec)
    waiting = and_(rows.c.status == state(Status.AVAILABLE), rows.c.attempt == literal_column("0"))
    if not _has(connection, rows, waiting) or not _were_filled(connection, spec, rows, waiting):
        return []
    table = spec.table.fullname
    message = f"{table} has rows from before it became a queue that are available: workers run them as tasks"
    fix = (
        f"if they are not tasks: UPDATE {table} SET {spec['status'].name} = 'completed' for the rows from before it"
        " became a queue, before a worker starts"
    )
    return [Finding.of(spec, Severity.WARNING, "unadopted-rows", message, fix)]


def _were_filled(connection: Connection, spec: QueueSpec, rows: Subquery, waiting: Criterion) -> bool:
    added_at = adapter_for(connection.dialect).schema.added_at(connection, spec["created_at"])
    created_at, available_at = rows.c.created_at, rows.c.available_at
    if added_at is not None and _has(connection, rows, and_(waiting, created_at == literal(added_at, created_at.type))):
        return True
    # on other engines a separate statement fills each column, available_at first
    alike: Select[Any] = (
        select(literal_column("1")).where(waiting, available_at < created_at).group_by(available_at, created_at)
    )
    return connection.execute(alike.having(func.count() > literal_column("1")).limit(1)).first() is not None


def _sample(spec: QueueSpec) -> Subquery:
    """Return the first rows, which are only compared: other programs may have inserted times that cannot be read."""
    roles = ("status", "attempt", "available_at", "created_at", "finished_at")
    columns = (spec[role].label(role) for role in roles)
    return select(*columns).order_by(*spec.primary_key).limit(SAMPLE).subquery("first_rows")


def _has(connection: Connection, rows: Subquery, criterion: Criterion) -> bool:
    found: Select[Any] = select(literal_column("1")).select_from(rows).where(criterion).limit(1)
    return connection.execute(found).first() is not None
