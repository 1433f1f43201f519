"""Which rows, in which order: criteria, partitions, places, and the picks that claims search with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any, TypeAlias

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    and_,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
)
from sqlalchemy.orm import QueryableAttribute
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter

from .._support.errors import ArgumentError
from .._support.private import tables_in
from ..queue.options import Status
from ..queue.spec import CACHE_SIZE, Criterion, Ordering, QueueSpec, StatementCache, Where, conjuncts
from .rows import KeyText, come_due, has_come, is_available, is_held, is_ready, present_status, state, used_up

# -- turns the criteria that applications give into criteria on the queue's table -------------------------------------


def terms_of(spec: QueueSpec, where: Sequence[Where]) -> Sequence[Criterion]:
    """Return ``where`` as criteria on the queue's table, without nested ANDs, and restricted to the spec's class."""
    terms = conjuncts(_own_criteria(spec, criterion) for criterion in where)
    return terms if spec.inherited is None else [*terms, spec.inherited]


def only(spec: QueueSpec, *criteria: Where) -> Criterion:
    """Return the conjunction of ``criteria``, restricted to rows of the spec's class."""
    terms = [_own_criteria(spec, criterion) for criterion in criteria]
    if spec.inherited is not None:
        terms.append(spec.inherited)
    # not true(), which SQLAlchemy 2.1 renders as a condition that Oracle before 23ai does not support
    return and_(*terms) if terms else spec.primary_key[0].is_not(None)


def _own_criteria(spec: QueueSpec, given: Where) -> Criterion:
    """Return the criterion on the queue's table alone; columns of joined subclasses are read by primary key."""
    criterion = given.__clause_element__() if isinstance(given, QueryableAttribute) else given
    if not isinstance(criterion, ColumnElement):
        example = f"{spec.entity.__name__}.id == 7"
        raise ArgumentError(f"{given!r} is not a criterion: give SQL expressions, as in {example}")
    froms = tables_in(criterion) - {spec.table}
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


# -- finds the criteria that restrict a claim to some partitions of its queue -----------------------------------------

_Listing: TypeAlias = tuple[Column[Any], Criterion] | tuple[None, None]
MAX_PARTS = 200
"""The maximum number of listed values that a claim reads one by one.  Engines limit the parts of a statement (SQLite:
500)."""


def given(term: Any, column: Column[Any]) -> Sequence[Any]:
    """Return the values that ``term`` allows for ``column``, if it is an equality or a list of values."""
    left = getattr(term, "left", None)
    if left is None or not column.shares_lineage(left):
        return ()
    return [term.right.value] if fixes([term], column) else listed(term)


def fixes(terms: Iterable[Criterion], column: Column[Any]) -> bool:
    """Return whether one of ``terms`` is an equality with a value for ``column``."""
    return any(
        getattr(term, "operator", None) is operators.eq
        and column.shares_lineage(term.left)
        and isinstance(term.right, BindParameter)
        for term in terms
    )


def listing(terms: Sequence[Criterion], columns: Iterable[Column[Any]]) -> _Listing:
    """Return the first of ``columns`` for which one of ``terms`` lists values, and that term; ``None`` for both if
    there is none.

    Only lists of at most :data:`MAX_PARTS` values count.  Raises :class:`.ArgumentError` for values that a text key
    cannot have, because a claim may compare them without sending them.
    """
    for column in columns:
        for term in terms:
            if _lists(term, column):
                if isinstance(column.type, KeyText):
                    column.type.check(listed(term))
                return column, term
    return None, None


def _lists(term: Any, column: Column[Any]) -> bool:
    return 1 < len(listed(term)) <= MAX_PARTS and column.shares_lineage(term.left)


def unlisted(term: Any, columns: Sequence[Column[Any]]) -> Criterion:
    """Return a list of one value of one of ``columns`` as an equality, and any other term unchanged."""
    values = listed(term)
    single = len(values) == 1 and any(column.shares_lineage(term.left) for column in columns)
    criterion: Criterion = term.left == values[0] if single else term
    return criterion


def listed(term: Any) -> Sequence[Any]:
    """Return the different values of ``column IN (values)``; none for any other term, or if one of them is NULL."""
    given = getattr(term, "right", None) if getattr(term, "operator", None) is operators.in_op else None
    values = given.value if isinstance(given, BindParameter) and isinstance(given.value, list | tuple) else ()
    usable = all(value is not None and isinstance(value, Hashable) for value in values)
    return list(dict.fromkeys(values)) if usable else ()


# -- reads several parts of a queue in one order, each from its own range of an index ---------------------------------

Read: TypeAlias = Callable[[Sequence[ColumnElement[Any]]], Iterable[Select[Any]]]
"""Returns one limited SELECT of these columns for each part."""


def merged(read: Read, columns: Sequence[ColumnElement[Any]], order: Sequence[Ordering]) -> Select[Any]:
    """Return the SELECT of ``columns`` from all parts, in ``order``; the caller adds the limit.

    An engine reads at most the limit from each part, however many other rows the table has.
    """
    wanted = [column.label(f"read_{n}") for n, column in enumerate(columns)]
    places = [term.column.label(f"place_{n}") for n, term in enumerate(order)]
    parts = (part.subquery() for part in read([*wanted, *places]))
    found = union_all(*(select(*part.c) for part in parts)).subquery("found")
    again = (found.c[label.name].label(_name_of(column)) for label, column in zip(wanted, columns, strict=True))
    by = (term.over(found.c[label.name]) for label, term in zip(places, order, strict=True))
    return select(*again).order_by(*by)


def _name_of(column: ColumnElement[Any]) -> str | None:
    name = getattr(column, "name", None)
    return None if name is None else str(name)


# -- the position of a row in an order: the number of rows before it, up to a cap -------------------------------------

COUNTED = 1_000
"""The maximum number of rows that are counted in each range of an order."""

Values = Mapping[ColumnElement[Any], Any]


def before(order: Sequence[Ordering], values: Values) -> Iterator[Criterion]:
    """Yield the ranges of ``order`` before the row with these ``values``.

    They are disjoint, and each is one range of an index on the columns of ``order``.
    """
    for number, term in enumerate(order):
        same = (earlier.column == _literal(earlier, values) for earlier in order[:number])
        value = _literal(term, values)
        yield and_(*same, term.column > value if term.descending else term.column < value)


def capped_count(spec: QueueSpec, *criteria: Where) -> ColumnElement[int]:
    """Return the number of rows that satisfy all of ``criteria``, :data:`COUNTED` at most, as a subquery."""
    rows = select(literal_column("1").label("one")).where(only(spec, *criteria)).limit(COUNTED).subquery()
    return select(func.count()).select_from(rows).scalar_subquery()


def counts_before(spec: QueueSpec, order: Sequence[Ordering], values: Values, *criteria: Where) -> Select[Any]:
    """Return the SELECT whose columns add up to the number of rows before this one that satisfy ``criteria``."""
    parts = before(order, values)
    counts: list[ColumnElement[Any]] = [capped_count(spec, *criteria, part).label(None) for part in parts]
    return select(*counts)


def _literal(term: Ordering, values: Values) -> ColumnElement[Any]:
    return literal(values[term.column], term.column.type)


# -- the rows that a claim takes, and the SELECT that finds them ------------------------------------------------------

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
    if where or order_by or spec.shares_table:  # more subclasses may be declared later
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
