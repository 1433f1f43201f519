"""What a project decides about the migrations of its queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .._support.exc import ArgumentError
from ..queue.status import FINAL, Status

KEYWORD = "sqlqueue"
"""Of ``context.configure``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationOptions:
    """Given in ``env.py`` as ``context.configure(..., sqlqueue=MigrationOptions(...))``."""

    existing_rows: Status | Literal["completed", "cancelled", "discarded", "available"] = Status.COMPLETED
    """What the rows of a table become when it is made a queue: ``completed``, ``cancelled``, ``discarded``, or
    ``available``, and workers take them all.  Final ones have no ``finished_at``: ``prune`` leaves them."""
    concurrently: bool = False
    """Whether PostgreSQL builds and drops the indexes of queues in tables that exist ``CONCURRENTLY``: writers do not
    wait.  It cannot be rolled back, and it commits what the revision did before: give it a revision of its own, or
    ``transaction_per_migration=True``.  An index that failed is noticed by the next autogenerate.  Other engines run
    the same revision, in their own way."""
    postgresql_storage: bool = False
    """Whether the tables of queues get storage parameters on PostgreSQL.  A queue updates each row several times, and
    what a claim has to pass are the dead entries of its index:

    - ``fillfactor = 80``: a row's next versions find room in its own page, the one that its claim has just read.
    - ``autovacuum_vacuum_scale_factor = 0.01``: the default of 0.2 counts finished rows that are kept, and would let
      dead ones come to a fifth of them.
    - ``autovacuum_vacuum_threshold = 1000``: the default of 50 would vacuum a small queue at every round.
    - ``autovacuum_vacuum_cost_delay = 0``: a vacuum that pauses does not keep up with a busy queue.
    - ``autovacuum_analyze_scale_factor = 0.02``: how many rows are available changes faster than the table grows, and
      the planner goes by it.

    Other engines pass over it."""

    def __post_init__(self) -> None:
        allowed = (Status.AVAILABLE, *FINAL)
        if self.existing_rows not in allowed:
            raise ArgumentError(
                f"existing_rows={self.existing_rows!r}: rows become {', '.join(allowed[:-1])} or {allowed[-1]};"
                " nothing else makes sense of a row that was never claimed"
            )


def options_in(configured: dict[str, Any]) -> MigrationOptions:
    """The options among those of ``context.configure``."""
    options = configured.get(KEYWORD, MigrationOptions())
    if not isinstance(options, MigrationOptions):
        raise ArgumentError(f"context.configure({KEYWORD}={options!r}): give a sqlqueue.alembic.MigrationOptions(...)")
    return options
