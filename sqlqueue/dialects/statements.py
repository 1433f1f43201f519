"""What an engine does with rows: it selects and locks them by key or in order, writes them, claims and inserts them."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, takewhile, zip_longest
from operator import itemgetter
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, cast

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Delete,
    Executable,
    FromClause,
    Insert,
    Integer,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session
from sqlalchemy.orm.util import identity_key
from sqlalchemy.sql.base import ExecutableOption

from .._support.errors import ArgumentError, ConfigurationError, UnsupportedDialectError
from .._support.texts import clear_frames
from ..queue.spec import Criterion, Identity, Ordering, QueueSpec, Where
from ..sql import (
    COUNTED,
    EDGE,
    LARGEST,
    REACTIVATED,
    Assignment,
    Columns,
    Pick,
    UniqueBy,
    is_first,
    merged,
    nothing_holds,
    remove,
    utcnow,
    write,
)
from .connections import Connections
from .naming import Product

R = TypeVar("R")
ByKey: TypeAlias = Any
"""A Select, an Update or a Delete; functions return the same kind that they receive."""
_KEY = "sqlqueue_key_{}_{}"
_VALUE = "sqlqueue_value_{}"
KEYS = "sqlqueue_keys"
MANY = 0
ROWS = "sqlqueue_rows"

Parameters: TypeAlias = Mapping[str, Any]

Replacement: TypeAlias = Callable[[Callable[[str], ColumnElement[Any]]], Sequence[Assignment]]
"""Takes the values that an insert proposes, by column name; returns the assignments to the existing row."""

Values: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""The parameters of a statement, or of each of its executions."""

OTHERS = 16
"""The number of rows that a claim reads beyond its limit, since other claims may be locking some."""
FURTHER = 8
"""The factor by which a claim increases the number of rows that it reads whenever it did not get enough."""


LANE = "sqlqueue_lane_{}"
_PASSED = "sqlqueue_passed_{}"
_LONGEST_RANGES = 1_000
"""The maximum number of values of NOT IN that MySQL and MariaDB make ranges of."""
LANES = 32
"""The number of lanes that a statement reads, and the number of keys that it searches for."""
MANY_LANES = 16 * LANES
"""The number of keys that are searched for where most have no tasks that may start."""
BRANCHES = 4 * LANES
"""The maximum number of lanes whose first rows a statement reads; engines limit the parts of a statement."""
_MOST = 2 * BRANCHES
"""The number of rows that a statement writes values of their own to."""
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, LANES, 2 * LANES, BRANCHES, _MOST, MANY_LANES)
"""The numbers of lanes for which there are statements: otherwise, most claims would compile their own."""


class Unreadable(NamedTuple):
    """A row that cannot be read: one of its values, or an event of its instance, raises an error."""

    identity: Identity
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClaimRequest:
    """The specification of a claim: the rows to lock, and the assignments to write or the deletion."""

    pick: Pick
    assignments: Sequence[Assignment] = ()
    parameters: Parameters | None = None
    """The parameters of the assignments."""
    delete: bool = False
    """Whether to delete the rows instead of writing to them."""
    options: Sequence[ExecutableOption] = ()
    """The loader options of the instances."""
    alone: bool = False
    """Whether the claim may be committed before the transaction that it is the first statement of."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Receives the rows that are taken, but not deleted, and cannot be read."""
    late: list[Identity] = field(default_factory=list)
    """Receives those that follow such a row in a lane that keeps its order, and the row itself."""


