"""Tasks of workers whose connections go silent, and their time limits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.support.rows import rows

LEASE = timedelta(seconds=15)
"""With this lease, transactions have the shortest deadline, a third of it."""
PATIENCE = 90.0
"""Seconds; a handler that was interrupted by the silence is called again after its backoff."""


def tasks(*names: str) -> list[dict[str, Any]]:
    return [row for name in names for row in rows(1, name=name, max_attempts=9)]
