"""From a spec to Core statements.  Nothing here is executed, and nothing knows an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from sqlalchemy.sql.elements import BindParameter

from .._support.exc import ArgumentError
from .._support.statement_cache import MOST, Memo
from ..queue.spec import Criterion, Ordering, QueueSpec, Where, conjuncts
from ..queue.status import DUE, FINAL, Status
from .clock import utcnow

Assignment: TypeAlias = tuple[Column[Any], Any]


def state(status: Status) -> ColumnElement[str]:
    """A status as a literal: a bound one would keep partial indexes from matching."""
    return literal_column(f"'{status.value}'")


def is_available(spec: QueueSpec) -> Criterion:
    return spec["status"] == state(Status.AVAILABLE)


def present_status(spec: QueueSpec) -> ColumnElement[str]:
    """The status, said so that no optimizer joins what is asked of it with the condition of an index.

    It could come to read all that are scheduled by that index; or, where the index is named, not see that this has all
    that are asked for, which is error 8622 of SQL Server.
    """
    return func.coalesce(spec["status"], literal_column("''"))


def has_come(spec: QueueSpec) -> Criterion:
    return spec["available_at"] <= utcnow()


def is_ready(spec: QueueSpec) -> Criterion:
    """Available, and not for a later moment: other programs may insert one and leave the status to its default."""
    return and_(is_available(spec), has_come(spec))


def is_early(spec: QueueSpec) -> Criterion:
    """Available for a later moment."""
    return and_(is_available(spec), spec["available_at"] > utcnow())


def is_due(spec: QueueSpec) -> Criterion:
    """The states that come due; the moment is for the caller to add."""
    return spec["status"].in_([state(status) for status in DUE])


def is_held(spec: QueueSpec) -> Criterion:
    return spec["status"] == state(Status.RUNNING)


def is_final(spec: QueueSpec) -> Criterion:
    return spec["status"].in_([state(status) for status in FINAL])


def is_adopted(spec: QueueSpec) -> Criterion:
    """Final, but not finished by the queue: a row that was in the table before it became one."""
    return and_(is_final(spec), spec["finished_at"].is_(None))


@dataclass(frozen=True, kw_only=True, eq=False)
class Pick:
    """Which rows a claim takes: those in this ``state`` that satisfy ``where``, in ``order``, at most ``limit``."""

    spec: QueueSpec
    state: tuple[Criterion, ...]
    where: tuple[Criterion, ...]
    order: tuple[Ordering, ...]
    limit: int
    index: str | None
    """The index that serves them in that order; ``None`` if they are named by primary key."""
    exact: bool
    """Whether that index serves every criterion, the state's too, but for the moment of ready rows, which it holds."""
    made: Memo = field(default_factory=partial(Memo, 5), init=False, repr=False)
    """The statements that adapters have made of it: few, for there are many of these."""

    def without(self, keys: Criterion) -> Pick:
        """The same, but for rows that the claimer holds already: SKIP LOCKED does not skip its own locks."""
        return replace(self, where=(*self.where, ~keys))

    def select(self, *columns: ColumnElement[Any]) -> Select[Any]:
        return select(*columns).where(*self.state, *self.where).order_by(*(term.expression for term in self.order))


def picks(
    spec: QueueSpec, where: Sequence[Where] = (), order_by: Sequence[ColumnElement[Any]] = ()
) -> tuple[Callable[[int], Pick], ...]:
    """The two steps of a claim, ready rows and due rows.  Together in one statement they would need a sort.

    To make a statement takes longer than to have it executed, so what asks for the same again should keep these.
    """
    if where or order_by or spec.inherited is not None:  # classes that inherit may still be declared
        return _picks(spec, where, order_by)
    return _all_picks(spec)


@cache
def _all_picks(spec: QueueSpec) -> tuple[Callable[[int], Pick], ...]:
    return _picks(spec, (), ())


def _picks(
    spec: QueueSpec, where: Sequence[Where], order_by: Sequence[ColumnElement[Any]]
) -> tuple[Callable[[int], Pick], ...]:
    terms = _terms(spec, where)
    partition = [column for column in spec.partitions if _fixes(terms, column)][:1]
    by_key = all(_fixes(terms, column) for column in spec.primary_key)
    order = tuple(_given(term) for term in order_by)

    def step(
        kind: str, state: tuple[Criterion, ...], standard: tuple[Ordering, ...], *, served: bool
    ) -> Callable[[int], Pick]:
        index = None if by_key else spec.index_name(kind, partition)
        # MariaDB does not see that an equality makes a text constant, and would sort, and lock, all of the partition
        standard = tuple(term for term in standard if term.column not in partition)
        exact = by_key or (served and len(terms) == len(partition))
        shape = partial(
            Pick, spec=spec, state=state, where=tuple(terms), order=order or standard, index=index, exact=exact
        )
        return lru_cache(MOST)(lambda limit: shape(limit=limit))

    return (
        step("claim", (is_available(spec), has_come(spec)), spec.ready_order, served=True),
        step("due", _come_due(spec), spec.due_order, served=False),
    )


