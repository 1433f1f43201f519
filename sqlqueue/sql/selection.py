"""Criteria and statements that select the rows of a queue.  Nothing here is executed or depends on an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any, TypeAlias

from sqlalchemy import (
    Column,
    ColumnElement,
    Delete,
    Select,
    Update,
    and_,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.orm import QueryableAttribute
from sqlalchemy.sql import operators

from .._support.exc import ArgumentError
from .._support.statement_cache import MOST, Memo
from ..queue.spec import Criterion, Ordering, QueueSpec, Where, conjuncts
from ..queue.status import DUE, FINAL, Status
from .clock import utcnow
from .merging import merged
from .partitioning import fixes, listed, listing, unlisted

Assignment: TypeAlias = tuple[Column[Any], Any]
Columns: TypeAlias = Sequence[ColumnElement[Any]]


def state(status: Status) -> ColumnElement[str]:
    """Return ``status`` as a literal: with a bind parameter, planners would not use partial indexes."""
    return literal_column(f"'{status.value}'")


def is_available(spec: QueueSpec) -> Criterion:
    """Return whether the row's status is ``available``; its time may still be later."""
    return spec["status"] == state(Status.AVAILABLE)


def present_status(spec: QueueSpec) -> ColumnElement[str]:
    """Return the status as an expression that optimizers do not match against the predicates of partial indexes.

    They might choose such an index and read all scheduled rows; or fail to see that an index named by a hint contains
    all the rows, which is SQL Server's error 8622.
    """
    return func.coalesce(spec["status"], literal_column("''"))


def has_come(spec: QueueSpec) -> Criterion:
    """Return whether the row's ``available_at`` has passed."""
    return spec["available_at"] <= utcnow()


def is_ready(spec: QueueSpec) -> Criterion:
    """Return whether the row is available now.

    Other programs may insert rows with a later ``available_at`` and leave the status to its default.
    """
    return and_(is_available(spec), has_come(spec))


def is_early(spec: QueueSpec) -> Criterion:
    """Return whether the row is available, but from a later time on."""
    return and_(is_available(spec), spec["available_at"] > utcnow())


def is_due(spec: QueueSpec) -> Criterion:
    """Return whether the row has a status that comes due: retryable, scheduled or running.  Does not compare times."""
    return spec["status"].in_([state(status) for status in DUE])


def is_held(spec: QueueSpec) -> Criterion:
    """Return whether the row's status is ``running``; its lease may have ended."""
    return spec["status"] == state(Status.RUNNING)


def is_held_by_worker(spec: QueueSpec) -> Criterion:
    """Return whether a worker has claimed the row, with a lease."""
    return and_(present_status(spec) == state(Status.RUNNING), spec["claim_token"] < literal_column("0"))


def is_final(spec: QueueSpec) -> Criterion:
    """Return whether the row is completed, cancelled or discarded."""
    return spec["status"].in_([state(status) for status in FINAL])


