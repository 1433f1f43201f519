"""Checks whether live workers serve the queues, if workers are registered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from sqlalchemy import Connection, inspect, select

from ..lifecycle.kind import holds_tasks
from ..model.registry import worker_table
from ..queue.findings import Finding, Severity
from ..queue.spec import QueueSpec
from ..sql.clock import utcnow

EVERY = timedelta(seconds=10)
"""The time between two reports of a worker."""
LIVE = timedelta(seconds=35)
"""The maximum age of the last report of a live worker: three reports may be missed."""


def of_workers(connection: Connection, specs: Sequence[QueueSpec]) -> Iterator[Finding]:
    """Yield a note for each queue that no live worker serves.  Yields nothing if workers are not registered.

    See :func:`.of_companions` for their table itself.
    """
    table = worker_table(specs[0].table.metadata)
    if table is None:
        return
    if not inspect(connection).has_table(table.name, schema=connection.schema_for_object(table)):
        return
    rows = connection.execute(select(utcnow().label("now"), table.c.seen_at, table.c.handlers)).all()
    live = {handler["queue"] for now, seen_at, handlers in rows if seen_at >= now - LIVE for handler in handlers}
    for spec in specs:
        if holds_tasks(spec) and spec.table.fullname not in live:
            message = f"no live worker serves {spec.table.fullname}"
            fix = "start one, unless something other than a registered Worker claims its tasks"
            yield Finding.of(spec, Severity.NOTE, "unserved-queue", message, fix)
