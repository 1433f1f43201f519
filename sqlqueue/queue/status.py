"""The states of a task."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """What a row is; stored as this short string.  ``available_at`` says since or until when."""

    AVAILABLE = "available"
    """May be claimed now."""
    SCHEDULED = "scheduled"
    """Not before ``available_at``."""
    RETRYABLE = "retryable"
    """Failed; is tried again at ``available_at``."""
    RUNNING = "running"
    """Claimed; the lease ends at ``available_at``, and then it may be claimed again."""
    COMPLETED = "completed"
    """Final: done."""
    CANCELLED = "cancelled"
    """Final: no longer wanted."""
    DISCARDED = "discarded"
    """Final: given up.  The dead letters."""


DUE = (Status.SCHEDULED, Status.RETRYABLE, Status.RUNNING)
"""States that become claimable when ``available_at`` is reached."""

FINAL = (Status.COMPLETED, Status.CANCELLED, Status.DISCARDED)
"""States that end a task's life."""
