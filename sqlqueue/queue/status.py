"""The states of a task."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The state of a task, stored as this short string.  ``available_at`` is the time from which, or until which, it
    applies."""

    AVAILABLE = "available"
    """May be claimed now."""
    SCHEDULED = "scheduled"
    """May be claimed from ``available_at`` on."""
    RETRYABLE = "retryable"
    """Failed; may be claimed again from ``available_at`` on."""
    RUNNING = "running"
    """Claimed; the lease expires at ``available_at``, and then it may be claimed again."""
    COMPLETED = "completed"
    """Final: done."""
    CANCELLED = "cancelled"
    """Final: no longer wanted."""
    DISCARDED = "discarded"
    """Final: given up, a dead letter."""


DUE = (Status.SCHEDULED, Status.RETRYABLE, Status.RUNNING)
"""States that become claimable when ``available_at`` is reached."""

FINAL = (Status.COMPLETED, Status.CANCELLED, Status.DISCARDED)
"""The final states of a task."""
