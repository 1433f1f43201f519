"""Finds rows that claims have set aside because they cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, and_, select

from .._support.error_text import UNREADABLE, key_text
from ..queue.findings import Finding, Severity
from ..queue.spec import QueueSpec
from ..queue.status import Status
from ..sql.states import is_due, state

SCAN = 20_000
"""The number of waiting tasks, and of the last tasks by primary key, that are examined: no index finds these rows."""
NAMED = 10


def set_aside(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield a finding if rows wait, or have become dead letters, because they cannot be read.  It names some keys."""
    table, model = spec.table.fullname, spec.entity.__name__
    waiting = select(*_columns(spec)).where(spec["finished_at"].is_(None), is_due(spec))
    last = select(*_columns(spec)).order_by(*(column.desc() for column in spec.primary_key))
    for rows, status, then in (
        (waiting.order_by(*(term.expression for term in spec.due_order)), Status.SCHEDULED, "are postponed"),
        (last, Status.DISCARDED, "are dead letters"),
    ):
        keys = [tuple(row) for row in connection.execute(_found(rows, status))]
        if keys:
            named = "; ".join(key_text(key) for key in keys[:NAMED]) + ("; ..." if len(keys) > NAMED else "")
            message = f"{table} has rows that cannot be read and {then}, with these keys: {named}"
            retry = f"; then run: sqlqueue retry {model} --id KEY" if status is Status.DISCARDED else ""
            fix = f"read the column {spec['error'].name}, deploy a release that can read the rows or repair them{retry}"
            yield Finding.of(spec, Severity.WARNING, "unreadable-rows", message, fix)


def _columns(spec: QueueSpec) -> list[Any]:
    key = (column.label(f"key_{n}") for n, column in enumerate(spec.primary_key))
    return [spec["status"].label("status"), spec["error"].label("error"), *key]


def _found(rows: Any, status: Status) -> Any:
    seen = rows.limit(SCAN).subquery("seen")
    _, error, *key = seen.c
    return select(*key).where(and_(seen.c.status == state(status), error.like(f"{UNREADABLE}%"))).limit(NAMED + 1)
