"""Checks of the schedules of recurring tasks."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, select

from ..lifecycle.kind import recurs
from ..queue.findings import Finding, Severity
from ..queue.schedules import is_known_here, unknown_here
from ..queue.spec import QueueSpec
from ..queue.status import FINAL, Status

SAMPLE = 10_000
"""The number of rows read, the lowest keys first: recurring tasks are usually declared before others are enqueued."""


def of_schedules(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about schedules that this host does not know, and about tasks that have lost their next run."""
    if not recurs(spec):
        return
    columns = (spec["schedule"].label("schedule"), spec["status"].label("status"))
    first = select(*columns).order_by(*spec.primary_key).limit(SAMPLE).subquery("first_rows")
    seen = select(first.c.schedule, first.c.status).where(first.c.schedule.is_not(None)).distinct()
    rows = connection.execute(seen).all()
    table = spec.table.fullname
    waiting = {schedule for schedule, status in rows if status not in FINAL}
    for schedule in sorted(each for each in waiting if not is_known_here(each)):
        message = f"{table} has tasks with the schedule {schedule!r}, which a worker on this host leaves to others"
        yield Finding.of(spec, Severity.WARNING, "unknown-schedule", message, unknown_here[schedule])
    lost = sorted({schedule for schedule, status in rows if status == Status.COMPLETED})
    if lost:
        message = f"{table} has completed tasks that still have a schedule, but no next run: {', '.join(lost)}"
        fix = f"restart them: session.reschedule({spec.entity.__name__}, ...), with a valid schedule; or set it to NULL"
        yield Finding.of(spec, Severity.WARNING, "stopped-schedule", message, fix)
