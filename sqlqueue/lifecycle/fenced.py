"""How a settlement is written: one fenced statement for claims that are alike."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Delete, Update, and_, bindparam
from sqlalchemy.orm import Session

from .._support.claim import Claim
from ..dialects.base import Adapter
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.selection import Assignment, remove, write
from .held import Held

ATTEMPT = "sqlqueue_attempt"
TOKEN = "sqlqueue_token"
_MARKS = (ATTEMPT, TOKEN)
"""The parameters for :attr:`.Held.marked`, where all claims have the same there."""

Values: TypeAlias = Callable[[Held, Sequence[Claim]], Sequence[Assignment]]
"""Gives what is written to the rows of claims."""


@dataclass(frozen=True, eq=False)
class Fenced:
    """Claims that hold their rows in the same way, and the session that settles them."""

    adapter: Adapter
    session: Session
    held: Held
    claims: Sequence[Claim]

    @property
    def spec(self) -> QueueSpec:
        return self.held.spec

    @property
    def identities(self) -> list[Identity]:
        return [claim.identity for claim in self.claims]

    def of(self, claims: Sequence[Claim]) -> Fenced:
        """Some of the claims."""
        return replace(self, claims=claims)

    def without(self, identities: Container[Identity]) -> Fenced:
        return self.of([claim for claim in self.claims if claim.identity not in identities])

    def update(self, values: Values, *, like: Hashable | None = None, only: Criterion | None = None) -> set[Identity]:
        """Write to the rows of claims that are still theirs; returns which those are.

        ``like``: all that ``values`` and ``only`` go by besides how the rows are held, if the statement is worth
        keeping.  ``only``: what must hold for a row besides.
        """
        return self._change(
            lambda mine: write(self.spec, mine if only is None else and_(mine, only), values(self.held, self.claims)),
            like,
        )

    def write(self, assignments: Sequence[Assignment]) -> set[Identity]:
        """:meth:`update` with the same for whatever claims."""
        return self.update(lambda *_: assignments)

    def delete(self, *, like: Hashable, spared: Criterion | None) -> set[Identity]:
        """Delete the rows of claims that are still theirs, but for those that are ``spared``; returns which."""
        return self._change(lambda mine: remove(self.spec, mine if spared is None else mine & ~spared), like)

    def _change(self, make: Callable[[Criterion], Update | Delete], like: Hashable | None) -> set[Identity]:
        """Execute the statement that ``make`` makes of the condition by which rows are still those of the claims."""
        if not self.claims:
            return set()
        spec, adapter, held = self.spec, self.adapter, self.held
        parameters = None
        if like is None or not (self._are_alike or adapter.keys.names_rows):
            statement = make(self._unlocked(self.fence()))
        else:
            count = adapter.keys.named_for(spec, len(self.claims))
            statement = spec.made.get(
                (adapter, held, like, count, self._are_alike), lambda: make(self._unlocked(self._fence_named(count)))
            )
            parameters = self._fence_names()
        return adapter.rows.change(self.session, spec, statement, self.identities, parameters, waits=held.waits)

    def _unlocked(self, mine: Criterion) -> Criterion:
        """Without what others have locked, where that is not waited for."""
        return mine if self.held.waits else self.adapter.locking.passing_over(self.spec, mine)

    @cached_property
    def _are_alike(self) -> bool:
        """Whether one call made the claims, in one attempt."""
        return len({self.held.marks(claim) for claim in self.claims}) == 1

    def fence(self) -> Criterion:
        """Holds for the rows that are still held by these claims."""
        keys = self.adapter.keys.key_in(self.spec, self.identities)
        if self._are_alike:
            marks = zip(self.held.marked, self.held.marks(self.claims[0]), strict=True)
            return self.held.unsettled(and_(*(column == mark for column, mark in marks), keys))
        # the keys by themselves too, by which rows are found
        return self.held.unsettled(and_(keys, self.adapter.keys.rows_in(self._columns, self._rows)))

    def _fence_named(self, count: int) -> Criterion:
        """:meth:`fence` of ``count`` keys with the parameters of :meth:`_fence_names`."""
        keys = self.adapter.keys.keys_named(self.spec, count)
        if not self._are_alike:
            return self.held.unsettled(and_(keys, self.adapter.keys.rows_in(self._columns)))
        marks = zip(self.held.marked, _MARKS, strict=False)
        return self.held.unsettled(
            and_(*(column == bindparam(name, type_=column.type) for column, name in marks), keys)
        )

    def _fence_names(self) -> dict[str, Any]:
        names = self.adapter.keys.key_names(self.spec, self.identities)
        if not self._are_alike:
            return {**names, **self.adapter.keys.row_names(self._rows)}
        return {**names, **dict(zip(_MARKS, self.held.marks(self.claims[0]), strict=False))}

    @property
    def _columns(self) -> Sequence[ColumnElement[Any]]:
        return (*self.spec.primary_key, *self.held.marked)

    @property
    def _rows(self) -> list[Identity]:
        return [(*claim.identity, *self.held.marks(claim)) for claim in self.claims]