class Rows(ABC):
    """What an engine does with rows: it selects, locks, writes and inserts them."""

    def __init__(self, product: Product, connections: Connections) -> None:
        self.product = product
        self.connections = connections

    # -- selects rows by their primary keys, or by the values of other columns

    batch: ClassVar[int] = 5_000
    """The maximum number of keys in one statement, regardless of their number of columns."""
    seeks_tuples: ClassVar[bool] = True
    """Whether a list of tuples uses an index."""
    pads_lists: ClassVar[bool] = False
    """Whether the server keeps a plan for each text, so that lists should have few different lengths."""
    of_found: ClassVar[Literal["nested", "leading", "array"]] = "nested"
    """The form of the criterion that a column has one of the values that a SELECT with a WITH finds."""
    concludes: ClassVar[bool] = False
    """Whether the planner knows from a condition that it implies that of a partial index."""
    names_rows: ClassVar[bool] = True
    """Whether :meth:`rows_in` supports parameters; otherwise it needs the rows themselves."""

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        """Return the criterion of rows with these primary keys, which may be more than :meth:`most`."""
        if len(keys) > self.most(spec):
            return or_(*(self.key_in(spec, some) for some in self.batches(spec, keys)))
        if len(keys) == 1:
            return spec.key(keys[0])  # MariaDB scans the table for a list of one tuple
        keys = self.padded(spec, keys)
        if len(spec.primary_key) == 1:
            return spec.primary_key[0].in_([key for (key,) in keys])
        return tuple_(*spec.primary_key).in_(keys) if self.seeks_tuples else or_(*map(spec.key, keys))

    def one_of(self, spec: QueueSpec, column: ColumnElement[Any], values: Sequence[Any]) -> Criterion:
        """Return the criterion of rows whose ``column`` has one of ``values``, which may be more than :meth:`most`."""
        if len(values) <= self.most(spec):
            return column.in_(self.padded(spec, values))
        # as literals: a statement may repeat the condition, and every engine limits the number of parameters
        parts = self.batches(spec, values)
        lists = (bindparam(None, some, column.type, expanding=True, literal_execute=True) for some in parts)
        return or_(*(column.in_(each) for each in lists))

    def statement_size(self, spec: QueueSpec, count: int) -> int:
        """Return the number of keys to build a statement for, or ``MANY`` if one parameter holds all."""
        if count == 1:
            return 1
        is_one_list = self.seeks_tuples or len(spec.primary_key) == 1
        return MANY if is_one_list else len(self.padded(spec, range(count)))

    def key_in_parameters(self, spec: QueueSpec, count: int) -> Criterion:
        """Return :meth:`key_in` for ``count`` keys, from :meth:`statement_size`, that :meth:`key_parameters` gives."""
        if count != MANY:
            return or_(*(spec.key(names_of(spec, number)) for number in range(count)))
        if len(spec.primary_key) == 1:
            (column,) = spec.primary_key
            return column.in_(bindparam(KEYS, type_=column.type, expanding=True))
        return tuple_(*spec.primary_key).in_(bindparam(KEYS, expanding=True))

    def key_parameters(self, spec: QueueSpec, keys: Sequence[Identity]) -> dict[str, Any]:
        """Return the parameters of :meth:`key_in_parameters`."""
        keys = self.padded(spec, keys)
        if self.statement_size(spec, len(keys)) != MANY:
            return {_KEY.format(number, n): part for number, key in enumerate(keys) for n, part in enumerate(key)}
        return {KEYS: [key for (key,) in keys] if len(spec.primary_key) == 1 else keys}

    def rows_in(
        self, spec: QueueSpec, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None
    ) -> Criterion:
        """Return the criterion of rows whose ``columns`` have the values of one of ``rows``.

        Without ``rows``, :meth:`row_parameters` returns the parameters.  The criterion does not have to use an index.
        """
        padded = None if rows is None else self.padded(spec, rows)
        given: BindParameter[Any] = bindparam(ROWS if rows is None else None, padded, expanding=True)
        return tuple_(*columns).in_(given)

    def row_parameters(self, spec: QueueSpec, rows: Sequence[Identity]) -> dict[str, Any]:
        """Return the parameters of :meth:`rows_in`."""
        return {ROWS: self.padded(spec, rows)}

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        """Return ``statement``, which selects rows by primary key, changed so that it reads and waits for no other
        rows."""
        return statement

    def most(self, spec: QueueSpec) -> int:
        """Return the maximum number of keys of this queue in one statement."""
        return self.batch

    def padded(self, spec: QueueSpec, items: Sequence[R]) -> Sequence[R]:
        """Return ``items`` with the last one repeated up to the next power of two, if the engine needs that."""
        if not self.pads_lists or not items:
            return items
        missing = min(1 << (len(items) - 1).bit_length(), self.most(spec)) - len(items)
        return (*items, *[items[-1]] * missing)

    def batches(self, spec: QueueSpec, items: Sequence[R]) -> Iterator[Sequence[R]]:
        """Split ``items`` into parts that fit into one statement."""
        size = self.most(spec)
        for start in range(0, len(items), size):
            yield items[start : start + size]

    # -- builds the statements that lock rows. Nothing here executes them

    skips_locked: ClassVar[bool] = False
    """Whether a statement that writes can skip locked rows, or never encounters any."""
    locks_after_sorting: ClassVar[bool] = True
    """Whether rows are locked after the sort, so that an order without an index is slow but locks nothing else."""
    reports_counts: ClassVar[bool] = True
    """Whether the driver's row count tells whether an UPDATE or DELETE of one row has changed it.

    It then replaces RETURNING, whose result takes the client longer to read.
    """
    hides_criteria: ClassVar[bool] = False
    """Whether a planner may prefer an index of other criteria to the primary key, and read all of its entries."""
    sweeps_by_key: ClassVar[bool] = False
    """Whether statements that change any number of rows must first read their keys, and then change them by key."""

    @abstractmethod
    def select_locking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the SELECT that locks exactly the rows of ``pick`` that are not locked, and returns these columns.

        Most engines use :func:`skip_locked`.
        """

    def is_served(self, pick: Pick) -> bool:
        """Return whether :meth:`select_locking` locks only the rows of ``pick``; otherwise they are read before."""
        return not pick.is_divided

    def locked_in_order(self, spec: QueueSpec, keys: Sequence[Identity]) -> int:
        """Return how many of ``keys``, starting with the first, a statement with a limit can name.

        It then locks them in this order, and no more of them than the limit.
        """
        return 0

    def select_candidates(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the SELECT that reads these columns of the rows of ``pick``, locked or not, without locking.

        It reads no others ahead of them, in any part.
        """
        return pick.merged(lambda part, wanted: self.use_index(part, part.select(*wanted).limit(part.limit)), columns)

    def use_index(self, pick: Pick, reading: Select[Any]) -> Select[Any]:
        """Return ``reading``, which reads rows of an undivided ``pick`` in order, with a hint to use the pick's index.

        Without one, a planner may read and sort many rows to return the first.
        """
        return self.prefer_index(pick.spec, pick.index, reading)

    def prefer_index(self, spec: QueueSpec, index: str | None, reading: Select[Any]) -> Select[Any]:
        """Return ``reading`` with a hint to use this index, which need not exist, where a planner ignores limits."""
        return reading

    def select_for_claim(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the statement with which a claim finds the rows of ``pick``."""
        return self.select_locking(pick, *columns) if self.is_served(pick) else self.select_candidates(pick, *columns)

    def select_by_key(self, spec: QueueSpec, *criteria: Criterion, waits: bool) -> Select[Any]:
        """Return the SELECT that locks rows selected by primary key; unless it ``waits``, it skips locked rows."""
        matching = select(*spec.primary_key).where(*criteria)
        locking: Select[Any] = self.by_key(spec, matching.with_for_update(skip_locked=not waits, key_share=True))
        return locking

    def select_locking_by_key(self, spec: QueueSpec, named: Criterion, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return :meth:`select_locking` for rows selected by primary key."""
        most = self.most(spec)
        pick = Pick(spec=spec, state=(named,), where=(), order=(), limit=most, index=None, exact=True)
        return self.select_locking(pick, *columns)

    def skip_locked_rows(self, spec: QueueSpec, named: Criterion) -> Criterion:
        """Return ``named`` restricted to rows that are not locked, if the engine can express it in one statement."""
        return named

    def select_instances(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        """Return the SELECT of ``count`` instances by key parameters.

        ``latest``: the rows were only locked, not written to, so the SELECT must read their latest versions.
        """
        return select(spec.entity).where(self.key_in_parameters(spec, count))

    # -- reads and locks the latches of batches

    def begin_look(self, session: Session, spec: QueueSpec) -> None:  # noqa: B027
        """Prepare a transaction whose statements read the first row of each of many ranges of an index."""

    def probing(self, spec: QueueSpec, index: str, reading: Select[Any]) -> Select[Any]:
        """Return ``reading``, which reads one row of a range of this index, with a hint to use it if that is needed."""
        return self.prefer_index(spec, index, reading)

    def firsts(self, pick: Pick) -> Pick:
        """Return those of the picked rows that are the first unfinished ones of their keys, which keep their order, and
        that nothing holds."""
        spec, hinting = pick.spec, partial(self.of_key, pick.spec)
        return replace(pick, where=(*pick.where, *nothing_holds(spec, hinting), is_first(spec, hinting)))

    def of_key(self, spec: QueueSpec, table: FromClause, kind: str, reading: Select[Any]) -> Select[Any]:
        """Return ``reading``, which reads one row of a key from an alias of the queue's table, with a hint to use the
        index of this kind if that is needed."""
        return reading

    def locking(self, table: Table, reading: Select[Any], *, skips: bool, shared: bool = False) -> Select[Any]:
        """Return ``reading``, which reads rows of a table beside the queues by primary key, so that it locks them:
        those that are free if it ``skips``, and not against others that lock them ``shared``."""
        ordered = reading if skips else reading.order_by(*table.primary_key)  # what waits for no lock needs no order
        return ordered.with_for_update(skip_locked=skips, read=shared)

    def writing(self, table: Table, statement: ByKey) -> ByKey:
        """Return ``statement``, an UPDATE or DELETE of rows of a table by primary key, changed so that it reads no
        others."""
        return statement

    def supports_returning(self, spec: QueueSpec) -> bool:
        """Return whether UPDATE and DELETE of this queue's table support RETURNING."""
        return True

    # -- locks, changes, reads and loads rows. The methods above contain what depends on the engine

    def lock(self, session: Session, pick: Pick, *, locks_only: bool = False) -> list[Identity]:
        """Lock the rows of ``pick``; return their primary keys, in order.

        ``locks_only``: the locks are kept as long as a handler runs, so no other row may stay locked.
        """
        if self.is_served(pick):
            return self.lock_selected(session, pick, locks_only=locks_only)
        return self.lock_candidates(session, pick, locks_only=locks_only)

    def is_free(self, session: Session, pick: Pick) -> bool:
        """Return whether the row of ``pick`` can be locked at once. The caller must roll the session's transaction
        back."""
        return bool(self.lock(session, pick))

    def lock_selected(self, session: Session, pick: Pick, *, locks_only: bool) -> list[Identity]:
        """Do the work of :meth:`lock` with one statement."""
        locking = pick.made.get((self, "lock"), lambda: self.select_locking(pick, *pick.spec.primary_key))
        return self.keys(session, pick.spec, locking)

    def lock_candidates(self, session: Session, pick: Pick, *, locks_only: bool = False) -> list[Identity]:
        """Do the work of :meth:`lock` by primary key: read rows without locks, then lock some until there are enough.

        If other transactions have locked too many of the rows, more are read.
        """
        found = list[Identity]()
        for keys, room in self._further(session, pick, found):
            found += self.lock_keys(session, pick, keys, room, locks_only=locks_only)
        return found

    def _further(self, session: Session, pick: Pick, found: Sequence[Any]) -> Iterator[tuple[Sequence[Identity], int]]:
        """Yield primary keys of rows of ``pick``, in order, and how many of them to lock, until the caller has
        ``found`` as many as it wants."""
        seen, number = set[Identity](), pick.limit + OTHERS
        while True:
            # a separate statement: MariaDB raises error 1020 if the snapshot is older than the locks
            candidates = self.candidates(session, pick, number)
            keys = [key for key in candidates if key not in seen]
            while keys and (room := pick.limit - len(found)):
                size = min(max(room, self.locked_in_order(pick.spec, keys)), self.most(pick.spec))
                yield keys[:size], room
                keys = keys[size:]
            if len(found) == pick.limit or len(candidates) < number:
                return
            seen.update(candidates)
            number *= FURTHER

    def candidates(self, session: Session, pick: Pick, number: int) -> list[Identity]:
        """Return the primary keys of the first ``number`` rows of ``pick``, locked or not."""
        if pick.divided is not None and (keys := self._look_at_all(session, pick, number)) is not None:
            return keys
        make = partial(self.select_candidates, replace(pick, limit=number), *pick.spec.primary_key)
        found = self.keys(session, pick.spec, pick.made.get((self, "look", number), make))
        return list(dict.fromkeys(found))  # a collation may consider two of the listed values to be equal

    def _look_at_all(self, session: Session, pick: Pick, number: int) -> list[Identity] | None:
        """Return the result of :meth:`candidates`, read from the whole queue; ``None`` if rows of other parts are
        among the first. Only then are the parts read one after another, which takes longer.
        """
        whole, column, values = pick.undivided()
        make = partial(self.select_candidates, replace(whole, limit=number), *pick.spec.primary_key, column)
        rows = self.execute(session, pick.spec, pick.made.get((self, "look at all", number), make)).all()
        return [tuple(row[:-1]) for row in rows] if values.issuperset(row[-1] for row in rows) else None

    def lock_keys(
        self, session: Session, pick: Pick, keys: Sequence[Identity], room: int, *, locks_only: bool
    ) -> list[Identity]:
        """Lock the ``keys`` that are not locked and still match, at most ``room``; return them."""
        spec, count = pick.spec, self.statement_size(pick.spec, len(keys))
        limit = room if room < len(keys) else None
        make = partial(self._naming, pick, count, limit)
        locking = pick.made.get((self, "name", count, limit), make)
        locked = set(self.keys(session, spec, locking, self.key_parameters(spec, keys)))
        return [key for key in keys if key in locked]

    def _naming(self, pick: Pick, count: int, limit: int | None) -> Select[Any]:
        keys = self.key_in_parameters(pick.spec, count)
        return self.select_by_key(pick.spec, keys, *self.matching(pick), waits=False).limit(limit)

    def matching(self, pick: Pick) -> Sequence[Criterion]:
        """Return the criteria of ``pick`` for rows that are selected by primary key."""
        criteria, one = (*pick.state, *pick.where), literal_column("1", Integer)
        return [case((and_(*criteria), one)) == one] if self.hides_criteria and criteria else criteria

    def load(
        self,
        session: Session,
        spec: QueueSpec,
        identities: Sequence[Identity],
        options: Sequence[ExecutableOption] = (),
        *,
        latest: bool = False,
        unreadable: list[Unreadable] | None = None,
    ) -> list[Any]:
        """Load the instances of ``identities``, in that order.  ``latest``: the rows were only locked, not written.

        Rows that cannot be read are added to ``unreadable``, if it is given, and do not keep the others from being
        loaded.
        """
        read = partial(self._read, session, spec, options, latest=latest)
        found: dict[Identity, Any] = {}
        for keys in self.batches(spec, identities):
            try:
                found.update(read(keys))
            except Exception as error:
                if unreadable is None or not self.connections.is_of_row(error):
                    raise
                forget_unfinished(session, spec, keys, error)
                found.update(self._read_each(session, keys, read, unreadable))
        broken = {each.identity for each in unreadable or ()}
        return in_order(spec, found, [key for key in identities if key not in broken] if broken else identities)

    def _read(
        self,
        session: Session,
        spec: QueueSpec,
        options: Sequence[ExecutableOption],
        keys: Sequence[Identity],
        *,
        latest: bool,
    ) -> dict[Identity, Any]:
        count, last = self.statement_size(spec, len(keys)), latest and not options
        statement = spec.made.get((self, "load", count, last), partial(self.select_instances, spec, count, latest=last))
        rows = session.scalars(
            statement.options(*options) if options else statement,
            self.key_parameters(spec, keys),
            execution_options={"populate_existing": True},
            bind_arguments=spec.bind_arguments,
        )
        return {spec.identity_of(task): task for task in rows.unique()}

    def _read_each(
        self,
        session: Session,
        keys: Sequence[Identity],
        read: Callable[[Sequence[Identity]], Mapping[Identity, Any]],
        unreadable: list[Unreadable],
    ) -> dict[Identity, Any]:
        """Read rows one by one, and add those that cannot be read to ``unreadable``."""
        found: dict[Identity, Any] = {}
        for key in keys:
            before = set(session.identity_map.all_states())
            try:
                found.update(read([key]))
            except Exception as error:
                if not self.connections.is_of_row(error):
                    raise
                for state in session.identity_map.all_states():
                    if state not in before and (instance := state.obj()) is not None:
                        session.expunge(instance)
                clear_frames(error)
                unreadable.append(Unreadable(key, error))
        return found

    def values(
        self, session: Session, spec: QueueSpec, where: Sequence[Where], columns: Sequence[ColumnElement[Any]]
    ) -> list[Any] | None:
        """Return the values of these columns of the row that ``where`` selects by primary key, or ``None`` if there is
        no such row.

        An error stands for a value that cannot be read.
        """
        named = select(*columns).select_from(spec.mapper.persist_selectable).where(*where)
        try:
            row = self.execute(session, spec, self.by_key(spec, named)).one_or_none()
        except Exception as error:
            if not self.connections.is_of_row(error):
                raise
            clear_frames(error)
            if len(columns) == 1:
                return [error]
        else:
            return None if row is None else list(row)
        each = [self.values(session, spec, where, [column]) for column in columns]
        return None if None in each else [value for some in each for value in some or ()]

    def delete(self, session: Session, spec: QueueSpec, identities: Sequence[Identity]) -> None:
        """Delete the rows with these primary keys."""
        for keys in self.batches(spec, identities):
            self.execute(session, spec, self.by_key(spec, remove(spec, self.key_in(spec, keys))))

    def change(
        self,
        session: Session,
        spec: QueueSpec,
        statement: Update | Delete,
        identities: Sequence[Identity],
        parameters: Parameters | None = None,
        *,
        waits: bool = True,
    ) -> set[Identity]:
        """Execute ``statement``, which selects the rows ``identities``; return those that it changed.

        Unless it ``waits``, its condition comes from :meth:`skip_locked_rows`.  With ``parameters``, the statement
        is cached by its caller, and derived statements are cached as well.
        """
        if waits and len(identities) == 1 and self.reports_counts:
            named = again(spec, parameters, (self, statement), lambda: self.by_key(spec, statement))
            return set(identities) if self.count(session, spec, named, parameters) else set()
        if not self.supports_returning(spec):
            return self._change_locked(session, spec, statement, identities, parameters, waits=waits)
        if not waits and not self.skips_locked:
            free = self._free(session, spec, statement, parameters)
            if not free:
                return set()
            if len(free) < len(identities):
                narrowed = statement.where(self.key_in(spec, free))
                return set(self.keys(session, spec, self._returning(spec, narrowed), parameters))
        returning = again(spec, parameters, (self, statement, "returning"), lambda: self._returning(spec, statement))
        return set(self.keys(session, spec, returning, parameters))

    def _change_locked(
        self,
        session: Session,
        spec: QueueSpec,
        statement: Update | Delete,
        identities: Sequence[Identity],
        parameters: Parameters | None,
        *,
        waits: bool,
    ) -> set[Identity]:
        """Do the work of :meth:`change` without RETURNING: lock the matching rows first to learn which will be
        changed."""
        named = again(spec, parameters, (self, statement), lambda: self.by_key(spec, statement))
        criterion: Any = statement.whereclause
        make = partial(self.select_by_key, spec, criterion, waits=waits)
        ours = again(spec, parameters, (self, statement, waits), make)
        changed = set(self.keys(session, spec, ours, parameters))
        if changed and len(changed) < len(identities) and not waits:
            named = named.where(self.key_in(spec, list(changed)))
        if changed:
            self.execute(session, spec, named, parameters)
        return changed

    def _returning(self, spec: QueueSpec, statement: Update | Delete) -> Any:
        return self.by_key(spec, statement).returning(*spec.primary_key)

    def _free(
        self, session: Session, spec: QueueSpec, statement: Update | Delete, parameters: Parameters | None
    ) -> list[Identity]:
        """Lock the rows of ``statement`` that are not locked; return their primary keys."""
        criterion: Any = statement.whereclause
        make = partial(self.select_locking_by_key, spec, criterion, *spec.primary_key)
        locking = again(spec, parameters, (self, statement, "free"), make)
        return self.keys(session, spec, locking, parameters)

    def sweep(self, session: Session, spec: QueueSpec, statement: Update | Delete) -> int:
        """Execute ``statement``, which selects any number of rows; return how many it changed."""
        if not self.sweeps_by_key:
            return self.count(session, spec, statement)
        matching = select(*spec.primary_key).where(statement.whereclause)  # type: ignore[arg-type]
        found = self.batches(spec, self.keys(session, spec, matching))
        swept = (statement.where(self.key_in(spec, some)) for some in found)
        return sum(self.count(session, spec, self.by_key(spec, each)) for each in swept)

    def count(
        self, session: Session, spec: QueueSpec, statement: Update | Delete, parameters: Parameters | None = None
    ) -> int:
        """Execute ``statement``; return how many rows it changed.

        Raises :class:`.UnsupportedDialectError` if the server does not report it.
        """
        changed = self.execute(session, spec, statement, parameters).rowcount
        if changed < 0:
            raise UnsupportedDialectError(
                "the server does not report how many rows a statement has changed, as sessions of SQL Server with"
                " NOCOUNT do not: SET NOCOUNT OFF on each new connection. Roll back.",
                dialect=session.get_bind(**spec.bind_arguments).dialect.name,
                needed="NOCOUNT OFF",
            )
        return changed

    def exists(self, session: Session, spec: QueueSpec, criterion: Criterion) -> bool:
        """Return whether a row satisfies ``criterion``, which selects by primary key or its first column."""
        found = self.by_key(spec, select(*spec.primary_key).where(criterion))
        return bool(self.execute(session, spec, found).all())

    def keys(
        self, session: Session, spec: QueueSpec, statement: Any, parameters: Parameters | None = None
    ) -> list[Identity]:
        """Execute ``statement``, which returns primary keys and possibly other columns after them; return the keys."""
        width = len(spec.primary_key)
        return [tuple(row[:width]) for row in self.execute(session, spec, statement, parameters).all()]

    def execute(self, session: Session, spec: QueueSpec, statement: Any, parameters: Any = None) -> CursorResult[Any]:
        """Execute ``statement`` on the engine to which the session binds the queue's table."""
        result = session.execute(statement, parameters, bind_arguments=spec.bind_arguments)
        return cast("CursorResult[Any]", result)

    # -- claims rows: by default in two steps, which lock rows and then write to them

    names_exactly: ClassVar[bool] = False
    """Whether a claim of named rows is limited to their number, rather than one statement serving any number."""

    def lock_and_write(self, session: Session, request: ClaimRequest) -> list[Any]:
        """Lock the rows, and write the assignments or delete the rows; return the instances, in order.

        Rows that cannot be read are not among them, see :attr:`.ClaimRequest.unreadable`.
        """
        identities = self.lock(session, request.pick, locks_only=not request.assignments)
        return self.write_locked(session, request, identities)

    def write_locked(self, session: Session, request: ClaimRequest, identities: Sequence[Identity]) -> list[Any]:
        """Do the work of :meth:`lock_and_write` for rows that are locked."""
        pick, spec = request.pick, request.pick.spec
        for some in self.batches(spec, identities if request.assignments else ()):
            count = self.statement_size(spec, len(some))
            make = partial(self._writing, spec, count, request.assignments)
            writing = pick.made.get((self, request.assignments, count), make)
            self.execute(session, spec, writing, {**self.key_parameters(spec, some), **(request.parameters or {})})
        tasks = self.load_claimed(session, request, identities)
        if request.delete:
            self.delete(session, spec, [spec.identity_of(task) for task in tasks])
        return tasks

    def load_claimed(self, session: Session, request: ClaimRequest, identities: Sequence[Identity]) -> list[Any]:
        """Load the instances of rows that are locked, and written unless they are to be deleted."""
        spec, latest = request.pick.spec, not request.assignments
        return self.load(session, spec, identities, request.options, latest=latest, unreadable=request.unreadable)

    def write_each(
        self,
        session: Session,
        spec: QueueSpec,
        column: Column[Any],
        values: Mapping[Identity, Any],
        others: Callable[[], Sequence[Assignment]],
        *,
        key: Hashable,
    ) -> None:
        """Write to each of some locked rows its own value of ``column``, and what ``others`` returns for a ``key``."""
        items = list(values.items())
        for start in range(0, len(items), _MOST):
            some = _sized(items[start : start + _MOST])
            make = partial(self._writing_each, spec, column, others, len(some))
            writing = spec.made.get((self, "each", key, len(some)), make)
            parts = {_KEY.format(number, n): part for number, (row, _) in enumerate(some) for n, part in enumerate(row)}
            own = {_VALUE.format(number): value for number, (_, value) in enumerate(some)}
            self.execute(session, spec, writing, parts | own)

    def _writing_each(
        self, spec: QueueSpec, column: Column[Any], others: Callable[[], Sequence[Assignment]], count: int
    ) -> ByKey:
        named = [spec.key(names_of(spec, number)) for number in range(count)]
        own = (bindparam(_VALUE.format(number), type_=column.type) for number in range(count))
        each = case(*zip(named, own, strict=True), else_=column)  # which gives the parameters its type
        return self.by_key(spec, write(spec, or_(*named), [*others(), (column, each)]))

    def write_candidates(self, session: Session, request: ClaimRequest) -> list[Any]:
        """Do the work of :meth:`lock_and_write` for a divided pick, by primary key: read rows without locks, then lock
        and write some until there are enough.

        For engines where :meth:`lock_and_write` is one statement, which cannot read the parts in one order and lock as
        it reads.
        """
        found = list[Any]()
        for keys, room in self._further(session, request.pick, found):
            found += self._write_keys(session, request, keys, room)
        return found

    def _write_keys(self, session: Session, request: ClaimRequest, keys: Sequence[Identity], room: int) -> list[Any]:
        """Lock and write the ``keys`` that are not locked and still match, at most ``room``, in their order."""
        pick, spec = request.pick, request.pick.spec
        count = self.statement_size(spec, len(keys))
        if self.names_exactly:
            count = room = len(keys)
        named = pick.made.get((self, "named", count, room), partial(self._named, pick, count, room))
        parameters = {**(request.parameters or {}), **self.key_parameters(spec, keys)}
        taken = self.lock_and_write(session, replace(request, pick=named, parameters=parameters))
        found = {spec.identity_of(task): task for task in taken}
        return [found[key] for key in keys if key in found]

    def _named(self, pick: Pick, count: int, room: int) -> Pick:
        keys = self.key_in_parameters(pick.spec, self.statement_size(pick.spec, count))
        return replace(pick, state=tuple(self.matching(pick)), where=()).named(keys, room)

    def _writing(self, spec: QueueSpec, count: int, assignments: Sequence[Assignment]) -> ByKey:
        return self.by_key(spec, write(spec, self.key_in_parameters(spec, count), assignments))

    # -- claims rows of several lanes: reads the first rows of each, and then locks them by primary key

    walks_keys: ClassVar[bool] = False
    """Whether one recursive statement searches the index for one key after the other.  Other engines do not use an
    index for a value that the statement itself has found."""
    claims_in_order: ClassVar[bool] = False
    """Whether a claim with assignments from lanes that are not divided returns its rows in the order of the queue,
    unless these take turns."""
    searched: ClassVar[int] = LANES
    """The number of lanes whose first rows a claim compares, if it needs no more."""
    probes: ClassVar[int] = LANES
    """The maximum number of keys of which a statement searches the next ones."""

    skips_values: ClassVar[bool] = False
    """Whether NOT IN on a column of an index is read as the ranges between the values."""

    def walk_keys(self, session: Session, pick: Pick, key: Any, number: int) -> list[Any]:
        """Return the next keys after ``key`` that have an entry in the index of the lanes and are not excluded, at most
        so many; and ``None`` after them if there are rows without a key."""
        given = [] if key is EDGE else [key]

        def make() -> Any:
            column: Any = pick.lanes and pick.lanes.column
            after = column > bindparam(LANE.format(0), type_=column.type) if given else column.is_not(None)
            first = self.select_candidates(pick.keys(after, 1), column.label("key")).subquery("first")
            walk = select(first.c.key, literal_column("1", Integer).label("number")).cte("walk", recursive=True)
            following = self.select_candidates(pick.keys(column > walk.c.key, 1), column).correlate(walk)
            one: ColumnElement[int] = literal_column("1")
            excluded = list(pick.lanes.excluded) if pick.lanes else []
            counts = case((walk.c.key.in_(excluded), literal_column("0")), else_=one) if excluded else one
            further = select(following.scalar_subquery(), walk.c.number + counts)
            goes_on = walk.c.number + counts <= literal_column(str(number))
            walk = walk.union_all(further.where(walk.c.key.is_not(None), goes_on))
            others = [walk.c.key.not_in(excluded)] if excluded else []
            keys = select(walk.c.key, walk.c.number).where(walk.c.key.is_not(None), *others)
            if not column.nullable:
                return keys.order_by(walk.c.number)
            last = literal_column(str(LARGEST), Integer).label("number")
            unkeyed = self.select_candidates(pick.keys(column.is_(None), 1), column.label("key"), last).subquery("rest")
            every = union_all(keys, select(unkeyed.c.key, unkeyed.c.number)).subquery("every")
            return select(every.c.key, every.c.number).order_by(every.c.number)

        return [row[0] for row in self._find(session, pick, ("walk", len(given), number), make, given)]

    def _find(
        self, session: Session, pick: Pick, what: Hashable, make: Callable[[], Select[Any]], given: Sequence[Any]
    ) -> Iterable[Any]:
        """Execute a statement that finds keys in the order of the numbers after them, and return its rows; where the
        engine can, read what is :attr:`.Pick.beside`."""
        return self._execute_for_lanes(session, pick, what, make, given)

    def next_keys(self, session: Session, pick: Pick, keys: Sequence[Any]) -> dict[Any, Any]:
        """Return the key that follows each of ``keys``, at most :attr:`probes`, that has an entry in the index.

        One search of the index for each key, however many rows a key has.
        """
        given = [key for key in keys if key is not EDGE]
        searched = _sized(given)
        starts = len(given) < len(keys)

        def make() -> Executable:
            column: Any = pick.lanes and pick.lanes.column
            after = [column.is_not(None)] if starts else []
            after += [column > bindparam(LANE.format(n), type_=column.type) for n, _ in enumerate(searched)]
            return self.select_next([pick.keys(criterion, 1) for criterion in after], column)

        found = dict.fromkeys(keys, EDGE)
        names = [*([EDGE] if starts else []), *searched]
        for number, key in self._execute_for_lanes(session, pick, ("next", len(searched), starts), make, searched):
            found[names[number]] = EDGE if key is None else key
        return found

    def select_next(self, searches: Sequence[Pick], key: ColumnElement[Any]) -> Executable:
        """Return the SELECT of the number of each of ``searches`` and the first key that it finds, if any."""
        return merged(
            lambda wanted: (self.select_candidates(each, *wanted) for each in searches),
            [key],
            [Ordering(key)],
            apart=True,
        )

    def keys_after(self, session: Session, pick: Pick, key: Any, number: int, passed: Sequence[Any] = ()) -> list[Any]:
        """Return the keys of the first ``number`` rows of later lanes than that of ``key``, in order, except for those
        ``passed``, whose rows are not read: see :attr:`skips_values`."""
        given = [] if key is EDGE else [key]
        lists = [passed[start : start + _LONGEST_RANGES] for start in range(0, len(passed), _LONGEST_RANGES)]

        def make() -> Select[Any]:
            column: Any = pick.lanes and pick.lanes.column
            after = column > bindparam(LANE.format(0), type_=column.type) if given else column.is_not(None)
            others = (
                column.not_in(bindparam(_PASSED.format(n), type_=column.type, expanding=True))
                for n, _ in enumerate(lists)
            )
            return self.select_candidates(pick.keys(and_(after, *others), number), column)

        also = {_PASSED.format(n): some for n, some in enumerate(lists)}
        what = ("after", number, len(given), len(lists))
        return [row[0] for row in self._execute_for_lanes(session, pick, what, make, given, also=also)]

    def lane_heads(
        self, session: Session, pick: Pick, number: int, keys: Sequence[Any] | None = None
    ) -> dict[Identity, Any]:
        """Return the keys of the first ``number`` rows, or of as many of each lane of ``keys``, in the order of the
        queue, locked or not."""
        lanes: Any = pick.lanes
        columns = (*pick.spec.primary_key, lanes.column)
        if keys is None:
            make = partial(self.select_candidates, replace(lanes.ordered, limit=number), *columns)
            rows = self._execute_for_lanes(session, pick, ("heads", number), make, ())
        else:
            rows = [row for _, row in self._rows_of_each(session, pick, number, keys, columns, apart=False)]
        return {tuple(identity): key for *identity, key in rows}

    def claim_lanes(
        self,
        session: Session,
        request: ClaimRequest,
        shares: Mapping[Any, int],
        first: Mapping[Any, Sequence[Identity]] | None = None,
    ) -> tuple[list[Any], dict[Any, int]]:
        """Lock and write, or delete, the first rows of each lane, as many as its share; return the instances, and how
        many rows of each lane were taken.  The lanes take turns in the order of the result.  See :meth:`lock_lanes`.
        """
        found = self.lock_lanes(session, request, shares, first)
        turns = [each for each in chain(*zip_longest(*found.values())) if each is not None]
        return self.write_locked(session, request, turns), {key: len(taken) for key, taken in found.items()}

    def lock_lanes(
        self,
        session: Session,
        request: ClaimRequest,
        shares: Mapping[Any, int],
        first: Mapping[Any, Sequence[Identity]] | None = None,
    ) -> dict[Any, list[Identity]]:
        """Lock the first rows of each lane, as many as its share: the ``first`` ones, if they have been read before.

        Instead of rows that others have locked, it takes later ones of the same lane.  Keys that are equal by the
        collation of their column have the same rows, of which each is taken once.
        """
        pick, wanted = request.pick, dict(shares)
        found: dict[Any, list[Identity]] = {key: [] for key in shares}
        seen: set[Identity] = set()
        number = 1 << (max(shares.values()) + 1).bit_length()
        while wanted:
            rows = first or self.first_rows(session, pick, list(wanted), number)
            full = [key for key in wanted if first or len(rows[key]) == number]
            while some := {
                each: key
                for key, room in wanted.items()
                for each in islice((each for each in rows[key] if each not in seen), room)
            }:
                seen.update(some)
                for part in self.batches(pick.spec, list(some)):
                    for each in self.lock_some(session, request, part, some):
                        found[some[each]].append(each)
                wanted = {key: room for key in wanted if (room := shares[key] - len(found[key]))}
            wanted = {key: wanted[key] for key in full if key in wanted}
            number *= 1 if first else FURTHER
            first = None
        return found

    def lock_some(
        self,
        session: Session,
        request: ClaimRequest,
        keys: Sequence[Identity],
        of: Mapping[Identity, Any] | None = None,
    ) -> Sequence[Identity]:
        """Lock the rows that are not locked and still match; return them.  Where only one session writes, all match.

        Unless keys only share the queue, rows match if they still have the keys ``of`` lanes.
        """
        if self.connections.one_writer:
            return keys
        pick, column = request.pick, request.pick.spec.keyed_by
        if of is not None and column is not None and (pick.spec.is_limited or pick.spec.sequence is not None):
            together: dict[Any, list[Identity]] = {}
            for identity in keys:
                together.setdefault(of[identity], []).append(identity)
            has = {key: column.is_(None) if key is None else column == key for key in together}
            if len(has) > 1:
                has = {key: and_(each, self.key_in(pick.spec, together[key])) for key, each in has.items()}
            pick = replace(pick, where=(*pick.where, or_(*has.values())))
        return self.lock_keys(session, pick, keys, len(keys), locks_only=not request.assignments)

    def free_rows(
        self, session: Session, pick: Pick, keys: Sequence[Any], number: int
    ) -> tuple[dict[Any, list[Identity]], set[Any]]:
        """Return the primary keys of the first ``number`` rows of each lane, up to the first one that is not free, and
        the lanes whose first row has been reactivated.
        """
        lanes: Any = pick.lanes
        again: Any = pick.spec["claim_token"] == literal_column(str(REACTIVATED))
        way = case((again, literal_column("2")), else_=literal_column("1"))
        is_free = and_(lanes.free, *nothing_holds(pick.spec, partial(self.of_key, pick.spec)))
        free = case((is_free, way), else_=literal_column("0")).label("free")
        rows = self.first_rows(session, pick, keys, number, free)
        free_rows = {key: list(takewhile(itemgetter(-1), some)) for key, some in rows.items()}
        reactivated = {key for key, some in free_rows.items() if some and some[0][-1] > 1}
        return {key: [row[:-1] for row in some] for key, some in free_rows.items()}, reactivated

    def first_rows(
        self, session: Session, pick: Pick, keys: Sequence[Any], number: int, *also: ColumnElement[Any]
    ) -> dict[Any, list[Identity]]:
        """Return the primary keys of the first ``number`` rows of each lane, locked or not, and their ``also``."""
        found: dict[Any, dict[Identity, None]] = {key: {} for key in keys}
        columns = (*pick.spec.primary_key, *also)
        for key, row in self._rows_of_each(session, pick, number, keys, columns, apart=True):
            found[key][row] = None
        return {key: list(rows) for key, rows in found.items()}

    def lane(self, pick: Pick, key: Any, number: int) -> Pick:
        """Return the first ``number`` rows of the lane of ``pick`` with this ``key``, ``None`` for rows without one."""
        lanes: Any = pick.lanes
        return pick.lane(lanes.column.is_(None) if key is None else lanes.column == key, number)

    def count_lane(self, pick: Pick, key: Any, *where: Criterion, among: Criterion | None = None) -> ColumnElement[int]:
        """Return, as a column, how many of the first rows of the lane of ``pick`` with this ``key`` that satisfy
        ``where``, :data:`.COUNTED` at most, also satisfy ``among``."""
        one: ColumnElement[Any] = literal_column("1")
        of = key if pick.lanes is None or key is None else literal(key, pick.lanes.column.type)
        read = self.lane(replace(pick, where=(*pick.where, *where)), of, COUNTED)
        rows = self.select_candidates(read, (one if among is None else case((among, one))).label("one")).subquery()
        return select(func.count(rows.c.one)).scalar_subquery().label(None)

    def _rows_of_each(
        self, session: Session, pick: Pick, number: int, keys: Sequence[Any], columns: Columns, *, apart: bool
    ) -> Iterator[tuple[Any, Identity]]:
        """Yield the first ``number`` rows of each lane of ``keys`` with its key: one lane after the other if they are
        ``apart``, otherwise :data:`BRANCHES` lanes together, in the order of the queue, and with any key."""
        if len(keys) > BRANCHES:
            yield from self._rows_of_each(session, pick, number, keys[:BRANCHES], columns, apart=apart)
            yield from self._rows_of_each(session, pick, number, keys[BRANCHES:], columns, apart=apart)
            return
        given = [key for key in keys if key is not None]
        searched = _sized(given)
        unkeyed = len(given) < len(keys)

        def make() -> Select[Any]:
            column: Any = pick.lanes and pick.lanes.column
            named = (bindparam(LANE.format(n), type_=column.type) for n, _ in enumerate(searched))
            lanes = [self.lane(pick, key, number) for key in [*([None] if unkeyed else []), *named]]
            if len(lanes) == 1:
                return self.select_candidates(lanes[0], *columns)
            return merged(
                lambda wanted: (self.select_candidates(each, *wanted) for each in lanes),
                columns,
                pick.order,
                apart=apart,
            )

        names = [*([None] if unkeyed else []), *searched]
        what = ("first", len(searched), unkeyed, number, len(columns), apart)
        for row in self._execute_for_lanes(session, pick, what, make, searched):
            part, *rest = row if apart and len(names) > 1 else (0, *row)
            yield names[part], tuple(rest)

    def _execute_for_lanes(
        self,
        session: Session,
        pick: Pick,
        what: Hashable,
        make: Callable[[], Any],
        keys: Sequence[Any],
        *,
        also: Parameters = MappingProxyType({}),
    ) -> Iterable[Any]:
        lanes: Any = pick.lanes
        parameters = {LANE.format(n): key for n, key in enumerate(keys)} | dict(also)
        return self.execute(session, pick.spec, lanes.made.get((self, what), make), parameters).all()

    # -- inserts rows: by default with plain INSERT, without an upsert or a bulk protocol

    numbers_keys: ClassVar[bool] = True
    """Whether the server generates integer keys even if the model declares no generator, such as ``Identity()``."""
    key_before_row: ClassVar[bool] = False
    """Whether an upsert locks the unique index entry before the row, but completion the row first: they can
    deadlock."""
    sends_values_alone: ClassVar[bool] = False
    """Whether many rows are inserted in one request only if they contain no SQL expressions."""

    drops_blanks: ClassVar[bool] = False
    """Whether comparisons of text ignore trailing blanks, regardless of the collation."""

    def check_keys(self, spec: QueueSpec, rows: Iterable[Mapping[str, Any]]) -> None:
        """Raise :class:`.ConfigurationError` for a row, keyed by attribute name, that would have no key."""
        for column in () if self.numbers_keys else spec.unnumbered:
            name = spec.mapper.get_property_by_column(column).key
            if any(row.get(name) is None for row in rows):
                advice = "mapped_column(Identity(), primary_key=True), or with FetchedValue() if a trigger fills it in"
                raise ConfigurationError(
                    f"{spec.entity.__name__}.{name} has no value, and {self.product.name} generates none: declare"
                    f" {advice}",
                    model=spec.entity,
                )

    def check_blanks(self, spec: QueueSpec, rows: Iterable[Mapping[str, Any]]) -> None:
        """Raise :class:`.ArgumentError` for a primary key that ends in ignored blanks; rows are keyed by attribute
        name."""
        for column in spec.primary_key if self.drops_blanks else ():
            name = spec.mapper.get_property_by_column(column).key
            for value in (row.get(name) for row in rows):
                if isinstance(value, str) and value.endswith(" "):
                    raise ArgumentError(
                        f"{name}={value!r} ends in a space, which {self.product.name} ignores: it is the same key as"
                        f" {value.rstrip(' ')!r}"
                    )

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        """Return an INSERT that leaves an existing row with the same key unchanged, or updates it by ``replace``.

        Return ``None`` if the engine has no upsert: the caller then tries an UPDATE first.
        """
        return None

    def insert_alike(self, table: Table, same: Sequence[str], different: Sequence[str], timed: str) -> Insert:
        """Return an INSERT, for :meth:`alike_values`, of rows that have the same values in the columns ``same``.  The
        column ``timed`` gets the time of the statement, by the database's clock.
        """
        statement = insert(table).inline()
        if self.sends_values_alone:
            return statement  # the column's default gives the time
        return statement.values({timed: utcnow()})  # a default may be the time of the transaction's start

    def alike_values(self, same: Mapping[str, Any], different: Mapping[str, Sequence[Any]]) -> Values:
        """Return the parameters of :meth:`insert_alike`: the value of each column in all rows, or its values by row."""
        return [{**same, **dict(zip(different, row, strict=True))} for row in zip(*different.values(), strict=True)]

    def copy(self, connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Load rows with the engine's bulk protocol, in this transaction; raise :class:`.ArgumentError` if the engine
        has none."""
        raise ArgumentError(f"{self.product.name} has no COPY: leave out copy=True, and the rows are inserted in bulk")


def _sized(keys: Sequence[Any]) -> Sequence[Any]:
    """Return ``keys`` with the last one repeated up to a number for which there are statements."""
    missing = _SIZES[bisect_left(_SIZES, len(keys))] - len(keys) if keys else 0
    return [*keys, *[keys[-1]] * missing] if missing else keys


def names_of(spec: QueueSpec, number: int) -> Identity:
    """Return the parameters of one of the keys of :meth:`.Rows.key_in_parameters`."""
    columns = enumerate(spec.primary_key)
    return tuple(bindparam(_KEY.format(number, n), type_=column.type) for n, column in columns)


def skip_locked(pick: Pick, *columns: ColumnElement[Any], key_share: bool = False) -> Select[Any]:
    """Return :meth:`select_locking` for engines with SKIP LOCKED that lock only the rows that they return."""
    return pick.select(*columns).limit(pick.limit).with_for_update(skip_locked=True, key_share=key_share)


def on_conflict(statement: Any, by: UniqueBy, replace: Replacement | None) -> Insert:
    """Return ``statement`` with the ON CONFLICT clause of PostgreSQL and SQLite."""
    target = {"index_elements": list(by.columns), "index_where": by.predicate}
    if replace is None:
        leaving: Insert = statement.on_conflict_do_nothing(**target)
        return leaving
    values = {column.name: value for column, value in replace(lambda name: statement.excluded[name])}
    replacing: Insert = statement.on_conflict_do_update(**target, set_=values)
    return replacing


def forget_unfinished(session: Session, spec: QueueSpec, keys: Sequence[Identity], error: Exception) -> None:
    """Remove from the session the instances that ``error`` has left unfinished.

    A session returns an instance that it has without another call of the events that have raised the error. Only the
    failed call refers to them, and the session itself does so weakly.
    """
    clear_frames(error)
    if any(identity_key(spec.entity, key) in session.identity_map for key in keys):
        gc.collect()


def again(spec: QueueSpec, parameters: Parameters | None, key: Hashable, make: Callable[[], R]) -> R:
    """Return the statement that ``make`` builds, cached if it has ``parameters`` and can therefore be reused."""
    made: R = make() if parameters is None else spec.made.get(key, make)
    return made


def in_order(spec: QueueSpec, found: Mapping[R, Any], wanted: Sequence[R]) -> list[Any]:
    """Return the values of ``found`` in the order of ``wanted``; raise :class:`.ArgumentError` if one is missing."""
    hidden = [each for each in wanted if each not in found]
    if hidden:
        raise ArgumentError(
            f"{spec.entity.__name__} {hidden[0]} is claimed but cannot be loaded: loader options or criteria of the"
            " session hide it, or it is newer than this transaction's snapshot. Roll back."
        )
    return [found[each] for each in wanted]
