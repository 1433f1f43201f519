"""What the rows of a queue say about how its table became one."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, select

from .findings import Finding, Severity
from .spec import QueueSpec
from .states import FINAL

SAMPLE = 100
"""The first rows by primary key: those from before the table became a queue are among them, if keys ascend."""


def of_contents(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """What is worth knowing of the rows that were in the table before it became a queue.  Reads at most 100 rows."""
    if not spec.options.prunes:
        return
    sampled = select(spec["status"], spec["finished_at"]).order_by(*spec.primary_key).limit(SAMPLE)
    if any(status in FINAL and finished_at is None for status, finished_at in connection.execute(sampled)):
        table = spec.table.fullname
        message = f"{table} has rows from before it became a queue: prune() keeps them, whatever the retention"
        fix = "nothing; to delete them as well: sqlqueue prune --adopted --older-than ..."
        yield Finding.of(spec, Severity.NOTE, "adopted-rows", message, fix)
