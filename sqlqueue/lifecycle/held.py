"""How claims that are being settled hold their rows."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, literal, literal_column

from .._support.claim import Claim
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.selection import Assignment, is_final, present_status, state


@dataclass(frozen=True, kw_only=True)
class Held:
    """How the claims being settled hold their rows: by a lease written to the row, or by its lock alone."""

    spec: QueueSpec
    claimed_by: str | None = None
    """Who claims, where nothing of the claim is written yet (``lease=None``)."""
    waits: bool = True
    """Whether a row that others have locked is waited for; it is passed over otherwise."""

    @property
    def only_locked(self) -> bool:
        return self.claimed_by is not None

    @property
    def attempt(self) -> ColumnElement[int]:
        """The attempt that is being settled."""
        return self.spec["attempt"] + literal_column("1") if self.only_locked else self.spec["attempt"]

    @property
    def fresh_budget(self) -> ColumnElement[int]:
        """The ``max_attempts`` of a new life."""
        return self.attempt + literal_column(str(self.spec.options.max_attempts))

    @property
    def runs_again(self) -> Criterion | None:
        """Was the task enqueued anew while it ran?  Then its ``claimed_at`` has been taken away."""
        return None if self.only_locked else self.spec["claimed_at"].is_(None)

    def marks(self, claim: Claim) -> tuple[int, ...]:
        """What its row has in :attr:`marked` while ``claim`` holds it."""
        return (claim.attempt,) if self.only_locked else (claim.attempt, claim.token)

    @property
    def marked(self) -> tuple[ColumnElement[int], ...]:
        """What tells a claim from others of the same row, which may have the same attempt."""
        return (self.attempt,) if self.only_locked else (self.attempt, self.spec["claim_token"])

    def unsettled(self, mine: Criterion) -> Criterion:
        """Holds for the rows that are ``mine`` by their keys and marks, and still held."""
        if self.only_locked:
            return and_(mine, ~is_final(self.spec))
        return and_(mine, present_status(self.spec) == state(Status.RUNNING))

    def written(self) -> list[Assignment]:
        """What the claim itself left unwritten."""
        return stamp(self.spec, self.claimed_by) if self.claimed_by is not None else []


def stamp(spec: QueueSpec, claimed_by: str) -> list[Assignment]:
    """Who claims, when, and the number of the attempt."""
    return [
        (spec["claimed_by"], literal(claimed_by, spec["claimed_by"].type)),
        (spec["claimed_at"], utcnow()),
        (spec["attempt"], spec["attempt"] + literal_column("1")),
    ]
