"""Pages of tasks, and the windows of rows that are searched for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from operator import eq, gt, lt
from typing import Any, Generic

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    UniqueConstraint,
    and_,
    case,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    union,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from .._support.checks import count
from .._support.texts import UNREADABLE, error_text
from ..dialects import index_options
from ..dialects.base import Adapter
from ..dialects.statements import Unreadable, forget_unfinished
from ..model.declaration import T
from ..queue.options import FINAL, Status
from ..queue.spec import Criterion, Identity, Ordering, QueueSpec, Where, spec_of
from ..sql import due_states, fixes, is_adopted, is_due_in, is_final, only, state, terms_of
from ..transaction import AnySession, open_, session_of, within
from .claiming import OrderBy
from .recording import brief, say

# -- windows on a queue: rows in the order of an index, of which a read examines at most a given number ---------------
#
# Without that limit, criteria that no index covers read the whole table if few rows satisfy them.

SCAN = 20_000
"""The maximum number of rows of a window that are examined, if no index covers the criteria."""

Position = tuple[Any, ...]
"""The values of a row by which its window is ordered, with ``None`` for each that cannot be read."""
Order = tuple[Ordering, ...]
_ONE: ColumnElement[int] = literal_column("1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The rows that satisfy all of ``rows`` and ``rest``, in ``order``."""

    adapter: Adapter
    spec: QueueSpec
    index: str | None
    """The queue's index that has the rows in that order; ``None`` if another one has."""
    rows: tuple[Criterion, ...]
    """The criteria that an index satisfies, in its own order."""
    rest: tuple[Criterion, ...]
    """The criteria that are evaluated for each of these rows."""
    order: Order
    scan: int
    """The maximum number of rows that are examined, if there is a ``rest`` or a ``sort``."""
    sort: Order = ()
    """The order in which the rows that were examined are returned, if it is another one."""

    @property
    def places(self) -> Sequence[Ordering]:
        """The order of the rows that are returned."""
        return self.sort or self.order

    def backwards(self) -> Window:
        """Return the same rows in the opposite order."""
        return replace(self, sort=_reversed(self.sort)) if self.sort else self.from_its_end()

    def from_its_end(self) -> Window:
        """Return the window that examines its last rows."""
        return replace(self, order=_reversed(self.order))

    def beyond(self, position: Position | None) -> Iterator[Window]:
        """Yield windows of the rows after ``position``, in order, each of which is one range of the index if all values
        of the position are known."""
        if position is None:
            yield self
            return
        known = [term.column == value for term, value in zip(self.places, position, strict=True) if value is not None]
        fixed = list(zip(self.places, position, strict=True))
        for number in reversed(range(len(fixed))):
            same = [self._compared(eq, term, value, known) for term, value in fixed[:number]]
            term, value = fixed[number]
            after = self._compared(lt if term.descending else gt, term, value, known)
            yield replace(self, rows=(*self.rows, *same, after))

    def sorted_beyond(self, position: Position | None) -> Window:
        """Return the window of the rows after ``position``, among those that are examined and sorted."""
        if position is None:
            return self
        ranges = (part.rows[len(self.rows) :] for part in self.beyond(position))
        return replace(self, rest=(*self.rest, or_(*(and_(*each) for each in ranges))))

    def _compared(
        self, comparison: Callable[[Any, Any], Criterion], term: Ordering, value: object, known: Sequence[Criterion]
    ) -> Criterion:
        """Return the comparison of a row's value with that of a position.

        If that cannot be read, it is the value of the row with the ``known`` ones.  The position may come from a URL,
        which could name any row: only rows of this window count.  Not a scalar subquery: MySQL would make a constant of
        it, and compares no zero date with constants.
        """
        if value is not None:
            return comparison(term.column, literal(value, term.column.type))
        there = select(term.column.label("value")).where(*self.rows, *self.rest, *known).subquery("there")
        return exists().where(comparison(term.column, there.c.value))

    def select(self, *columns: ColumnElement[Any], limit: int | None) -> Select[Any]:
        """Return the SELECT of the first rows' labelled ``columns``; ``rest`` is evaluated for ``scan`` rows only."""
        if not self.rest and not self.sort:
            return self._first(columns).limit(limit)
        # as a column: for a criterion, planners might choose another access path than the window's index
        matches = (case((and_(*self.rest), _ONE)) if self.rest else _ONE).label("matches")
        terms = self.sort or self.order
        order = [term.column.label(f"place_{number}") for number, term in enumerate(terms)]
        looked = self._first((matches, *order, *columns)).limit(self.scan).subquery("looked_at")
        matching, *found = looked.c
        places, wanted = found[: len(order)], found[len(order) :]
        in_order = (term.over(place) for term, place in zip(terms, places, strict=True))
        return select(*wanted).where(matching == _ONE).order_by(*in_order).limit(limit)

    def is_cut(self, session: Session) -> bool:
        """Return whether there is a row number ``scan``, and no index covers all criteria and the order."""
        if not self.rest and not self.sort:
            return False
        last = self._row(self.scan, [_ONE.label("one")])
        return self.adapter.rows.execute(session, self.spec, last).first() is not None

    def end(self, session: Session) -> Position | None:
        """Return the position of row number ``scan``; ``None`` if there are fewer, or an index covers all criteria.

        If that cannot be read, return the position of a row before it, which may be as far back as there are rows
        between them that cannot be read; ``None`` if no such row is found.
        """
        number, columns, back = self.scan if self.rest else 0, [term.column for term in self.places], 1
        while number > 0:
            try:
                row = self.adapter.rows.execute(session, self.spec, self._row(number, columns)).first()
                return None if row is None else tuple(row)
            except Exception as error:
                if not self.adapter.connections.is_of_row(error):
                    raise
            number, back = number - back, 2 * back
        return None

    def position_of(self, key: Identity) -> Position:
        """Return the position of the row with this primary key, if no other value can be read."""
        known: Mapping[Any, Any] = dict(zip(self.spec.primary_key, key, strict=True))
        return tuple(known.get(term.column) for term in self.places)

    def _row(self, number: int, columns: Sequence[ColumnElement[Any]]) -> Select[Any]:
        return self._first(columns).offset(number - 1).limit(1)

    def _first(self, columns: Sequence[ColumnElement[Any]]) -> Select[Any]:
        rows = self.rows or (self.spec.primary_key[0].is_not(None),)
        reading = select(*columns).where(and_(*rows)).order_by(*(term.expression for term in self.order))
        return self.adapter.rows.prefer_index(self.spec, self.index, reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows through which a session reads a queue."""

    adapter: Adapter
    session: Session
    spec: QueueSpec
    scan: int

    def of(self, status: Status | None, where: Sequence[Where]) -> Window:
        """Return the window of the tasks that satisfy ``where`` and have this status, if one is given.

        Available tasks are in claim order, other unfinished ones by ``available_at``, and all others by primary key,
        the last first.  Where indexes contain all tasks, final ones are in the order in which they ended, the last
        first.
        """
        terms = terms_of(self.spec, where)
        if status is not None and self._has_index(status):
            found = self._in_state(status, terms)
        else:
            in_state = () if status is None else (self.spec["status"] == state(status),)
            found = self._window((), (*terms, *in_state), _last_first(self.spec))
        return self._better(terms)(found)

    def in_order(self, status: Status | None, where: Sequence[Where], order: Order) -> Window | None:
        """Return the window of these tasks in this order, or ``None`` if no index has it."""
        window = self.of(status, where)
        for each in (window, window.backwards()):
            if _is_same(each.places, order):
                return each
        if status is None and any(each is order[0].column for each in _leading(self.adapter, self.spec)):
            terms = terms_of(self.spec, where)
            return self._better(terms)(self._window((), terms, order))
        return None

    def sorted(self, status: Status | None, where: Sequence[Where], order: Order) -> list[Window]:
        """Return the windows that make up these tasks, to be examined and sorted."""
        spec, terms = self.spec, terms_of(self.spec, where)
        in_state = () if status is None else (spec["status"] == state(status),)
        parts = self.all(where)
        if not self.adapter.inspection.indexes_all and finds_finished(self.adapter, spec):
            adopted = self._window((), (*terms, is_adopted(spec)), _last_first(spec))
            parts.append((FINAL, self._better(terms)(adopted)))
        return [
            replace(window, rest=(*window.rest, *in_state), sort=order)
            for states, window in parts
            if status is None or status in states
        ]

    def all(self, where: Sequence[Where]) -> list[tuple[Sequence[Status], Window]]:
        """Return windows that make up all tasks that satisfy ``where``, with their states.

        Of final tasks, the last ones are examined.  An index that begins with ``finished_at`` does not find those that
        were final before the table became a queue.
        """
        spec, terms = self.spec, terms_of(self.spec, where)
        found: list[tuple[Sequence[Status], Window]] = [
            ((each,), self._in_state(each, terms)) for each in (*due_states(spec), Status.AVAILABLE)
        ]
        if self.adapter.inspection.indexes_all:
            found += [((each,), self._in_state(each, terms)) for each in FINAL]
        elif finds_finished(self.adapter, spec):
            found.append((FINAL, self.finished(and_(spec["finished_at"].is_not(None), is_final(spec)), terms)))
        else:
            found.append((FINAL, self._window((), (*terms, is_final(spec)), _last_first(spec))))
        better = self._better(terms)
        return [(states, better(window)) for states, window in found]

    def finished(self, rows: Criterion, where: Sequence[Where]) -> Window:
        """Return the window of these final tasks, the last finished first."""
        order = (Ordering(self.spec["finished_at"], descending=True),)
        return self._window((rows,), terms_of(self.spec, where), order)

    def _has_index(self, status: Status) -> bool:
        """Return whether an index has the tasks in this state in an order that pages can have."""
        if status is Status.AVAILABLE:
            return not _has_nulls(self.spec.ready_order)
        return status in due_states(self.spec) or self.adapter.inspection.indexes_all

    def _in_state(self, status: Status, terms: Sequence[Criterion]) -> Window:
        spec, in_state = self.spec, self.spec["status"] == state(status)
        if status is Status.AVAILABLE:
            return self._divided("claim", (in_state,), terms, spec.ready_order)
        if status in FINAL:
            return self._divided("due", (in_state,), terms, _reversed(spec.due_order))
        return self._divided("due", (is_due_in(spec, status),), terms, spec.due_order)

    def _window(
        self, rows: tuple[Criterion, ...], rest: Sequence[Criterion], order: Order, index: str | None = None
    ) -> Window:
        adapter, spec, scan = self.adapter, self.spec, self.scan
        return Window(adapter=adapter, spec=spec, index=index, rows=rows, rest=tuple(rest), order=order, scan=scan)

    def _divided(self, kind: str, rows: tuple[Criterion, ...], terms: Sequence[Criterion], order: Order) -> Window:
        """Return the window of an index of the queue of this ``kind``: of the first partition that ``terms`` fix, if
        they fix any."""
        partition = next((column for column in self.spec.partitions if fixes(terms, column)), None)
        fixed = [term for term in terms if partition is not None and fixes([term], partition)]
        rest = [term for term in terms if not any(term is each for each in fixed)]
        index = self.spec.index_name(kind, [] if partition is None else [partition])
        return self._window((*fixed, *rows), rest, order, index)

    def _better(self, terms: Sequence[Criterion]) -> Callable[[Window], Window]:
        """Return a function that makes a window use a better index, if ``terms`` fix the columns of one.

        These are the primary key, and an index of error groups or of the application that finds at most ``scan`` rows,
        which are sorted.
        """
        if all(fixes(terms, column) for column in self.spec.primary_key):
            return lambda window: replace(window, index=None, rows=(*window.rows, *window.rest), rest=())
        finds_few, leading = cache(self._finds_few), _leading(self.adapter, self.spec)

        def better(window: Window) -> Window:
            led = (term for term in window.rest if any(fixes([term], column) for column in leading))
            few = next((term for term in led if finds_few(term)), None)
            if few is None:
                return window
            others = (term for term in window.rest if term is not few)
            return replace(window, index=None, rows=(few,), rest=(*window.rows, *others))

        return better

    def _finds_few(self, term: Criterion) -> bool:
        matching: Select[Any] = select(_ONE.label("one")).where(only(self.spec, term)).limit(self.scan + 1)
        counted = select(func.count()).select_from(matching.subquery("matching"))
        number: int = self.adapter.rows.execute(self.session, self.spec, counted).scalar_one()
        return number <= self.scan


class Sorting(StrEnum):
    """What a list of tasks is sorted by."""

    CREATED = "created"
    TIME = "time"
    """``available_at``: when a task is due, when its lease ends, or when it became final."""
    PRIORITY = "priority"
    """The order of claims."""

    def order(self, spec: QueueSpec, *, descending: bool) -> Order:
        """Return the order in which the tasks of a queue have this sorting.

        Integer keys grow with each task; among others, such as UUIDs and texts, ``created_at`` tells which is newer.
        """
        key = tuple(Ordering(column) for column in spec.primary_key)
        by_key = len(key) == 1 and any(
            getattr(table, "autoincrement_column", None) is not None for table in spec.mapper.tables
        )
        match self:
            case Sorting.CREATED:
                found = key if by_key else (Ordering(spec["created_at"]), *key)
            case Sorting.TIME:
                found = (Ordering(spec["available_at"]), *key)
            case Sorting.PRIORITY:
                found = spec.ready_order
                if _has_nulls(found):
                    found = (Ordering(spec["priority"]), Ordering(spec["available_at"]), *key)
        return _reversed(found) if descending else found


def _has_nulls(order: Order) -> bool:
    """Return whether columns may contain NULL, which the position of a page cannot."""
    return any(getattr(term.column, "nullable", True) for term in order)


def _is_same(places: Sequence[Ordering], order: Sequence[Ordering]) -> bool:
    return [(id(term.column), term.descending) for term in places] == [
        (id(term.column), term.descending) for term in order
    ]


def finds_finished(adapter: Adapter, spec: QueueSpec) -> bool:
    """Return whether an index begins with ``finished_at`` and contains final tasks."""
    option = adapter.inspection.predicate_option
    beginning = [index for index in spec.table.indexes if next(iter(index.columns), None) is spec["finished_at"]]
    if option is None:
        return bool(beginning)
    conditions = (index.dialect_kwargs.get(option) for index in beginning)
    return any(each is None or str(each) == str(_of_finished(spec)[option]) for each in conditions)


@cache
def _of_finished(spec: QueueSpec) -> Mapping[str, Any]:
    """Return the options of an index that has all finished tasks."""
    return index_options(spec["finished_at"].is_not(None))


def _last_first(spec: QueueSpec) -> Order:
    return tuple(Ordering(column, descending=True) for column in spec.primary_key)


def _reversed(order: Order) -> Order:
    return tuple(replace(term, descending=not term.descending) for term in order)


def _leading(adapter: Adapter, spec: QueueSpec) -> list[Column[Any]]:
    """Return the columns with which indexes begin that have all rows, or all those with a value of the column."""
    option = adapter.inspection.predicate_option
    whole = [index for index in spec.table.indexes if option is None or index.dialect_kwargs.get(option) is None]
    firsts: list[Any] = [next(iter(index.expressions), None) for index in whole]
    unique = (each for each in spec.table.constraints if isinstance(each, UniqueConstraint))
    firsts += [next(iter(each.columns), None) for each in unique]
    return [spec["error_group"], *(column for column in firsts if isinstance(column, Column))]


# -- reads tasks without claiming or locking them ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Damaged:
    """Stands for a task that cannot be loaded.  It has the same attributes; for a value that cannot be read, a text
    says why."""

    identity: Identity
    """The primary key."""
    values: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def find(
    session: AnySession,
    entity: type[T],
    *where: Where,
    limit: int | None = None,
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
) -> Sequence[T]:
    """Return tasks that satisfy ``where``, in any state, as they are in the database now, without claiming them.

    ``order_by``: any columns; by default the primary key, the one order that never needs a sort.  ``limit``: the
    maximum number to return; all by default.  ``options``: any loader options.  To find tasks older than an hour by the
    database's clock, give ``Task.created_at <= utcnow(-timedelta(hours=1))``.

    Rows that cannot be read are logged, and left out.
    """
    found = find_all(session, entity, *where, limit=limit, order_by=order_by, options=options)
    return [task for task in found if not isinstance(task, Damaged)]


def find_all(
    session: AnySession,
    entity: type[T],
    *where: Where,
    limit: int | None = None,
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
) -> Sequence[T | Damaged]:
    """Return tasks as :func:`find` does, with a stand-in for each that cannot be read."""
    spec = spec_of(entity)
    session = session_of(session)
    if limit is not None:
        count("limit", limit)
    adapter = open_(session, spec)
    order = order_by if isinstance(order_by, Sequence) else (order_by,)

    def choosing(statement: Select[Any], criteria: Sequence[Where]) -> Select[Any]:
        return statement.where(only(spec, *criteria)).order_by(*(order or spec.primary_key)).limit(limit)

    try:
        rows = session.scalars(
            choosing(select(entity), where).options(*options),
            execution_options={"populate_existing": True},
            bind_arguments=spec.bind_arguments,
        )
        return rows.unique().all()
    except Exception as error:
        if not adapter.connections.is_of_row(error):
            raise
        wanted = select(*spec.primary_key).select_from(spec.mapper.persist_selectable)
        keys = adapter.rows.keys(session, spec, choosing(wanted, within(session, spec, where)))
        forget_unfinished(session, spec, keys, error)
        return _separately(adapter, session, spec, keys, options)


def _separately(
    adapter: Adapter, session: Session, spec: QueueSpec, keys: Sequence[Identity], options: Sequence[ExecutableOption]
) -> list[Any]:
    """Load the tasks with these keys, in their order."""
    unreadable: list[Unreadable] = []
    tasks = adapter.rows.load(session, spec, keys, options, unreadable=unreadable)
    found: dict[Identity, Any] = {spec.identity_of(task): task for task in tasks}
    for identity, error in unreadable:
        say(spec, identity, UNREADABLE + brief(error_text(error)))
        if (stand_in := _damaged(adapter, session, spec, identity)) is not None:
            found[identity] = stand_in
    return [found[key] for key in keys if key in found]


def _damaged(adapter: Adapter, session: Session, spec: QueueSpec, identity: Identity) -> Damaged | None:
    columns = {prop.key: prop.columns[0] for prop in spec.mapper.column_attrs}
    values = adapter.rows.values(session, spec, [spec.key(identity)], list(columns.values()))
    if values is None:
        return None
    shown = (f"({UNREADABLE}{brief(error_text(each))})" if isinstance(each, Exception) else each for each in values)
    return Damaged(identity, dict(zip(columns, shown, strict=True)))


def key_of(spec: QueueSpec, task: object) -> Identity:
    """Return the primary key of a task or its stand-in."""
    return task.identity if isinstance(task, Damaged) else spec.identity_of(task)


# -- reads tasks page by page, where pages have positions instead of numbers ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A page of tasks, and the positions of the previous and next page."""

    tasks: Sequence[T | Damaged]
    """The tasks, in order, with stand-ins for those that cannot be read."""
    next: Position | None
    """The ``after`` of the next page; ``None`` on the last one."""
    previous: Position | None
    """The ``before`` of the previous page; ``None`` on the first one."""
    is_cut: bool
    """Whether there are rows that were not examined: the next page continues with them, if there is one."""


def page(
    session: AnySession,
    entity: type[T],
    *where: Where,
    status: Status | None = None,
    order: Order | None = None,
    by_state: bool = False,
    after: Position | None = None,
    before: Position | None = None,
    limit: int = 50,
    scan: int = SCAN,
    options: Sequence[ExecutableOption] = (),
) -> Page[T]:
    """Return up to ``limit`` tasks that satisfy ``where``, in the state ``status`` if given.  ``after``: the position
    of the last task of the previous page; ``before``: that of the first task of the next page.  Runs a few queries,
    which lock nothing.  The cost of a page does not depend on its position, because rows before it are not read, nor on
    ``where``: if no index covers it, it is evaluated for at most about ``scan`` rows, so that a page can have fewer
    tasks than ``limit``, or none, although there are more.  For the order see :meth:`.Windows.of`. Tasks that change
    their position in the meantime can be missing, or appear on two pages.  ``options``: any loader options.

    ``order``: another order, see :meth:`.Sorting.order`.  If no index has it, the tasks of each group of states, in the
    order of its index, are examined and sorted: of more than ``scan``, the first and the last ones.  No page then
    continues with the others.  ``by_state``: do so in any case, to examine some tasks of each group.
    """
    spec = spec_of(entity)
    count("limit", limit)
    session = session_of(session)
    adapter = open_(session, spec)
    among = Windows(adapter=adapter, session=session, spec=spec, scan=scan)
    criteria = within(session, spec, where)
    window = among.of(status, criteria) if order is None else among.in_order(status, criteria, order)
    position, end = after if before is None else before, None
    if window is not None and not by_state:
        ahead, keys = window if before is None else window.backwards(), list[Identity]()
        for part in ahead.beyond(position):
            keys += adapter.rows.keys(session, spec, part.select(*spec.primary_key, limit=limit + 1 - len(keys)))
            if len(keys) > limit or (end := part.end(session)) is not None:
                break
        is_cut = end is not None
    else:
        windows = among.sorted(status, criteria, order or _last_first(spec))
        window = windows[0]
        ends = [each if before is None else each.backwards() for each in windows]
        is_cut = any(each.is_cut(session) for each in ends)
        keys = adapter.rows.keys(session, spec, _from_both_ends(ends, position, limit + 1))
    shown = _loaded(adapter, session, entity, keys[:limit] if before is None else keys[:limit][::-1], options)
    first, last = (_position(window, shown[index]) if shown else None for index in (0, -1))
    more = len(keys) > limit
    if before is not None:
        return Page(tasks=shown, next=last, previous=end or (first if more else None), is_cut=is_cut)
    following = end or (last if more else None)
    return Page(tasks=shown, next=following, previous=None if after is None else first, is_cut=is_cut)


def _from_both_ends(windows: Sequence[Window], position: Position | None, limit: int) -> Select[Any]:
    """Return the SELECT of the first primary keys after ``position`` among the rows that ``windows`` examine: half of
    them from either end."""
    spec, sort, found = windows[0].spec, windows[0].sort, list[Select[Any]]()
    columns = [
        each.label(f"found_{number}") for number, each in enumerate([*spec.primary_key, *(t.column for t in sort)])
    ]
    for window in windows:
        half = replace(window, scan=window.scan // 2)
        for each in (half, half.from_its_end()):
            found.append(select(each.sorted_beyond(position).select(*columns, limit=limit).subquery()))
    every = union(*found).subquery("found")
    keys, places = every.c[: len(spec.primary_key)], every.c[len(spec.primary_key) :]
    return select(*keys).order_by(*(term.over(place) for term, place in zip(sort, places, strict=True))).limit(limit)


def _loaded(
    adapter: Adapter,
    session: Session,
    entity: type[T],
    keys: Sequence[Identity],
    options: Sequence[ExecutableOption],
) -> Sequence[T | Damaged]:
    """Return the tasks with these keys that still exist, in the order of the keys."""
    if not keys:
        return []
    spec = spec_of(entity)
    # without other criteria or an order, for which SQLite might scan another index
    criterion = adapter.rows.key_in(spec, keys)
    found = {key_of(spec, task): task for task in find_all(session, entity, criterion, options=options)}
    return [found[key] for key in keys if key in found]


def _position(window: Window, task: object) -> Position:
    names: Mapping[Any, str] = {each: prop.key for prop in window.spec.mapper.column_attrs for each in prop.columns}
    position = tuple(getattr(task, names[term.column]) for term in window.places)
    if isinstance(task, Damaged) and any(str(each).startswith(f"({UNREADABLE}") for each in position):
        return window.position_of(task.identity)
    return position
