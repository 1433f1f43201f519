"""The rows that a claim takes, and the SELECT that finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Select, and_, or_, select
from sqlalchemy.sql import operators

from .._support.exc import ArgumentError
from .._support.statement_cache import CACHE_SIZE, StatementCache
from ..queue.spec import Criterion, Ordering, QueueSpec, Where
from ..queue.status import Status
from .criteria import terms_of
from .merging import merged
from .partitioning import fixes, listed, listing, unlisted
from .states import come_due, has_come, is_available, is_held, is_ready, present_status, state, used_up

Columns: TypeAlias = Sequence[ColumnElement[Any]]
Step: TypeAlias = Callable[[int], "Pick"]
"""A step of a claim: returns its rows, up to a limit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pick:
    """The rows that a claim takes: those in this ``state`` that satisfy ``where``, in ``order``, at most ``limit``."""

    spec: QueueSpec
    state: tuple[Criterion, ...]
    where: tuple[Criterion, ...]
    order: tuple[Ordering, ...]
    limit: int
    index: str | None
    """The index that returns the rows in that order; ``None`` for rows selected by primary key."""
    exact: bool
    """Whether the index covers every criterion, so that a scan reads no rows that do not match, except ready rows with
    a later time, which it skips within the index."""
    takes_over: bool = False
    """Whether there may be running rows among them, whose lease has ended."""
    divided: Criterion | None = None
    """The term of ``where`` that lists values of the index's first column: each value is read from its own range."""
    whole: str | None = None
    """The index that serves all values, if the pick is divided."""
    made: StatementCache = field(default_factory=partial(StatementCache, 8), init=False, repr=False)
    """The cache of statements that adapters have built from this; small, because there are many instances."""

    def without(self, keys: Criterion) -> Pick:
        """Return a copy without the rows with ``keys``: SKIP LOCKED does not skip the transaction's own locks."""
        return replace(self, where=(*self.where, ~keys))

    @property
    def parts(self) -> Sequence[Pick]:
        """A pick for each of the values that this one is divided by, or this one."""
        if self.divided is None:
            return [self]
        divided: Any = self.divided
        rest = tuple(term for term in self.where if term is not divided)
        order = tuple(term for term in self.order if not term.column.shares_lineage(divided.left))
        part = partial(replace, self, order=order, divided=None)
        return [part(where=(divided.left == value, *rest)) for value in listed(divided)]

    def undivided(self) -> tuple[Pick, ColumnElement[Any], frozenset[Any]]:
        """Return the rows of all parts of the queue, the column that divides it, and its values that are picked."""
        divided: Any = self.divided
        rest = tuple(term for term in self.where if term is not divided)
        whole = replace(self, where=rest, index=self.whole, divided=None)
        return whole, divided.left, frozenset(listed(divided))

    def named(self, keys: Criterion, limit: int) -> Pick:
        """Return the rows of these primary keys that still match, in no order."""
        where = (keys, *self.where)
        return replace(self, where=where, order=(), limit=limit, index=None, divided=None, exact=True)

    def select(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the SELECT of these ``columns`` in order, without the limit."""
        return select(*columns).where(*self.state, *self.where).order_by(*(term.expression for term in self.order))

    def merged(self, read: Callable[[Pick, Columns], Select[Any]], columns: Columns) -> Select[Any]:
        """Return the SELECT of ``columns`` of the first rows, merged from what ``read`` returns for each part."""
        if self.divided is None:
            return read(self, columns)
        return merged(lambda wanted: (read(part, wanted) for part in self.parts), columns, self.order).limit(self.limit)


def picks(
    spec: QueueSpec, where: Sequence[Where] = (), order_by: Sequence[ColumnElement[Any]] = ()
) -> tuple[Step, Step]:
    """Return the two steps of a claim, ready rows and due rows.  In a single statement they would need a sort.

    Building a statement takes longer than executing it, so keep the result for repeated claims.
    """
    if where or order_by or spec.inherited is not None:  # more subclasses may be declared later
        return _picks(spec, where, order_by)
    return _all_picks(spec)


@cache
def _all_picks(spec: QueueSpec) -> tuple[Step, Step]:
    return _picks(spec, (), ())


def _picks(spec: QueueSpec, where: Sequence[Where], order_by: Sequence[ColumnElement[Any]]) -> tuple[Step, Step]:
    terms = [unlisted(term, spec.partitions) for term in terms_of(spec, where)]
    partition = [column for column in spec.partitions if fixes(terms, column)][:1]
    by_key = all(fixes(terms, column) for column in spec.primary_key)
    column, divided = (None, None) if by_key or partition else listing(terms, spec.partitions)
    order = tuple(_given(term) for term in order_by)

    def step(kind: str, in_state: tuple[Criterion, ...], standard: tuple[Ordering, ...], *, served: bool) -> Step:
        # MariaDB does not recognize a text column as constant under an equality, and would sort and lock the partition
        standard = tuple(term for term in standard if term.column not in partition)
        pick = partial(
            Pick,
            spec=spec,
            state=in_state,
            where=tuple(terms),
            order=order or standard,
            index=None if by_key else spec.index_name(kind, partition if column is None else [column]),
            exact=by_key or (served and len(terms) == len(partition)),
            takes_over=kind == "due",
            divided=divided,
            whole=spec.index_name(kind),
        )
        return lru_cache(CACHE_SIZE)(lambda limit: pick(limit=limit))

    return (
        step("claim", (is_available(spec), has_come(spec)), spec.ready_order, served=True),
        step("due", come_due(spec), spec.due_order, served=False),
    )


def named_picks(spec: QueueSpec, where: Sequence[Where]) -> tuple[Step]:
    """Return the single step of a claim of rows that ``where`` selects by primary key, without an index hint."""
    claimable = or_(is_ready(spec), and_(*come_due(spec)))
    pick = partial(
        Pick, spec=spec, state=(claimable,), where=tuple(terms_of(spec, where)), order=(), index=None, exact=True
    )
    return (lambda limit: pick(limit=limit, takes_over=True),)


def exhausted_picks(spec: QueueSpec, where: Sequence[Where], *, by_claims: bool) -> Step:
    """Return the pick of exhausted tasks; ``by_claims`` reads the claim index, where running tasks are few."""
    ready, due = picks(spec, where)
    step = ready if by_claims else due
    held = is_held(spec) if by_claims else present_status(spec) == state(Status.RUNNING)
    return lambda limit: replace(step(limit), state=(held, *used_up(spec)), exact=False)


def _given(term: ColumnElement[Any]) -> Ordering:
    modifier = getattr(term, "modifier", None)
    if modifier not in (None, operators.desc_op, operators.asc_op) or hasattr(
        getattr(term, "element", None), "modifier"
    ):
        raise ArgumentError(f"order_by={term}: give columns with asc() or desc(), without further modifiers")
    if modifier in (operators.desc_op, operators.asc_op):
        return Ordering(term.element, modifier is operators.desc_op)
    return Ordering(term)
