"""Claims as values, and their random tokens."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at one task, held by a worker.

    A claim can be pickled, and settled from another session, thread or process once it is committed. It can settle the
    row as long as the row is running with the same ``attempt`` and ``token``.

    No two claims are equal.  ``identity`` and ``attempt`` alone can repeat: an engine or an application may reuse the
    primary key of a deleted row, and a failover or a backup may return the database to an earlier state.

    An idempotency key must stay the same when a task is retried, so it must contain neither ``attempt`` nor ``token``.
    ``identity`` can be used if primary keys are never reused, such as UUIDs made by the application.
    """

    entity: type[Any]
    """The model of the task."""
    identity: tuple[Any, ...]
    attempt: int
    """The number of the attempt, starting at 1."""
    token: int = 0
    """A random number, new for each claiming call and negative if a worker makes it; 0 if no claim with a lease has
    written one to the row."""
    claimed_by: str | None = field(default=None, compare=False, repr=False)
    """The name of the claimer, for the history."""
    claimed_at: datetime | None = field(default=None, compare=False, repr=False)
    """When the claim was made, for the history; ``None`` with ``lease=None``, or if loader options excluded the
    column."""


_TOKENS = 2**63 - 1
"""The largest integer that every engine can store."""


def new_token() -> int:
    """Return a random token that no other claim has, across processes, hosts and copies of the database."""
    return 1 + secrets.randbelow(_TOKENS)


class WorkerTokens:
    """The tokens of one worker's claims: negative, and in a range that no other worker has.

    A ``running`` row thus shows whether a worker holds it, and the rows that a worker held when its process died can be
    found without writing anything else.
    """

    def __init__(self, worker: int | None = None) -> None:
        self.worker = 1 + secrets.randbelow(2**31 - 1) if worker is None else worker
        """The number of the worker, in the upper half of each token."""

    def __call__(self) -> int:
        """Return a new token."""
        return -(self.worker << _LOWER | secrets.randbits(_LOWER))

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest token."""
        return -(self.worker << _LOWER | 2**_LOWER - 1), -(self.worker << _LOWER)


_LOWER = 32
"""The bits of a token that distinguish the claims of one worker."""
