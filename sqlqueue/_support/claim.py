"""Claims as values, and their random tokens."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at one task, held by a worker.

    It can be pickled, and settled from another session, thread or process once the claim is committed.  It can settle
    the row as long as that is running in the same ``attempt`` with the same ``token``.

    No two claims are equal.  ``identity`` and ``attempt`` alone can repeat: an engine or an application may reuse the
    primary key of a deleted row, and a failover or a backup may return the database to an earlier state.

    An idempotency key must stay the same when a task is retried, so it must contain neither ``attempt`` nor ``token``.
    ``identity`` can be used if primary keys are never reused, such as UUIDs made by the application.
    """

    entity: type[Any]
    """The model of the task."""
    identity: tuple[Any, ...]
    attempt: int
    """The number of the attempt at the row, from 1 on."""
    token: int = 0
    """A new random number for each call that claims; 0 if no claim with a lease has written one to the row."""


_TOKENS = 2**63 - 1
"""The largest signed integer of every engine."""


def new_token() -> int:
    """Return a random number that differs from all other claims' across processes, hosts and copies of the database."""
    return 1 + secrets.randbelow(_TOKENS)