def is_adopted(spec: QueueSpec) -> Criterion:
    """Return whether the row is final without having been finished: it is from before the table became a queue."""
    return and_(is_final(spec), spec["finished_at"].is_(None))


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
    """The term of ``where`` that lists values of the index's first column: each is read by a range of its own."""
    whole: str | None = None
    """The index that serves all values, if it is divided."""
    made: Memo = field(default_factory=partial(Memo, 8), init=False, repr=False)
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
        """The rows of all parts of the queue, the column that divides it, and the values of it that are picked."""
        divided: Any = self.divided
        rest = tuple(term for term in self.where if term is not divided)
        whole = replace(self, where=rest, index=self.whole, divided=None)
        return whole, divided.left, frozenset(listed(divided))

    def named(self, keys: Criterion, limit: int) -> Pick:
        """The rows of these primary keys that still match, in no order."""
        where = (keys, *self.where)
        return replace(self, where=where, order=(), limit=limit, index=None, divided=None, exact=True)

    def select(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the SELECT of these ``columns`` in order, without the limit."""
        return select(*columns).where(*self.state, *self.where).order_by(*(term.expression for term in self.order))

    def first(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """The SELECT of the first rows, which reads no others ahead of them in any part."""
        return self.merged(lambda part, wanted: part.select(*wanted).limit(part.limit), columns)

    def merged(self, read: Callable[[Pick, Columns], Select[Any]], columns: Columns) -> Select[Any]:
        """The SELECT of ``columns`` of the first rows, with what ``read`` returns for each part."""
        if self.divided is None:
            return read(self, columns)
        return merged(lambda wanted: (read(part, wanted) for part in self.parts), columns, self.order).limit(self.limit)


def picks(
    spec: QueueSpec, where: Sequence[Where] = (), order_by: Sequence[ColumnElement[Any]] = ()
) -> tuple[Callable[[int], Pick], ...]:
    """Return the two steps of a claim, ready rows and due rows.  In a single statement they would need a sort.

    Building a statement takes longer than executing it, so keep the result for repeated claims.
    """
    if where or order_by or spec.inherited is not None:  # more subclasses may be declared later
        return _picks(spec, where, order_by)
    return _all_picks(spec)


@cache
def _all_picks(spec: QueueSpec) -> tuple[Callable[[int], Pick], ...]:
    return _picks(spec, (), ())


def _picks(
    spec: QueueSpec, where: Sequence[Where], order_by: Sequence[ColumnElement[Any]]
) -> tuple[Callable[[int], Pick], ...]:
    terms = [unlisted(term, spec.partitions) for term in terms_of(spec, where)]
    partition = [column for column in spec.partitions if fixes(terms, column)][:1]
    by_key = all(fixes(terms, column) for column in spec.primary_key)
    column, divided = (None, None) if by_key or partition else listing(terms, spec.partitions)
    order = tuple(_given(term) for term in order_by)

    def step(
        kind: str, state: tuple[Criterion, ...], standard: tuple[Ordering, ...], *, served: bool
    ) -> Callable[[int], Pick]:
        index = None if by_key else spec.index_name(kind, partition if column is None else [column])
        # MariaDB does not recognize a text column as constant under an equality, and would sort and lock the partition
        standard = tuple(term for term in standard if term.column not in partition)
        exact = by_key or (served and len(terms) == len(partition))
        fields: dict[str, Any] = {"state": state, "order": order or standard, "index": index, "exact": exact}
        fields |= {"divided": divided, "whole": spec.index_name(kind), "takes_over": kind == "due"}
        shape = partial(Pick, spec=spec, where=tuple(terms), **fields)
        return lru_cache(MOST)(lambda limit: shape(limit=limit))

    return (
        step("claim", (is_available(spec), has_come(spec)), spec.ready_order, served=True),
        step("due", _come_due(spec), spec.due_order, served=False),
    )


def named_picks(spec: QueueSpec, where: Sequence[Where]) -> tuple[Callable[[int], Pick], ...]:
    """Return the single step of a claim of rows that ``where`` selects by primary key, without an index hint."""
    state = or_(is_ready(spec), and_(*_come_due(spec)))
    pick = partial(
        Pick, spec=spec, state=(state,), where=tuple(terms_of(spec, where)), order=(), index=None, exact=True
    )
    return (lambda limit: pick(limit=limit, takes_over=True),)


def _come_due(spec: QueueSpec) -> tuple[Criterion, ...]:
    return (
        spec["finished_at"].is_(None),
        has_come(spec),
        is_due(spec),
        has_attempts(spec),
    )


def has_attempts(spec: QueueSpec) -> Criterion:
    """Return whether the row may be claimed again: attempts are left, or a worker holds it, whose crash counts none."""
    return or_(spec["attempt"] < spec["max_attempts"], is_held_by_worker(spec))


def terms_of(spec: QueueSpec, where: Sequence[Where]) -> Sequence[Criterion]:
    """Return ``where`` as criteria on the queue's table, without nested ANDs, and restricted to the spec's class."""
    terms = conjuncts(_own_criteria(spec, criterion) for criterion in where)
    return terms if spec.inherited is None else [*terms, spec.inherited]


def _given(term: ColumnElement[Any]) -> Ordering:
    modifier = getattr(term, "modifier", None)
    if modifier not in (None, operators.desc_op, operators.asc_op) or hasattr(
        getattr(term, "element", None), "modifier"
    ):
        raise ArgumentError(f"order_by={term}: give columns with asc() or desc(), without further modifiers")
    if modifier in (operators.desc_op, operators.asc_op):
        return Ordering(term.element, modifier is operators.desc_op)
    return Ordering(term)


def _own_criteria(spec: QueueSpec, given: Where) -> Criterion:
    """Return the criterion on the queue's table alone; columns of joined subclasses are looked up by primary key."""
    criterion = given.__clause_element__() if isinstance(given, QueryableAttribute) else given
    if not isinstance(criterion, ColumnElement):
        example = f"{spec.entity.__name__}.id == 7"
        raise ArgumentError(f"{given!r} is not a criterion: give SQL expressions, as in {example}")
    froms = set(criterion._from_objects) - {spec.table}
    if not froms:
        return criterion
    inherited = {table for mapper in spec.mapper.self_and_descendants for table in mapper.tables}
    if not froms <= inherited:
        raise ArgumentError(
            f"the criterion {criterion} uses tables other than {spec.table.name}: use .has(), .any() or exists()"
        )
    joins = [same_key(spec, table) for table in sorted(froms, key=str)]
    return exists().select_from(*froms).where(*joins, criterion).correlate(spec.table)


def same_key(spec: QueueSpec, table: Any) -> Criterion:
    """Return whether a row of ``table``, a table of a joined subclass, belongs to the queue's row."""
    return and_(*(a == b for a, b in zip(spec.primary_key, table.primary_key, strict=True)))


@dataclass(frozen=True, eq=False)
class UniqueBy:
    """A unique key on which an insert may conflict with an existing row."""

    columns: tuple[Column[Any], ...]
    predicate: Criterion | None = None
    """The predicate of its index, if that is partial."""

    def is_row(self, row: Mapping[str, Any]) -> Criterion:
        """Return whether a row has the same key as ``row``."""
        return and_(*(column == row[column.name] for column in self.columns))


def write(spec: QueueSpec, criterion: Criterion, assignments: Sequence[Assignment]) -> Update:
    """Return the UPDATE of the rows that satisfy ``criterion``, with the assignments in the given order."""
    return update(spec.table).where(criterion).ordered_values(*assignments)


def remove(spec: QueueSpec, criterion: Criterion) -> Delete:
    """Return the DELETE of the rows that satisfy ``criterion``."""
    return delete(spec.table).where(criterion)


def is_hung(spec: QueueSpec) -> Criterion:
    """Return whether the lease of the row's claimer has ended without a settlement."""
    return and_(has_come(spec), is_held(spec))


def is_exhausted(spec: QueueSpec) -> Criterion:
    """Return whether the last lease has ended and no attempts are left; never true of rows claimed by workers."""
    return and_(is_held(spec), *_used_up(spec))


def _used_up(spec: QueueSpec) -> tuple[Criterion, ...]:
    """The conditions of :func:`is_exhausted`, except that the row is running."""
    return (
        spec["finished_at"].is_(None),
        has_come(spec),
        is_due(spec),
        spec["attempt"] >= spec["max_attempts"],
        spec["claim_token"] >= literal_column("0"),
    )


def only(spec: QueueSpec, *criteria: Where) -> Criterion:
    """Return the conjunction of ``criteria``, restricted to rows of the spec's class."""
    terms = [_own_criteria(spec, criterion) for criterion in criteria]
    if spec.inherited is not None:
        terms.append(spec.inherited)
    # not true(), which SQLAlchemy 2.1 renders as a condition that Oracle before 23ai does not support
    return and_(*terms) if terms else spec.primary_key[0].is_not(None)


def exhausted_picks(spec: QueueSpec, where: Sequence[Where], *, by_claims: bool) -> Callable[[int], Pick]:
    """Return the pick of exhausted tasks; ``by_claims`` reads the claim index, where running tasks are few."""
    ready, due = picks(spec, where)
    step = ready if by_claims else due
    held = is_held(spec) if by_claims else present_status(spec) == state(Status.RUNNING)
    return lambda limit: replace(step(limit), state=(held, *_used_up(spec)), exact=False)
