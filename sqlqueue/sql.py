"""Statements in SQLAlchemy Core, made from a spec: what columns mean, which rows, in which order.

Nothing here is executed, and nothing here depends on an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    DateTime,
    Delete,
    Float,
    FromClause,
    Select,
    String,
    Table,
    Update,
    and_,
    any_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import QueryableAttribute, Session
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter, Null
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from ._support.checks import text
from ._support.errors import ArgumentError
from ._support.private import cached_with, tables_in
from ._support.texts import is_error_group
from .queue.options import DUE, FINAL, AttemptOutcome, Status
from .queue.spec import CACHE_SIZE, Criterion, Identity, Ordering, QueueSpec, StatementCache, Where, conjuncts

# -- the library's own column types, which migrations show as the SQLAlchemy types that they wrap ---------------------

T = TypeVar("T")
W = TypeVar("W", bound="WrappedType[Any]")


class WrappedType(TypeDecorator[T]):
    """A type that checks or converts values, and stores them with the SQLAlchemy type that it wraps."""

    cache_ok = True
    _wrapper: ClassVar[type[WrappedType[Any]]]
    """The class whose :meth:`wrapping` made this class."""

    @classmethod
    def wrapping(cls: type[W], stock: type[TypeEngine[Any]], **arguments: Any) -> W:
        """Return an instance that wraps ``stock``, whose class has the module and name of ``stock``.

        Alembic writes types into migrations by the module and name of their class, and a migration must not import
        this package.
        """
        names = {"impl": stock, "cache_ok": True, "__module__": stock.__module__, "_wrapper": cls}
        made: Any = type(stock.__name__, (cls,), names)
        wrapped: W = made(**arguments)
        return wrapped

    def __reduce__(self) -> tuple[Any, ...]:
        # pickled through the wrapped type, because the class cannot be imported by its name
        kept = ("impl", "impl_instance", "_variant_mapping")
        state = {name: value for name, value in self.__dict__.items() if name in kept}
        return self._wrapper.wrapping, (type(self).impl,), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        # defined here, because otherwise it would be looked up in the wrapped type, which would be cached without its
        # arguments
        self.__dict__.update(state)


# -- time: the database's clock, in UTC, and the type of time columns -------------------------------------------------

NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""The ``available_at`` of rows from before the table became a queue.  A claim that scans the index for due rows stops
before them, however many there are."""


REACH = timedelta(days=24_000)
"""Nearly the longest time that SQL Server can add to a time, in seconds of 31 bits."""


