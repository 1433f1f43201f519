"""The fence: the columns and criteria that distinguish one claim of a row from any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, literal

from .._support.claim import Claim
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ..sql.changes import Assignment, raised
from ..sql.clock import utcnow
from ..sql.states import is_final, present_status, state


@dataclass(frozen=True, kw_only=True)
class Fence:
    """How claims that are being settled hold their rows: by a lease written to the row, or by its lock alone."""

    spec: QueueSpec
    claimed_by: str | None = None
    """The claimer's name for a claim with ``lease=None``, which has written nothing yet; otherwise ``None``."""
    waits: bool = True
    """Whether settling waits for rows that others have locked; otherwise it skips them."""

    @property
    def only_locked(self) -> bool:
        """Whether the claims hold their rows by a lock alone (``lease=None``)."""
        return self.claimed_by is not None

    @property
    def attempt(self) -> ColumnElement[int]:
        """The number of the attempt that is being settled."""
        return raised(self.spec["attempt"]) if self.only_locked else self.spec["attempt"]

    @property
    def fresh_budget(self) -> ColumnElement[int]:
        """The ``max_attempts`` with which the task has all its attempts again."""
        return raised(self.attempt, self.spec.options.max_attempts)

    @property
    def runs_again(self) -> Criterion | None:
        """The criterion of tasks that were enqueued again while they ran, which cleared their ``claimed_at``."""
        return None if self.only_locked else self.spec["claimed_at"].is_(None)

    def marks(self, claims: Sequence[Claim]) -> list[tuple[int, ...]]:
        """Return the values of :attr:`marked` in the rows while ``claims`` hold them."""
        if self.only_locked:
            return [(claim.attempt,) for claim in claims]
        return [(claim.attempt, claim.token) for claim in claims]

    @property
    def marked(self) -> tuple[ColumnElement[int], ...]:
        """The columns that distinguish a claim from others of the same row, which can have the same attempt number."""
        return (self.attempt,) if self.only_locked else (self.attempt, self.spec["claim_token"])

    def unsettled(self, mine: Criterion) -> Criterion:
        """Restrict ``mine``, the criterion of rows with the claims' keys and marks, to rows that are still held."""
        if self.only_locked:
            return and_(mine, ~is_final(self.spec))
        return and_(mine, present_status(self.spec) == state(Status.RUNNING))

    def written(self) -> list[Assignment]:
        """Return the assignments that a claim with ``lease=None`` has not made yet."""
        return stamp(self.spec, self.claimed_by) if self.claimed_by is not None else []


def stamp(spec: QueueSpec, claimed_by: str) -> list[Assignment]:
    """Return the assignments of a claim's name, time and attempt number."""
    return [
        (spec["claimed_by"], literal(claimed_by, spec["claimed_by"].type)),
        (spec["claimed_at"], utcnow()),
        (spec["attempt"], raised(spec["attempt"])),
    ]