def named_picks(spec: QueueSpec, where: Sequence[Where]) -> tuple[Callable[[int], Pick], ...]:
    """The one step of a claim of rows that ``where`` names by primary key: the index that finds them is that."""
    state = or_(is_ready(spec), and_(*_come_due(spec)))
    pick = partial(Pick, spec=spec, state=(state,), where=tuple(_terms(spec, where)), order=(), index=None, exact=True)
    return (lambda limit: pick(limit=limit),)


def _come_due(spec: QueueSpec) -> tuple[Criterion, ...]:
    return (
        spec["finished_at"].is_(None),
        has_come(spec),
        is_due(spec),
        spec["attempt"] < spec["max_attempts"],
    )


def _terms(spec: QueueSpec, where: Sequence[Where]) -> Sequence[Criterion]:
    terms = conjuncts(_own_criteria(spec, criterion) for criterion in where)
    return terms if spec.inherited is None else [*terms, spec.inherited]


def _given(term: ColumnElement[Any]) -> Ordering:
    modifier = getattr(term, "modifier", None)
    if modifier not in (None, operators.desc_op, operators.asc_op) or hasattr(
        getattr(term, "element", None), "modifier"
    ):
        raise ArgumentError(f"order_by={term}: a claim goes by columns, ascending or descending; no other modifier")
    if modifier in (operators.desc_op, operators.asc_op):
        return Ordering(term.element, modifier is operators.desc_op)
    return Ordering(term)


def _fixes(terms: Iterable[Criterion], column: Column[Any]) -> bool:
    """Whether one of ``terms`` is an equality with a value for ``column``."""
    return any(
        getattr(term, "operator", None) is operators.eq
        and column.shares_lineage(term.left)
        and isinstance(term.right, BindParameter)
        for term in terms
    )


def _own_criteria(spec: QueueSpec, given: Where) -> Criterion:
    """What was ``given``, on the queue's table alone; columns that an inheriting class adds are looked up by key."""
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
            f"the criterion {criterion} reads other tables than {spec.table.name}: use .has(), .any() or exists()"
        )
    joins = [same_key(spec, table) for table in sorted(froms, key=str)]
    return exists().select_from(*froms).where(*joins, criterion).correlate(spec.table)


def same_key(spec: QueueSpec, table: Any) -> Criterion:
    """The row of ``table``, one of those that an inheriting class is spread over, that belongs to the queue's row."""
    return and_(*(a == b for a, b in zip(spec.primary_key, table.primary_key, strict=True)))


@dataclass(frozen=True, eq=False)
class UniqueBy:
    """The unique key by which an insert may meet a row."""

    columns: tuple[Column[Any], ...]
    predicate: Criterion | None = None
    """Of its index, where that is partial."""

    def is_row(self, row: Mapping[str, Any]) -> Criterion:
        """Holds for the one that has the key of ``row``."""
        return and_(*(column == row[column.name] for column in self.columns))


def write(spec: QueueSpec, criterion: Criterion, assignments: Sequence[Assignment]) -> Update:
    return update(spec.table).where(criterion).ordered_values(*assignments)


def remove(spec: QueueSpec, criterion: Criterion) -> Delete:
    return delete(spec.table).where(criterion)


def is_hung(spec: QueueSpec) -> Criterion:
    """Its claimer's lease has ended, with nothing settled."""
    return and_(has_come(spec), is_held(spec))


def is_exhausted(spec: QueueSpec) -> Criterion:
    """Its last claimer's lease has ended, and no attempt is left."""
    return and_(
        spec["finished_at"].is_(None),
        is_hung(spec),
        is_due(spec),
        spec["attempt"] >= spec["max_attempts"],
    )


def only(spec: QueueSpec, *criteria: Where) -> Criterion:
    """All of ``criteria``, for the rows of this class alone."""
    terms = [_own_criteria(spec, criterion) for criterion in criteria]
    if spec.inherited is not None:
        terms.append(spec.inherited)
    # not true(), of which SQLAlchemy 2.1 makes a condition that Oracle before 23ai does not know
    return and_(*terms) if terms else spec.primary_key[0].is_not(None)


def exhausted_picks(spec: QueueSpec, where: Sequence[Where], *, by_claims: bool) -> Callable[[int], Pick]:
    """Tasks that :func:`is_exhausted` holds for, ``by_claims`` by the index of claims: running tasks are few."""
    ready, due = picks(spec, where)
    step = ready if by_claims else due
    return lambda limit: replace(step(limit), state=(is_exhausted(spec),), exact=False)