class UTCDateTime(WrappedType[datetime]):
    """The type of aware datetimes in UTC on every engine; naive ones raise :class:`.ArgumentError`."""

    impl = DateTime

    @property
    def python_type(self) -> type[datetime]:
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = aware(value)
        return moment if getattr(self.impl_instance, "timezone", False) else moment.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return _in_utc(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        # like TypeDecorator, but with one call fewer for each value
        stored = self.impl_instance.result_processor(dialect, coltype)
        return _in_utc if stored is None else lambda value: _in_utc(stored(value))


def _in_utc(value: datetime | None) -> datetime | None:
    if value is None or value.tzinfo is UTC:
        return value
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def aware(value: datetime) -> datetime:
    """Return ``value`` in UTC.  Raises :class:`.ArgumentError` if it is naive or not a datetime."""
    if not isinstance(value, datetime):
        raise ArgumentError(f"{value!r} is not a datetime")
    if value.tzinfo is None:
        raise ArgumentError(f"{value!r} is naive: give it a time zone, as in datetime.now(timezone.utc)")
    return value.astimezone(UTC)


clock_ahead: ContextVar[float] = ContextVar("sqlqueue.clock_ahead", default=0.0)
"""The seconds by which :class:`utcnow` is later than the database's clock, in tests."""


class utcnow(FunctionElement[datetime]):
    """The database's current time in UTC, plus ``seconds`` if given; each adapter compiles it for its engine.

    >>> select(Task).where(Task.available_at <= utcnow())
    """

    name = "utcnow"
    inherit_cache = True
    _traverse_internals = cached_with("_ahead")
    type = UTCDateTime.wrapping(DateTime, timezone=True)

    def __init__(self, seconds: ColumnElement[float] | timedelta | None = None) -> None:
        if isinstance(seconds, timedelta):
            seconds = bindparam(None, seconds.total_seconds(), type_=Float(53))
        super().__init__(*([] if seconds is None else [seconds]))

    @property
    def seconds(self) -> ColumnElement[float] | None:
        """The seconds to add to the database's clock; ``None`` if there are none."""
        given: ColumnElement[float] | None = next(iter(self.clauses), None)
        if self._ahead is None:
            return given
        ahead = literal_column(repr(self._ahead), Float(53))
        return ahead if given is None else ahead + given

    @property
    def _ahead(self) -> float | None:
        """The value of ``clock_ahead``; a part of the key under which compiled statements are cached."""
        return clock_ahead.get() or None


def present(session: Session, spec: QueueSpec) -> datetime:
    """Return the current time by the database's clock."""
    now: datetime = session.execute(select(utcnow()), bind_arguments=spec.bind_arguments).scalar_one()
    return now


class OfFound(FunctionElement[bool]):
    """The criterion that a column has one of the values that a SELECT finds, which begins with WITH.

    ``find``: returns the SELECT; its WITH is in the subquery if ``nesting``, else before the whole statement.
    """

    name = "of_found"
    inherit_cache = True

    def __init__(self, column: ColumnElement[str], find: Callable[..., Select[tuple[str]]]) -> None:
        nested, leading = (find(nesting=each) for each in (True, False))
        # a join with what is found may read it again for each row of the queue; an array is an index condition
        array = column == any_(func.array(nested.scalar_subquery()))
        super().__init__(column.in_(nested), column.in_(leading), array)

    def form(self, name: Literal["nested", "leading", "array"]) -> ColumnElement[bool]:
        """Return the criterion as an engine needs it."""
        nested, leading, array = self.clauses
        return {"nested": nested, "leading": leading, "array": array}[name]


class Narrower(FunctionElement[bool]):
    """A condition on the rows of a partial index, and that of the index, which it implies.

    Some planners take the index only if they read its own condition.  PostgreSQL's concludes it, and would multiply the
    shares of rows that it expects to satisfy either: so few that it reads and sorts all of them instead of searching
    the index that has them in order.
    """

    name = "narrower"
    inherit_cache = True

    def __init__(self, condition: Criterion, index: Criterion) -> None:
        super().__init__(condition, index)


class utcinsertion(utcnow):
    """The default of a column, which is not part of that key: always the database's clock."""

    inherit_cache = True

    @property
    def _ahead(self) -> None:
        return None


class utcdefault(FunctionElement[datetime]):
    """The server default of a time column: the current time in UTC, as each engine's DDL expresses it."""

    name = "utcdefault"
    inherit_cache = True
    type = UTCDateTime.wrapping(DateTime, timezone=True)


def representable(moment: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return ``moment``, or the nearest time within 65 years: other programs may insert infinity, zero dates and years
    beyond 9999, which some engines store and Python has not."""
    first, last = utcnow(-REACH), utcnow(REACH)
    return case((moment < first, first), (moment > last, last), else_=moment)


# -- text keys, which every engine compares exactly -------------------------------------------------------------------


class KeyText(WrappedType[str]):
    """The type of text keys.  It rejects text that engines cannot store or search for, before a statement is sent."""

    impl = String

    def __repr__(self) -> str:
        # Alembic writes the repr into migrations; SQLAlchemy 2.0 omits the collation of a decorated type
        return repr(self.impl_instance)

    @property
    def python_type(self) -> type[str]:
        return str

    def check(self, values: Iterable[object]) -> None:
        """Raise :class:`.ArgumentError` for values that cannot be searched for on every engine."""
        for value in values:
            text("a key", value)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else text("a key", value)

    def literal_processor(self, dialect: Dialect) -> Any:
        # SQLAlchemy does not resolve a variant's type through the dialect, and SQL Server needs N'...' for wide text
        write = self.impl_instance.dialect_impl(dialect).literal_processor(dialect)
        return write and (lambda value: write(text("a key", value)))


# -- what the columns of a row mean: its status, its time, its attempts and the claim that holds it --------------------
#
# Some columns have several meanings, which depend on the status; only the functions of this section compare them.
#
# - ``available_at``: of a task that waits, when it is due; of a running one, when its lease ends; of a final one, when
#   it became final.
# - ``claim_token``: negative if a worker made the claim, see :class:`.WorkerTokens`; 0 in rows that were never claimed;
#   :data:`REACTIVATED` in queues whose keys keep their order.
# - ``claimed_at``: NULL in a running row says that the task was enqueued again while it ran.
# - ``max_attempts``: the number of the last attempt.  ``attempt`` never decreases, so an attempt that is not to count
#   raises ``max_attempts`` as well.


Assignment: TypeAlias = tuple[Column[Any], Any]
LARGEST = 2**31 - 1
"""The largest number that an integer column holds on every engine."""
REACTIVATED = 1
"""The token of tasks that were final, and have not been claimed since: later ones of their keys may be running."""


def state(status: Status) -> ColumnElement[str]:
    """Return ``status`` as a literal: with a bind parameter, planners would not use partial indexes."""
    return literal_column(f"'{status.value}'")


def is_available(spec: QueueSpec) -> Criterion:
    """Return whether the row's status is ``available``; its time may be in the future."""
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


def has_expired(spec: QueueSpec) -> Criterion:
    """Return whether the time until which the task had to be started has passed (``ExpiryMixin``)."""
    return spec["expires_at"] <= utcnow()


def is_early(spec: QueueSpec) -> Criterion:
    """Return whether the row is available only from a later time on."""
    return and_(is_available(spec), spec["available_at"] > utcnow())


def is_due(spec: QueueSpec) -> Criterion:
    """Return whether the row has a status that comes due, see :func:`due_states`.  Does not compare times."""
    return spec["status"].in_([state(status) for status in due_states(spec)])


def is_due_in(spec: QueueSpec, status: Status) -> Criterion:
    """Return whether the row has this status, which comes due."""
    return Narrower(spec["status"] == state(status), is_due(spec))


def due_states(spec: QueueSpec) -> tuple[Status, ...]:
    """Return the states that become claimable when ``available_at`` is reached: of waiting tasks, their deadline."""
    return (*DUE, Status.WAITING) if spec.has_latches else DUE


def is_waiting(spec: QueueSpec) -> Criterion:
    """Return whether the row's status is ``waiting``."""
    return spec["status"] == state(Status.WAITING)


def is_held(spec: QueueSpec) -> Criterion:
    """Return whether the row's status is ``running``; its lease may have ended."""
    return spec["status"] == state(Status.RUNNING)


def is_held_by_worker(spec: QueueSpec) -> Criterion:
    """Return whether a worker has claimed the row, with a lease."""
    return and_(present_status(spec) == state(Status.RUNNING), spec["claim_token"] < literal_column("0"))


def is_token_of_worker(token: int) -> bool:
    """Return whether a ``claim_token`` is that of a worker's claim."""
    return token < 0


def is_enqueued_again(spec: QueueSpec) -> Criterion:
    """Return whether a running row was enqueued again while it ran, see :func:`enqueued_again`."""
    return spec["claimed_at"].is_(None)


def enqueued_again(spec: QueueSpec, running: Criterion) -> Assignment:
    """Return the assignment that makes ``running`` tasks run again after this run."""
    return spec["claimed_at"], case((running, null()), else_=spec["claimed_at"])


def leased(spec: QueueSpec, lease: timedelta) -> Assignment:
    """Return the assignment that makes the lease of a running row end ``lease`` from now."""
    return spec["available_at"], utcnow(lease)


def raised(number: ColumnElement[int], by: int = 1) -> ColumnElement[int]:
    """Return ``number + by``, or the largest integer if that is more: other programs may insert any number."""
    most: ColumnElement[int] = literal_column(str(LARGEST - by))
    return case((number > most, literal_column(str(LARGEST))), else_=number + literal_column(str(by)))


def uncounted(spec: QueueSpec) -> ColumnElement[int]:
    """Return the ``max_attempts`` with which the present attempt does not count."""
    return raised(spec["max_attempts"])


def all_attempts_after(spec: QueueSpec, attempt: ColumnElement[int]) -> ColumnElement[int]:
    """Return the ``max_attempts`` with which a task has all its attempts again after the one of this number."""
    return raised(attempt, spec.options.max_attempts)


def is_final(spec: QueueSpec) -> Criterion:
    """Return whether the row is completed, cancelled or discarded."""
    return spec["status"].in_([state(status) for status in FINAL])


def is_adopted(spec: QueueSpec) -> Criterion:
    """Return whether the row is final without having been finished: it is from before the table became a queue."""
    return and_(is_final(spec), spec["finished_at"].is_(None))


def has_attempts(spec: QueueSpec) -> Criterion:
    """Return whether the row may be claimed again: attempts are left, or it is held by a worker, whose crash does not
    count as an attempt."""
    return or_(spec["attempt"] < spec["max_attempts"], is_held_by_worker(spec))


def come_due(spec: QueueSpec) -> tuple[Criterion, ...]:
    """Return the conditions of rows that a claim takes once their time has come: waiting ones and expired leases."""
    return (
        is_due(spec),
        has_come(spec),
        has_attempts(spec),
    )


def is_abandoned(spec: QueueSpec) -> Criterion:
    """Return whether the lease of the row's claimer has ended without a settlement."""
    return and_(has_come(spec), is_held(spec))


def is_failing(spec: QueueSpec) -> Criterion:
    """Return whether the row has an error, and has not been completed since."""
    return and_(spec["error"].is_not(None), spec["status"] != state(Status.COMPLETED))


def is_in_error_group(spec: QueueSpec, key: str) -> Criterion:
    """Return whether the row is failing, with an error of the group with this key: see :attr:`.ErrorGroup.key`."""
    if is_error_group(key):
        return and_(spec["error_group"] == key, is_failing(spec))
    return and_(spec["error_group"].is_(None), spec["error"] == key, is_failing(spec))


def is_exhausted(spec: QueueSpec) -> Criterion:
    """Return whether the last lease has ended and no attempts are left; never true of rows claimed by workers."""
    return and_(is_held(spec), *used_up(spec))


def used_up(spec: QueueSpec) -> tuple[Criterion, ...]:
    """Return the conditions of :func:`is_exhausted`, except that the row is running."""
    return (
        is_due(spec),
        has_come(spec),
        spec["attempt"] >= spec["max_attempts"],
        spec["claim_token"] >= literal_column("0"),
    )


# -- statements that change or delete the rows of a queue, and the values that they are built from --------------------


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


# -- finished attempts of a queue, read from the history with an index, up to a cap -----------------------------------


def ended(
    table: Table,
    queue: str,
    outcomes: Sequence[AttemptOutcome],
    columns: Mapping[str, ColumnElement[Any]],
    *criteria: Criterion,
    cap: int | None,
) -> Select[Any]:
    """Return ``columns`` of the attempts at tasks of ``queue`` with one of ``outcomes``: all, or the last ``cap``.

    With a cap, each outcome is read separately, from the end of its range in the index; a single range for all of them
    would have to be sorted.
    """
    named = [column.label(name) for name, column in columns.items()]
    mine = (table.c.queue == queue, *criteria)
    if cap is None:
        return select(*named).where(*mine, table.c.outcome.in_([each.value for each in outcomes]))
    moment = table.c.finished_at
    parts = [
        select(*named, moment.label("ended_at"))
        .where(*mine, table.c.outcome == each.value)
        .order_by(moment.desc())
        .limit(cap)
        .subquery(f"ended_{each.value}")
        for each in outcomes
    ]
    found = union_all(*(select(*part.c) for part in parts)).subquery("ended")
    return select(*(found.c[name] for name in columns)).order_by(found.c.ended_at.desc()).limit(cap)


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

Listing: TypeAlias = tuple[Column[Any], Criterion]
"""A column, and a term that lists values of it."""
MAX_PARTS = 200
"""The maximum number of listed values that a claim reads one by one.  Engines limit the parts of a statement (SQLite:
500)."""


def given(term: Any, column: Column[Any]) -> Sequence[Any]:
    """Return the values that ``term`` allows for ``column``, NULL as ``None``, if it is an equality, IS NULL, a list of
    values, or several of these joined by OR."""
    operator, left = (getattr(term, name, None) for name in ("operator", "left"))
    if operator is operators.or_:
        parts = [given(part, column) for part in term.clauses]
        return list(dict.fromkeys(chain(*parts))) if all(parts) else ()
    if left is None or not column.shares_lineage(left):
        return ()
    if operator is operators.is_:
        return [None] if isinstance(term.right, Null) else ()
    return [term.right.value] if fixes([term], column) else listed(term)


def single(terms: Iterable[Criterion], columns: Iterable[Column[Any]]) -> list[Column[Any]]:
    """Return the first of ``columns`` for which one of ``terms`` allows a single value, or NULL alone; if any."""
    return [column for column in columns if any(len(given(term, column)) == 1 for term in terms)][:1]


def fixes(terms: Iterable[Criterion], column: Column[Any]) -> bool:
    """Return whether one of ``terms`` is an equality with a value for ``column``."""
    return any(
        getattr(term, "operator", None) is operators.eq
        and column.shares_lineage(term.left)
        and isinstance(term.right, BindParameter)
        for term in terms
    )


def listing(terms: Sequence[Criterion], columns: Iterable[Column[Any]], least: int = 2) -> Listing | None:
    """Return the first of ``columns`` for which one of ``terms`` lists values, and that term.

    Only lists of ``least`` to :data:`MAX_PARTS` values count.  Raises :class:`.ArgumentError` for values that a text
    key cannot have, because a claim may compare them without sending them.
    """
    for column in columns:
        for term in terms:
            if least <= len(values := given(term, column)) <= MAX_PARTS:
                if isinstance(column.type, KeyText):
                    column.type.check(value for value in values if value is not None)
                return column, term
    return None


def all_but(column: Column[Any], values: Sequence[Any]) -> Criterion:
    """Return the criterion of rows with other values of ``column``, NULL among them; see :func:`excluded`."""
    others = column.not_in(values)
    return or_(column.is_(None), others) if column.nullable else others


def excluded(term: Any, column: Column[Any]) -> Sequence[Any]:
    """Return the values of ``column`` that ``term`` excludes, if it is ``NOT IN``, or :func:`all_but`; else none."""
    parts = list(term.clauses) if getattr(term, "operator", None) is operators.or_ else [term]
    if len(parts) > 1 and getattr(parts[0], "operator", None) is operators.is_ and column.shares_lineage(parts[0].left):
        del parts[0]
    (others, *more) = parts
    if more or getattr(others, "operator", None) is not operators.not_in_op or not column.shares_lineage(others.left):
        return ()
    values = getattr(others.right, "value", None)
    return [value for value in values if isinstance(value, Hashable)] if isinstance(values, list | tuple) else ()


def listed(term: Any) -> Sequence[Any]:
    """Return the different values of ``column IN (values)`` but NULL, which equals none; none for any other term."""
    given = getattr(term, "right", None) if getattr(term, "operator", None) is operators.in_op else None
    values = given.value if isinstance(given, BindParameter) and isinstance(given.value, list | tuple) else ()
    usable = all(isinstance(value, Hashable) for value in values)
    return list(dict.fromkeys(value for value in values if value is not None)) if usable else ()


# -- reads several parts of a queue in one order, each from its own range of an index ---------------------------------

Read: TypeAlias = Callable[[Sequence[ColumnElement[Any]]], Iterable[Select[Any]]]
"""Returns one limited SELECT of these columns for each part."""


def merged(
    read: Read, columns: Sequence[ColumnElement[Any]], order: Sequence[Ordering], *, apart: bool = False
) -> Select[Any]:
    """Return the SELECT of ``columns`` from all parts, in ``order``; the caller adds the limit.

    An engine reads at most the limit from each part, however many other rows the table has.  ``apart``: in the order of
    the parts first, with the number of its part before each row.
    """
    wanted = [column.label(f"read_{n}") for n, column in enumerate(columns)]
    places = [term.column.label(f"place_{n}") for n, term in enumerate(order)]
    parts = [part.subquery() for part in read([*wanted, *places])]
    numbers: list[list[ColumnElement[Any]]] = [
        [literal_column(str(n)).label("part")] if apart else [] for n, _ in enumerate(parts)
    ]
    found = union_all(*(select(*number, *part.c) for number, part in zip(numbers, parts, strict=True))).subquery(
        "found"
    )
    again = (found.c[label.name].label(_name_of(column)) for label, column in zip(wanted, columns, strict=True))
    by = (term.over(found.c[label.name]) for label, term in zip(places, order, strict=True))
    number = [found.c.part] if apart else []
    return select(*number, *again).order_by(*number, *by)


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


EDGE: Any = object()
"""The place before the first key of a queue and after its last one, among its keys."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Lanes:
    """How the rows of a pick take turns: a lane holds those with the same value of ``column``, the key of the lane."""

    column: Column[Any]
    within: tuple[Criterion, ...]
    """The criteria that the index covers before the column."""
    listed: Sequence[Any]
    """The keys, if the criteria list them."""
    place: Hashable
    """What distinguishes the keys from those of other picks of the queue."""
    order: tuple[Ordering, ...]
    """The order of the keys in the index."""
    has_all: bool
    """Whether all rows are in the lanes: no criteria leave any out."""
    ordered: Pick
    """The same rows in order, without lanes; if only the first of a lane may be claimed, those that may be first."""
    excluded: Collection[Any] = ()
    """The keys of lanes that the criteria leave out, such as paused ones."""
    apart: tuple[Criterion, ...] = ()
    """The criteria that leave them out, if the rows in order include theirs."""
    run: int | None = None
    """How many rows of a lane may be claimed, one after another from the first unfinished one; any, if ``None``."""
    free: Criterion | None = None
    """Whether a row that nothing holds may be claimed if those before it in its lane are final, or claimed with it."""
    unkeyed: Pick | None = None
    """The rows of no lane, in the order of their times, if only the first of a lane may be claimed."""
    is_of_one: bool = False
    """Whether the criteria name a row by its primary key, which may be claimed only if it is the first of its lane."""
    made: StatementCache = field(default_factory=StatementCache, init=False, repr=False)


class Beside(NamedTuple):
    """What a claim reads of the keys that a statement finds, together with them where an engine can."""

    key: Hashable
    select: Callable[[Callable[[ColumnElement[Any]], Criterion]], Select[Any]]
    """Returns the SELECT, whose first columns are a key and a number, and whose next one is never NULL; the argument
    returns the criterion that a column has one of the keys."""
    width: int
    """The number of its further columns."""
    take: Callable[[Iterable[Any], Iterable[Any]], object]
    """Receives the rows, and all keys."""


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
    divided: Listing | None = None
    """The index's first column and the term of ``where`` that lists values of it, each of which is read from its own
    range."""
    whole: str | None = None
    """The index that serves all values, if the pick is divided."""
    statuses: tuple[Status, ...] = ()
    """The statuses of its rows if there are several, each of which is read from its own range of the index."""
    lanes: Lanes | None = None
    """How the rows take turns; ``None`` if they are taken in order."""
    beside: Beside | None = None
    """What else to read of the keys of its lanes."""
    made: StatementCache = field(default_factory=partial(StatementCache, 8), init=False, repr=False)
    """The cache of statements that adapters have built from this; small, because there are many instances."""

    def without(self, keys: Criterion) -> Pick:
        """Return a copy without the rows with ``keys``: SKIP LOCKED does not skip the transaction's own locks."""
        lanes = self.lanes and replace(self.lanes, ordered=self.lanes.ordered.without(keys))
        if lanes is not None and lanes.free is not None:  # these rows still come before others in their lanes
            unkeyed = lanes.unkeyed and lanes.unkeyed.without(keys)
            return replace(self, lanes=replace(lanes, free=and_(lanes.free, ~keys), unkeyed=unkeyed))
        return replace(self, where=(*self.where, ~keys), lanes=lanes)

    def lane(self, of: Criterion, limit: int) -> Pick:
        """Return the first rows of one lane, which ``of`` selects by its key."""
        return replace(self, where=(*self.where, of), limit=limit, lanes=None)

    def keys(self, after: Criterion, limit: int) -> Pick:
        """Return the first rows by their keys, which ``after`` compares; not all of them may be claimable."""
        lanes: Any = self.lanes
        where = (*lanes.within, after)
        return replace(self, state=self.state[:1], where=where, order=lanes.order, limit=limit, lanes=None)

    def of(self, *statuses: Status) -> Pick:
        """Return those of the due rows that have one of these ``statuses``."""
        if len(statuses) > 1:
            return replace(self, statuses=statuses)
        return replace(self, state=(is_due_in(self.spec, *statuses), *self.state[1:]), statuses=())

    @cached_property
    def is_divided(self) -> bool:
        """Whether the rows are read from several ranges of an index, and merged into one order."""
        return self.divided is not None or len(self.statuses) > 1

    @property
    def parts(self) -> Sequence[Pick]:
        """A pick for each of the ranges that are read, or this one."""
        if len(self.statuses) > 1:
            return [part for status in self.statuses for part in self.of(status).parts]
        if self.divided is None:
            return [self]
        column, divided = self.divided
        rest = tuple(term for term in self.where if term is not divided)
        order = tuple(term for term in self.order if not term.column.shares_lineage(column))
        each = ((column == value, *rest) for value in given(divided, column))
        return [replace(self, divided=None, where=own, order=(*_by_null(own, [column]), *order)) for own in each]

    def undivided(self) -> tuple[Pick, ColumnElement[Any], frozenset[Any]]:
        """Return the rows of all parts of the queue, the column that divides it, and its values that are picked."""
        assert self.divided is not None
        column, divided = self.divided
        rest = tuple(term for term in self.where if term is not divided)
        whole = replace(self, where=rest, index=self.whole, divided=None)
        return whole, column, frozenset(given(divided, column))

    def named(self, keys: Criterion, limit: int) -> Pick:
        """Return the rows of these primary keys that still match, in no order."""
        where = (keys, *self.where)
        return replace(self, where=where, order=(), limit=limit, index=None, divided=None, statuses=(), exact=True)

    def select(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the SELECT of these ``columns`` in order, without the limit."""
        return select(*columns).where(*self.state, *self.where).order_by(*(term.expression for term in self.order))

    def merged(self, read: Callable[[Pick, Columns], Select[Any]], columns: Columns) -> Select[Any]:
        """Return the SELECT of ``columns`` of the first rows, merged from what ``read`` returns for each part."""
        if not self.is_divided:
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
    every: tuple[Step, Step] = spec.made.get("picks", lambda: _picks(spec, (), ()))
    return every


def _picks(spec: QueueSpec, where: Sequence[Where], order_by: Sequence[ColumnElement[Any]]) -> tuple[Step, Step]:
    wanted: Sequence[Any] = terms_of(spec, where)
    terms = [
        term.left == listed(term)[0] if len(listed(term)) == 1 and single([term], spec.partitions) else term
        for term in wanted
    ]
    partition = single(terms, spec.partitions)
    by_key = all(fixes(terms, column) for column in spec.primary_key)
    divided = None if by_key or partition else listing(terms, spec.partitions)
    order = tuple(_given(term) for term in order_by)

    def step(kind: str, in_state: tuple[Criterion, ...], standard: tuple[Ordering, ...], *, served: bool) -> Step:
        # MariaDB does not recognize a text column as constant under an equality, and would sort and lock the partition
        rest = (term for term in standard if term.column not in partition)
        standard = (*_by_null(terms, partition), *rest)
        pick = partial(
            Pick,
            spec=spec,
            state=in_state,
            where=tuple(terms),
            order=order or standard,
            index=None if by_key else spec.index_name(kind, partition if divided is None else divided[:1]),
            exact=by_key or (served and len(terms) == len(partition)),
            takes_over=kind == "due",
            divided=divided,
            whole=spec.index_name(kind),
            statuses=due_states(spec) if kind == "due" and not by_key else (),
        )
        return lru_cache(CACHE_SIZE)(lambda limit: pick(limit=limit))

    return (
        step("claim", (is_available(spec), has_come(spec)), spec.ready_order, served=True),
        step("due", come_due(spec), spec.due_order, served=False),
    )


def _by_null(terms: Sequence[Criterion], columns: Iterable[Column[Any]]) -> tuple[Ordering, ...]:
    """Return the terms of an index's order for those of its first ``columns`` that are NULL: not every planner knows
    that IS NULL leaves them equal."""
    return tuple(Ordering(column) for column in columns if not fixes(terms, column))


def lane_picks(
    spec: QueueSpec, where: Sequence[Where] = (), order_by: Sequence[ColumnElement[Any]] = ()
) -> tuple[Step, Step]:
    """Return :func:`picks` of a queue that is claimed by keys: a fair one, or one with limits, whose due rows have
    lanes as well."""
    if order_by and spec.fair is not None:
        raise ArgumentError(
            f"order_by: claims of {spec.entity.__name__} take turns by {spec.options.fair}, in its order"
        )

    def in_lanes() -> tuple[Step, Step]:
        ready, due = picks(spec, where, order_by)
        return _in_lanes(ready, "claim"), _in_lanes(due, "due") if spec.is_limited else due

    if where or order_by or spec.shares_table:
        return in_lanes()
    every: tuple[Step, Step] = spec.made.get("lane picks", in_lanes)
    return every


def _in_lanes(step: Step, kind: str) -> Step:
    lanes = _with_lanes(step(1), kind)
    return lru_cache(CACHE_SIZE)(lambda limit: replace(lanes, limit=limit))


def _with_lanes(pick: Pick, kind: str) -> Pick:
    """Return a pick with its lanes, unless the queue has no limits and the pick is of one lane, or of rows selected by
    primary key."""
    spec = pick.spec
    column: Any = spec.lane
    if not spec.is_limited and (pick.index is None or single(pick.where, [column])):
        return pick
    _, listed_keys = listing(pick.where, [column], 1) or (column, None)
    where = tuple(term for term in pick.where if term is not listed_keys)
    apart = tuple(term for term in where if excluded(term, column))
    in_order = pick
    if kind == "claim" and pick.index is not None:  # so that a claim does not read past the tasks of other lanes
        in_order = replace(pick, where=tuple(term for term in pick.where if not excluded(term, column)))
    others = [each for each in spec.partitions if each is not column]
    fixed = single(where, others)
    divided = None if fixed else listing(where, others)
    partition = fixed if divided is None else [divided[0]]
    within = tuple(term for term in where if (divided and term is divided[1]) or single([term], fixed))
    values = tuple(value for term in within for each in partition for value in given(term, each))
    lanes = Lanes(
        column=column,
        within=within,
        listed=given(listed_keys, column),
        place=(tuple(partition), values),
        order=(*_by_null(where, fixed), Ordering(column)),
        has_all=len(fixed) + len(apart) == len(pick.where),
        ordered=in_order,
        excluded=frozenset(value for term in apart for value in excluded(term, column)),
        apart=apart if in_order is not pick else (),
    )
    order = tuple(term for term in pick.order if term.column is not column)
    index = pick.index and spec.index_name(kind, [*partition, column] if kind == "claim" else [column])
    return replace(pick, where=where, order=order, index=index, divided=divided, exact=False, lanes=lanes)


def in_lanes(
    spec: QueueSpec,
    state: tuple[Criterion, ...],
    where: tuple[Criterion, ...],
    order: Sequence[Ordering],
    index: str,
    *first: Ordering,
) -> Pick:
    """Return the rows in this ``state``, whose keys are in order in the index after those ``first`` terms."""
    column: Any = spec.keyed_by
    pick = Pick(spec=spec, state=state, where=where, order=tuple(order), limit=COUNTED, index=index, exact=False)
    lanes = Lanes(
        column=column,
        within=where,
        listed=(),
        place="sequence" if first else ((), ()),
        order=(*first, Ordering(column)),
        has_all=not where,
        ordered=pick,
    )
    return replace(pick, lanes=lanes)


def running_in_lanes(spec: QueueSpec, where: tuple[Criterion, ...]) -> Pick:
    """Return the rows that run under a lease which has not ended, by their keys."""
    column: Any = spec.keyed_by
    running = (is_held(spec), is_due(spec), ~has_come(spec))
    return in_lanes(spec, running, where, spec.due_order, spec.index_name("due", [column]))


def sequential_picks(
    spec: QueueSpec, where: Sequence[Where] = (), order_by: Sequence[ColumnElement[Any]] = (), *, run: int = 1
) -> tuple[Step]:
    """Return the single step of a claim of a queue whose keys keep their order: of each key, its first unfinished row
    and those that follow it, ``run`` rows at most."""
    if order_by:
        raise ArgumentError(
            f"order_by: tasks of {spec.entity.__name__} start in the order of {spec.sequence}, and of their"
            " primary keys"
        )
    if where or spec.shares_table:
        return (_in_sequence(spec, where, run),)
    return (spec.made.get(("sequential pick", run), lambda: _in_sequence(spec, (), run)),)


def _in_sequence(spec: QueueSpec, where: Sequence[Where], run: int) -> Step:
    column: Any = spec.sequence
    (named,) = named_picks(spec, where)
    may_be_first = named(1)
    terms = may_be_first.where
    unkeyed = replace(
        may_be_first,
        state=(spec["finished_at"].is_(None), has_come(spec), *may_be_first.state),
        where=(*terms, column.is_(None)),
        order=spec.unkeyed_order,
        index=spec.index_name("unkeyed"),
        exact=False,
    )
    lanes = Lanes(
        column=column,
        within=(),
        listed=given((listing(terms, [column], 1) or (column, None))[1], column),
        place="sequence",
        order=(Ordering(spec["finished_at"]), Ordering(column)),
        has_all=all(excluded(term, column) for term in terms),
        ordered=may_be_first,
        excluded=frozenset(value for term in terms for value in excluded(term, column)),
        run=run,
        is_of_one=all(fixes(terms, each) for each in spec.primary_key),
        free=and_(*may_be_first.state, *terms),
        unkeyed=unkeyed if column.nullable else None,
    )
    pick = Pick(
        spec=spec,
        state=(spec["finished_at"].is_(None),),
        where=(),
        order=spec.sequence_order,
        limit=1,
        index=spec.index_name("order"),
        exact=False,
        takes_over=True,
        lanes=lanes,
    )
    return lru_cache(CACHE_SIZE)(lambda limit: replace(pick, limit=limit))


def follower(spec: QueueSpec, key: Any, identity: Identity) -> Pick:
    """Return the first unfinished row after this one of a key that keeps its order, of those that are not reactivated:
    the only one after it that may have been started."""
    values: Any = dict(zip(spec.primary_key, identity, strict=True))
    order = [Ordering(column, descending=True) for column in spec.primary_key if column is not spec.sequence]
    return Pick(
        spec=spec,
        state=(spec["finished_at"].is_(None), spec["claim_token"] != literal_column(str(REACTIVATED))),
        where=(spec.sequence == key, or_(*before(order, values))),
        order=spec.sequence_order,
        limit=1,
        index=spec.index_name("order"),
        exact=False,
    )


Hinting: TypeAlias = Callable[[FromClause, str, Select[Any]], Select[Any]]
"""Adds a hint to the SELECT of a row of a key from an alias of the table, by the index of this kind."""


def is_first(spec: QueueSpec, hinting: Hinting) -> Criterion:
    """Return the criterion that a row is the first unfinished one of its key."""
    first = spec.table.alias("first")
    of: Any = spec.sequence
    unfinished = (first.c[spec["finished_at"].name].is_(None), first.c[of.name] == of)
    # with the key, or MySQL would sort all rows of the key
    order = [first.c[term.column.name] for term in spec.sequence_order]
    one = select().select_from(first).where(*unfinished).order_by(*order).limit(1).correlate_except(first)
    numbers = [column for column in spec.primary_key if column is not of]
    return and_(
        *(
            number == hinting(first, "order", one.with_only_columns(first.c[number.name])).scalar_subquery()
            for number in numbers
        )
    )


def nothing_holds(spec: QueueSpec, hinting: Hinting) -> Sequence[Criterion]:
    """Return the criterion that no earlier row of the same key is discarded, if those hold their keys."""
    if not spec.discarded_hold:
        return ()
    earlier, column = spec.table.alias("earlier"), spec.sequence
    of: Any = column
    (number,) = (key for key in spec.primary_key if key is not column)
    conditions = (
        earlier.c[spec["status"].name] == state(Status.DISCARDED),
        earlier.c[of.name] == of,
        earlier.c[number.name] < number,
    )
    # a scalar subquery, since engines turn NOT EXISTS into a join, which pairs all rows of a key with each other
    one: Select[Any] = select(literal_column("1")).where(*conditions).limit(1)
    return (hinting(earlier, "held", one.correlate_except(earlier)).scalar_subquery().is_(None),)


def named_picks(spec: QueueSpec, where: Sequence[Where]) -> tuple[Step]:
    """Return the single step of a claim of rows that ``where`` selects by primary key, without an index hint."""
    claimable = spec.made.get("claimable", lambda: or_(is_ready(spec), and_(*come_due(spec))))
    pick = partial(Pick, spec=spec, state=(claimable,), where=tuple(terms_of(spec, where)), order=(), index=None)

    def step(limit: int) -> Pick:
        return pick(limit=limit, exact=True, takes_over=True)

    return (_in_lanes(step, "claim") if spec.is_limited else step,)


def exhausted_picks(spec: QueueSpec, where: Sequence[Where]) -> Step:
    """Return the pick of exhausted tasks."""
    _, due = picks(spec, where)
    return lambda limit: replace(due(limit), state=used_up(spec), exact=False).of(Status.RUNNING)


def _given(term: ColumnElement[Any]) -> Ordering:
    modifier = getattr(term, "modifier", None)
    if modifier not in (None, operators.desc_op, operators.asc_op) or hasattr(
        getattr(term, "element", None), "modifier"
    ):
        raise ArgumentError(f"order_by={term}: give columns with asc() or desc(), without further modifiers")
    if modifier in (operators.desc_op, operators.asc_op):
        return Ordering(term.element, modifier is operators.desc_op)
    return Ordering(term)
