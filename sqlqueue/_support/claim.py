"""A claim as a value, and the numbers that tell claims apart."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at one task: what a worker holds.

    It can be pickled, and settled from another session, thread or process once the claim is committed.  It settles the
    row while that is running in the same ``attempt`` with the same ``token``.

    No two claims are equal.  ``identity`` and ``attempt`` alone can come again: an engine or an application gives the
    primary key of a deleted row to a new one, and a failover or a backup takes the database to an earlier state.

    An idempotency key must stay the same when a task is tried again, so neither ``attempt`` nor ``token`` belongs in
    one.  ``identity`` serves where no primary key is ever used twice, such as a UUID made by the application.
    """

    entity: type[Any]
    """The model of the task."""
    identity: tuple[Any, ...]
    attempt: int
    """Which attempt at the row it is, from 1 on."""
    token: int = 0
    """Random, made anew for each call that claims; 0 where no claim with a lease wrote one to the row."""


_TOKENS = 2**63 - 1
"""What the signed integers of every engine can hold."""


def new_token() -> int:
    """A number that no other claim has, whichever process, host, clock or copy of the database it is made with."""
    return 1 + secrets.randbelow(_TOKENS)
