"""The fence: the conditional UPDATE that decides whether a claim is still its session's."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Delete, Update, and_, bindparam, literal
from sqlalchemy.orm import Session

from .._support.errors import Claim
from ..dialects.base import Adapter
from ..queue.options import Status
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.rows import Assignment, is_final, present_status, raised, remove, state, utcnow, write

# -- the fence: the columns and criteria that distinguish one claim of a row from any other ---------------------------


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


# -- writes settlements: one fenced statement for claims that hold their rows in the same way -------------------------

ATTEMPT = "sqlqueue_attempt"
TOKEN = "sqlqueue_token"
_MARKS = (ATTEMPT, TOKEN)
"""The parameters for :attr:`.Fence.marked` if its values are the same for all claims."""

Values: TypeAlias = Callable[[Fence, Sequence[Claim]], Sequence[Assignment]]
"""Returns the assignments to the rows of claims."""


@dataclass(frozen=True, eq=False)
class FencedClaims:
    """Claims that hold their rows in the same way, and the session that settles them."""

    adapter: Adapter
    session: Session
    fence: Fence
    claims: Sequence[Claim]

    @property
    def spec(self) -> QueueSpec:
        """The queue of the claims."""
        return self.fence.spec

    @property
    def identities(self) -> list[Identity]:
        """The primary keys of the claimed rows."""
        return [claim.identity for claim in self.claims]

    def of(self, claims: Sequence[Claim]) -> FencedClaims:
        """Return a copy with only ``claims``, a subset of these."""
        return FencedClaims(self.adapter, self.session, self.fence, claims)

    def without(self, identities: Container[Identity]) -> FencedClaims:
        """Return a copy without the claims of these rows."""
        return self.of([claim for claim in self.claims if claim.identity not in identities])

    def update(self, values: Values, *, like: Hashable | None = None, only: Criterion | None = None) -> set[Identity]:
        """Write to the rows that the claims still hold; return their primary keys.

        ``like``: the cache key of the statement, which contains everything that ``values`` and ``only`` depend on
        besides how the rows are held; ``None``: not cached.  ``only``: an additional criterion.
        """
        return self._change(
            lambda mine: write(self.spec, mine if only is None else and_(mine, only), values(self.fence, self.claims)),
            like,
        )

    def write(self, assignments: Sequence[Assignment]) -> set[Identity]:
        """Call :meth:`update` with assignments that do not depend on the claims."""
        return self.update(lambda *_: assignments)

    def delete(self, *, like: Hashable, spared: Criterion | None) -> set[Identity]:
        """Delete the rows that the claims still hold, except those that are ``spared``; return their primary keys."""
        return self._change(lambda mine: remove(self.spec, mine if spared is None else mine & ~spared), like)

    def _change(self, make: Callable[[Criterion], Update | Delete], like: Hashable | None) -> set[Identity]:
        """Execute the statement that ``make`` builds from the fence; return the primary keys of the changed rows."""
        if not self.claims:
            return set()
        spec, adapter, fence = self.spec, self.adapter, self.fence
        parameters = None
        if like is None or not (self._are_alike or adapter.keys.names_rows):
            statement = make(self._unlocked(self.criterion()))
        else:
            count = adapter.keys.named_for(spec, len(self.claims))
            statement = spec.made.get(
                (adapter, fence, like, count, self._are_alike),
                lambda: make(self._unlocked(self._criterion_named(count))),
            )
            parameters = self._parameters()
        return adapter.rows.change(self.session, spec, statement, self.identities, parameters, waits=fence.waits)

    def _unlocked(self, mine: Criterion) -> Criterion:
        """Exclude locked rows if the settlement does not wait for them."""
        return mine if self.fence.waits else self.adapter.locking.passing_over(self.spec, mine)

    @cached_property
    def _are_alike(self) -> bool:
        """Whether all claims have the same marks: one call made them, with the same attempt number."""
        return len(set(self.fence.marks(self.claims))) == 1

    def criterion(self) -> Criterion:
        """Return the criterion of the rows that these claims still hold."""
        keys = self.adapter.keys.key_in(self.spec, self.identities)
        if self._are_alike:
            marks = zip(self.fence.marked, self._common_marks, strict=True)
            return self.fence.unsettled(and_(*(column == mark for column, mark in marks), keys))
        # also the keys alone, so that an index finds the rows
        return self.fence.unsettled(and_(keys, self.adapter.keys.rows_in(self.spec, self._columns, self._rows)))

    def _criterion_named(self, count: int) -> Criterion:
        """Return :meth:`criterion` for ``count`` keys, with the parameters of :meth:`_parameters`."""
        keys = self.adapter.keys.keys_named(self.spec, count)
        if not self._are_alike:
            return self.fence.unsettled(and_(keys, self.adapter.keys.rows_in(self.spec, self._columns)))
        marks = zip(self.fence.marked, _MARKS, strict=False)
        return self.fence.unsettled(
            and_(*(column == bindparam(name, type_=column.type) for column, name in marks), keys)
        )

    def _parameters(self) -> dict[str, Any]:
        names = self.adapter.keys.key_names(self.spec, self.identities)
        if not self._are_alike:
            return {**names, **self.adapter.keys.row_names(self.spec, self._rows)}
        return {**names, **dict(zip(_MARKS, self._common_marks, strict=False))}

    @property
    def _common_marks(self) -> tuple[int, ...]:
        """The marks of every claim, if they are alike."""
        return self.fence.marks(self.claims[:1])[0]

    @property
    def _columns(self) -> Sequence[ColumnElement[Any]]:
        return (*self.spec.primary_key, *self.fence.marked)

    @property
    def _rows(self) -> list[Identity]:
        return [(*key, *marks) for key, marks in zip(self.identities, self.fence.marks(self.claims), strict=True)]
