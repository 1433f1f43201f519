"""The fence: the conditional UPDATE that decides whether a claim is still its session's."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Delete, Update, and_, bindparam, literal
from sqlalchemy.orm import Session

from .._support.errors import Claim
from ..dialects.base import Adapter
from ..queue.options import Status
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.rows import (
    Assignment,
    all_attempts_after,
    is_enqueued_again,
    is_final,
    present_status,
    raised,
    remove,
    state,
    utcnow,
    write,
)

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
        return all_attempts_after(self.spec, self.attempt)

    @property
    def runs_again(self) -> Criterion | None:
        """The criterion of tasks that were enqueued again while they ran; ``None`` if that cannot be."""
        return None if self.only_locked else is_enqueued_again(self.spec)

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

    def update(
        self, assignments: Callable[[], Sequence[Assignment]], *, key: Hashable = None, only: Criterion | None = None
    ) -> set[Identity]:
        """Write to the rows that the claims still hold; return their primary keys.

        ``key``: under which the statement is cached; it contains everything that ``assignments`` and ``only`` depend on
        besides how the rows are held.  ``None``: not cached.  ``only``: an additional criterion.
        """
        return self._change(
            lambda mine: write(self.fence.spec, mine if only is None else and_(mine, only), assignments()), key
        )

    def write(self, assignments: Sequence[Assignment]) -> set[Identity]:
        """Call :meth:`update` with a statement that is not cached."""
        return self.update(lambda: assignments)

    def delete(self, *, key: Hashable, spared: Criterion | None) -> set[Identity]:
        """Delete the rows that the claims still hold, except those that are ``spared``; return their primary keys."""
        return self._change(lambda mine: remove(self.fence.spec, mine if spared is None else mine & ~spared), key)

    def _change(self, make: Callable[[Criterion], Update | Delete], key: Hashable) -> set[Identity]:
        """Execute the statement that ``make`` builds from the fence; return the primary keys of the changed rows."""
        if not self.claims:
            return set()
        fence, keys = self.fence, self.adapter.rows
        spec, identities, marks = fence.spec, self.identities, fence.marks(self.claims)
        are_alike = len(set(marks)) == 1
        parameters = None
        if key is None or not (are_alike or keys.names_rows):
            statement = make(self._unlocked(self.criterion()))
        else:
            count = keys.statement_size(spec, len(self.claims))
            statement = spec.made.get(
                (self.adapter, fence, key, count, are_alike),
                lambda: make(self._unlocked(self._criterion_named(count, are_alike=are_alike))),
            )
            parameters = dict(keys.key_parameters(spec, identities))
            if are_alike:
                parameters.update(zip(_MARKS, marks[0], strict=False))
            else:
                parameters.update(keys.row_parameters(spec, _rows(identities, marks)))
        return self.adapter.rows.change(self.session, spec, statement, identities, parameters, waits=fence.waits)

    def _unlocked(self, mine: Criterion) -> Criterion:
        """Exclude locked rows if the settlement does not wait for them."""
        return mine if self.fence.waits else self.adapter.rows.skip_locked_rows(self.fence.spec, mine)

    def criterion(self) -> Criterion:
        """Return the criterion of the rows that these claims still hold."""
        fence, spec, marks = self.fence, self.fence.spec, self.fence.marks(self.claims)
        keys = self.adapter.rows.key_in(spec, self.identities)
        if len(set(marks)) == 1:
            marked = (column == mark for column, mark in zip(fence.marked, marks[0], strict=True))
            return fence.unsettled(and_(*marked, keys))
        # also the keys alone, so that an index finds the rows
        columns, rows = (*spec.primary_key, *fence.marked), _rows(self.identities, marks)
        return fence.unsettled(and_(keys, self.adapter.rows.rows_in(spec, columns, rows)))

    def _criterion_named(self, count: int, *, are_alike: bool) -> Criterion:
        """Return :meth:`criterion` for ``count`` keys and the marks, as parameters."""
        fence, spec = self.fence, self.fence.spec
        keys = self.adapter.rows.key_in_parameters(spec, count)
        if not are_alike:
            return fence.unsettled(and_(keys, self.adapter.rows.rows_in(spec, (*spec.primary_key, *fence.marked))))
        named = zip(fence.marked, _MARKS, strict=False)
        return fence.unsettled(and_(*(column == bindparam(name, type_=column.type) for column, name in named), keys))


def _rows(identities: Sequence[Identity], marks: Sequence[tuple[int, ...]]) -> list[Identity]:
    return [(*identity, *mark) for identity, mark in zip(identities, marks, strict=True)]
