"""PostgreSQL 12 and newer, and the parts that CockroachDB shares."""

from __future__ import annotations

import asyncio
import os
import selectors
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, zip_longest
from operator import itemgetter
from selectors import EVENT_READ, DefaultSelector
from typing import Any, ClassVar
from uuid import uuid4

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Insert,
    Integer,
    Interval,
    Select,
    String,
    Table,
    TableValuedAlias,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    extract,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
    union_all,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.sql import operators

from .._support.errors import ArgumentError
from ..queue.spec import Criterion, Finding, Identity, QueueSpec, Severity
from ..sql import Assignment, Columns, Pick, UniqueBy, is_due, merged, utcnow, write
from .base import Adapter
from .connections import (
    READ_COMMITTED,
    Connections,
    Interrupt,
    Listener,
    StatementResult,
    comes_from_network,
    first_argument,
    milliseconds,
    socket_of,
    wrapping,
)
from .inspection import Inspection, QueryPlan, Types, catalog, explain, read_only
from .naming import Product, live_name, plain
from .statements import (
    KEYS,
    LANE,
    MANY,
    MANY_LANES,
    ROWS,
    ClaimRequest,
    Parameters,
    Replacement,
    Rows,
    Values,
    forget_unfinished,
    on_conflict,
    skip_locked,
)

# -- postgreSQL's clock -----------------------------------------------------------------------------------------------

_SECOND = literal_column("INTERVAL '1 second'", Interval())


class PostgreSQLTypes(Types):
    """SQLAlchemy's types, and PostgreSQL's time functions."""

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        # not clock_timestamp(): a volatile function cannot bound an index scan
        now = func.pg_catalog.statement_timestamp()
        # not make_interval(), which CockroachDB lacks; both round the product to the nearest microsecond
        return now if seconds is None else now + seconds * _SECOND

    def default(self) -> ColumnElement[Any]:
        return func.current_timestamp()  # the column stores the zone

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        # rounded: some versions return seconds as floating-point numbers
        seconds = case((_is_finite(earlier) & _is_finite(later), extract("epoch", later - earlier)))
        return cast(func.pg_catalog.round(seconds * literal_column("1000000")), BigInteger)


def _is_finite(moment: ColumnElement[Any]) -> ColumnElement[bool]:
    given = cast(moment, moment.type)  # not isfinite(), which CockroachDB lacks
    return and_(given > literal_column("'-infinity'"), given < literal_column("'infinity'"))


# -- claims in one statement ------------------------------------------------------------------------------------------

PSYCOPG = ("psycopg", "psycopg_async")
"""Names of psycopg's dialects in SQLAlchemy, sync and async."""

_RECENTLY = timedelta(minutes=10)
_LAST = 2**31 - 1
"""A position that no row has."""


def _listed(rows: CTE, names: Sequence[str], order: Sequence[Any]) -> TableValuedAlias:
    """Return these columns of ``rows``, as arrays and then as rows again, with the ``position`` of each in a total
    ``order``."""
    arrays = [func.array(select(rows.c[name]).order_by(*order).scalar_subquery()) for name in names]
    # the grammar knows unnest with several arrays, without a schema alone; with one, it is an ordinary function
    unnest = func.pg_catalog.unnest if len(arrays) == 1 else func.unnest
    return unnest(*arrays).table_valued(*names, with_ordinality="position").render_derived(name="picked")


def _instances(session: Session, spec: QueueSpec, statement: Any, parameters: Parameters | None = None) -> Any:
    """Execute a statement that returns all columns of rows, and load their instances from it."""
    loading = {"populate_existing": True}
    return session.execute(statement, parameters, execution_options=loading, bind_arguments=spec.bind_arguments)


class PostgreSQLRows(Rows):
    """Sends lists as arrays, one parameter each, and claims in one statement.

    A materialized CTE locks rows, and the UPDATE around it writes and returns them.  With ``lease=None``, a claim is a
    locking SELECT.

    The keys go through an array, so that a planner does not know how many there are: to join several hundred locked
    rows, it would read the whole table.  Of an array it expects ten elements, and that a range of positions selects one
    of them, for which it searches the table by key.  The plan may be kept for as long as the connection, and the table
    may be small when it is made.

    Rows are locked after the sort.  ``WHERE id IN (SELECT ... LIMIT n FOR UPDATE)`` would be wrong: a plan may evaluate
    the subquery for each row, and claim more than n rows.
    """

    skips_locked = True
    hides_criteria = True
    walks_keys = True
    claims_in_order = True
    searched = MANY_LANES
    of_found = "array"
    concludes = True

    def key_in_parameters(self, spec: QueueSpec, count: int) -> Criterion:
        if count == MANY and len(spec.primary_key) == 1:
            (column,) = spec.primary_key
            # one parameter, so that the server sees the same statement for any number of keys
            return column == any_(bindparam(KEYS, type_=ARRAY(column.type)))
        return super().key_in_parameters(spec, count)

    def rows_in(
        self, spec: QueueSpec, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None
    ) -> Criterion:
        # a subquery is hashed, a list of tuples compared one by one; without IS TRUE it would become a join, for which
        # a plan may choose nested loops
        values = [None] * len(columns) if rows is None else [list(each) for each in zip(*rows, strict=True)]
        names = [f"{ROWS}_{n}" if rows is None else None for n, _ in enumerate(columns)]
        lists = [
            bindparam(name, value, type_=ARRAY(column.type), required=value is None)
            for name, value, column in zip(names, values, columns, strict=True)
        ]
        return tuple_(*columns).in_(select(*map(func.pg_catalog.unnest, lists))).is_(true())

    def row_parameters(self, spec: QueueSpec, rows: Sequence[Identity]) -> dict[str, Any]:
        return {f"{ROWS}_{n}": list(given) for n, given in enumerate(zip(*rows, strict=True))}

    def select_locking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        # FOR NO KEY UPDATE: inserting a child row neither hides its task from claims nor waits for a claim
        return skip_locked(pick, *columns, key_share=True)

    def locked_in_order(self, spec: QueueSpec, keys: Sequence[Identity]) -> int:
        return len(keys)

    def _naming(self, pick: Pick, count: int, limit: int | None) -> Select[Any]:
        order = () if limit is None else (term.expression for term in pick.order)
        return super()._naming(pick, count, limit).order_by(*order)

    def _named(self, pick: Pick, count: int, room: int) -> Pick:
        return replace(super()._named(pick, count, room), order=pick.order)

    def begin_look(self, session: Session, spec: QueueSpec) -> None:
        # for a row that is found in most tables at once, a planner chooses a scan, even where there is none to find
        settings = {"enable_seqscan": "off", "row_security": "off"}  # an error, rather than members that are not seen
        local = (func.pg_catalog.set_config(name, value, true()) for name, value in settings.items())
        self.execute(session, spec, spec.made.get((self, "begin look"), lambda: select(*local)))

    def skip_locked_rows(self, spec: QueueSpec, named: Criterion) -> Criterion:
        # a join without repeating the condition, whose number of rows the planner cannot estimate
        key = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
        free = self.select_locking_by_key(spec, named, *key).cte("free").prefix_with("MATERIALIZED")
        return and_(*(column == free.c[f"key_{n}"] for n, column in enumerate(spec.primary_key)))

    def lock_and_write(self, session: Session, request: ClaimRequest) -> list[Any]:
        pick = request.pick
        is_served = not pick.is_divided
        if request.assignments and not request.delete:
            return self._write(session, request) if is_served else self.write_candidates(session, request)
        if request.delete or not is_served or not request.pick.spec.is_plain or request.options:
            return super().lock_and_write(session, request)
        locking = pick.made.get((self, "load"), lambda: self._loading(pick))
        try:
            return [task for (task,) in _instances(session, pick.spec, locking)]
        except Exception as error:
            if not self.connections.is_of_row(error):
                raise
            keys = self.lock(session, pick)  # returns the same rows: they are locked by this transaction
            if not keys:
                raise
            forget_unfinished(session, pick.spec, keys, error)
            return self.load(session, pick.spec, keys, latest=True, unreadable=request.unreadable)

    def claim_lanes(
        self,
        session: Session,
        request: ClaimRequest,
        shares: Mapping[Any, int],
        first: Mapping[Any, Sequence[Identity]] | None = None,
    ) -> tuple[list[Any], dict[Any, int]]:
        """Claim from all lanes with a key in one statement, which locks in each lane as a claim of that lane would."""
        pick, lanes, keys = request.pick, request.pick.lanes, [key for key in shares if key is not None]
        if lanes is None or not request.assignments or request.delete or pick.is_divided:
            return super().claim_lanes(session, request, shares, first)
        tasks, taken = list[Any](), dict[Any, int]()
        if room := shares.get(None):
            unkeyed = lanes.made.get(("unkeyed", room), lambda: self.lane(pick, None, room))
            tasks = self.lock_and_write(session, replace(request, pick=unkeyed))
            taken = {None: len(tasks) + len(request.unreadable)}
        if not keys:
            return tasks, taken
        given = _given(keys, [shares[key] for key in keys])
        numbers: list[int] = []
        found = self._write(session, replace(request, parameters={**(request.parameters or {}), **given}), numbers)
        if not numbers and found:
            return [*tasks, *found], {**shares, **taken}  # the result was lost, see _written
        if pick.spec.fair is None and not tasks:
            return found, {**taken, **Counter(keys[number - 1] for number in numbers)}
        each: list[list[Any]] = [tasks, *([] for _ in keys)]
        for number, task in zip(numbers, found, strict=True):
            each[number].append(task)
        turns = [task for task in chain(*zip_longest(*each)) if task is not None]
        return turns, {**taken, **{key: len(some) for key, some in zip(keys, each[1:], strict=True)}}

    def _find(
        self, session: Session, pick: Pick, what: Hashable, make: Callable[[], Select[Any]], given: Sequence[Any]
    ) -> Iterable[Any]:
        beside = pick.beside
        if beside is None:
            return super()._find(session, pick, what, make, given)

        def make_both() -> Any:
            found = make().cte("found")
            # through an array, of which a planner expects ten elements
            of_found = func.array(select(next(iter(found.c))).scalar_subquery())
            wanted = beside.select(lambda column: column == any_(of_found)).subquery("wanted")
            mine, others = ([type_coerce(null(), each.type) for each in [*some.c][2:]] for some in (found, wanted))
            return union_all(select(*found.c, *others), select(*[*wanted.c][:2], *mine, *[*wanted.c][2:]))

        rows: Any = self._execute_for_lanes(session, pick, (what, beside.key), make_both, given)
        width = beside.width
        found = sorted((row for row in rows if row[-width] is None), key=itemgetter(1))
        beside.take([(*row[:2], *row[-width:]) for row in rows if row[-width] is not None], [row[0] for row in found])
        return [row[:-width] for row in found]

    def lane_heads(
        self, session: Session, pick: Pick, number: int, keys: Sequence[Any] | None = None
    ) -> dict[Identity, Any]:
        """Read the lanes with a key in one statement."""
        lanes: Any = pick.lanes
        # with keys to walk, the rows that an index returns in order are numbered without reading those after a limit
        if keys is None and pick.beside is not None and not lanes.ordered.is_divided and self.walks_keys:
            first = replace(lanes.ordered, limit=number)
            place = func.row_number().over(order_by=[term.expression for term in first.order]).label("place")
            names = [column.label(f"key_{n}") for n, column in enumerate(pick.spec.primary_key)]
            make = partial(self.select_candidates, first, lanes.column.label("lane_key"), place, *names)
            found = self._find(session, pick, ("heads", number), make, ())
            return {tuple(identity): key for key, _, *identity in found}
        if keys is None or pick.is_divided:
            return super().lane_heads(session, pick, number, keys)
        given = [key for key in keys if key is not None]
        has_unkeyed = len(given) < len(keys)

        def read(wanted: Columns) -> Iterator[Select[Any]]:
            of, first = self._first_of_lanes(pick, self.select_candidates, wanted)
            yield select(*first.c).select_from(of.join(first, true()))
            if has_unkeyed:
                yield self.select_candidates(self.lane(pick, None, number), *wanted)

        columns = [*pick.spec.primary_key, lanes.column]
        statement = lanes.made.get((self, "heads", has_unkeyed and number), lambda: merged(read, columns, pick.order))
        rows: Any = self.execute(session, pick.spec, statement, _given(given, [number] * len(given)))
        return {tuple(identity): key for *identity, key in rows}

    def _write(self, session: Session, request: ClaimRequest, lanes: list[int] | None = None) -> list[Any]:
        """Claim in one statement; ``lanes`` receives the number of the lane, from 1, of each instance."""
        pick, spec, assignments = request.pick, request.pick.spec, request.assignments
        whole = spec.is_plain and not request.options
        made = pick.made if lanes is None or pick.lanes is None else pick.lanes.made
        statement = made.get((self, assignments, whole), lambda: self._claiming(pick, assignments, whole=whole))
        if not whole:
            rows: list[Any] = sorted(self.execute(session, spec, statement, request.parameters), key=itemgetter(0))
            found: list[Identity] = [tuple(row[-len(spec.primary_key) :]) for row in rows]
            if lanes is not None:
                lanes += [row[1] for row in rows]
            return self.load(session, spec, found, request.options, unreadable=request.unreadable)
        connection = session.connection(spec.bind_arguments)
        try:
            with self.connections.alone(connection) if request.alone else nullcontext():
                taken = sorted(_instances(session, spec, statement, request.parameters), key=itemgetter(0))
            if lanes is not None:
                lanes += [row[1] for row in taken]
            return [row[-1] for row in taken]
        except Exception as error:
            if not self.connections.is_of_row(error):
                raise
            keys = self._written(session, request)
            if not keys:  # the error is not about a row
                raise
            forget_unfinished(session, spec, keys, error)
            return self.load(session, spec, keys, unreadable=request.unreadable)

    def _written(self, session: Session, request: ClaimRequest) -> list[Identity]:
        """Return the rows that :meth:`_write` has written, by the claim's token, in order as far as the claim has not
        overwritten it.

        Its result is lost if one of the rows cannot be read.
        """
        spec, values = request.pick.spec, dict(request.assignments)
        # the other criteria are for the indexes
        recent = or_(
            and_(is_due(spec), spec["available_at"] > utcnow()),
            spec["finished_at"] > utcnow(-_RECENTLY),
        )
        order = [term.expression for term in request.pick.order if term.column not in values]
        mine = and_(*(spec[role] == values[spec[role]] for role in ("claim_token", "status")))
        found = select(*spec.primary_key).where(mine, recent).order_by(*order)
        broken = {each.identity for each in request.unreadable}  # by part of the same claim
        return [key for key in self.keys(session, spec, found, request.parameters) if key not in broken]

    def _loading(self, pick: Pick) -> Any:
        """Return the statement of a claim that only locks.  It returns the latest versions of the rows."""
        locking = self.select_locking(pick, *pick.spec.table.columns)
        return select(pick.spec.entity).from_statement(locking)

    def _claiming(self, pick: Pick, assignments: Sequence[Assignment], *, whole: bool) -> Any:
        """Return the claim's statement.

        It returns each row's position, since RETURNING is unordered, and its key or, if ``whole``, all columns.
        """
        spec = pick.spec
        key = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
        order = [term.column.label(f"order_{n}") for n, term in enumerate(pick.order)]
        find = self.select_locking if pick.lanes is None else self._locking_lanes
        locked: CTE = find(pick, *key, *order).cte("locked").prefix_with("MATERIALIZED")
        names = [column.name for column in key]
        by = [term.over(locked.c[f"order_{n}"]) for n, term in enumerate(pick.order)]
        lane = [] if pick.lanes is None else ["lane"]
        first = [*by, *(locked.c[name] for name in names)]
        picked = _listed(locked, [*lane, *names], first)
        joined = [column == picked.c[name] for column, name in zip(spec.primary_key, names, strict=True)]
        claiming = write(spec, and_(*joined, picked.c.position.between(1, _LAST)), assignments)
        place = [picked.c.position, *(picked.c[name] for name in lane)]
        if not whole:
            return claiming.returning(*place, *spec.primary_key)
        # not an ORM UPDATE, whose criteria the session would evaluate in Python
        every = claiming.returning(*place, *spec.table.columns)
        return select(*place, spec.entity).from_statement(every)

    def _locking_lanes(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the SELECT that locks the first free rows of each lane, by the numbers of the given keys."""
        given, first = self._first_of_lanes(pick, self.select_locking, columns)
        return select(given.c.lane, *first.c).select_from(given.join(first, true()))

    def _first_of_lanes(
        self, pick: Pick, read: Callable[..., Select[Any]], columns: Columns
    ) -> tuple[FromClause, FromClause]:
        """Return the keys of :func:`_given`, and what to ``read`` of the rows of each."""
        lanes: Any = pick.lanes
        keys = bindparam(LANE.format("keys"), type_=ARRAY(lanes.column.type))
        shares = bindparam(LANE.format("shares"), type_=ARRAY(Integer()))
        given = func.unnest(keys, shares).table_valued(
            column("lane_key", lanes.column.type), column("share", Integer()), with_ordinality="lane", name="given"
        )
        given = given.render_derived(name="given")
        of = read(self.lane(pick, given.c.lane_key, 1), *columns)
        return given, of.limit(given.c.share).lateral("first")

    def lane(self, pick: Pick, key: Any, number: int) -> Pick:
        # If the statistics know a single key, a planner takes any other for as frequent, and reads the whole queue in
        # its order. Only the index of the lanes has the rows of a range of keys in the order of the keys.
        lanes: Any = pick.lanes
        of = lanes.column.is_(None) if key is None else and_(lanes.column >= key, lanes.column <= key)
        return replace(pick.lane(of, number), order=tuple(dict.fromkeys([*lanes.order, *pick.order])))

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        return on_conflict(insert(spec.table), by, replace)

    def insert_alike(self, table: Table, same: Sequence[str], different: Sequence[str], timed: str) -> Insert:
        """Return one statement with an array for each column that differs, because a list of rows is executed row by
        row."""
        fixed = (bindparam(name, type_=table.c[name].type) for name in same)
        lists = (func.pg_catalog.unnest(bindparam(name, type_=ARRAY(table.c[name].type))) for name in different)
        rows = select(*fixed, *lists, utcnow())
        return insert(table).from_select([*same, *different, timed], rows, include_defaults=False)

    def alike_values(self, same: Mapping[str, Any], different: Mapping[str, Sequence[Any]]) -> Values:
        return {**same, **different}

    def copy(self, connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        names = ", ".join(plain(connection.dialect, column) for column in columns)
        command = f"COPY {live_name(connection, table)} ({names}) FROM STDIN"
        if connection.dialect.driver not in PSYCOPG:
            raise ArgumentError(f"copy=True needs the driver psycopg, not {connection.dialect.driver}")
        try:
            _copy(connection, command, rows)
        except connection.dialect.loaded_dbapi.IntegrityError as error:
            raise IntegrityError(command, None, error) from error


def _given(keys: Sequence[Any], shares: Sequence[int]) -> dict[str, Any]:
    return {LANE.format("keys"): keys, LANE.format("shares"): shares}


def _copy(connection: Connection, command: str, rows: Iterable[Sequence[Any]]) -> None:
    pooled: Any = connection.connection
    if connection.dialect.is_async:
        pooled.dbapi_connection.run_async(lambda driver: _copy_async(driver, command, rows))
        return
    with pooled.driver_connection.cursor() as cursor, cursor.copy(command) as copy:
        for row in rows:
            copy.write_row(row)


async def _copy_async(driver: Any, command: str, rows: Iterable[Sequence[Any]]) -> None:
    async with driver.cursor() as cursor, cursor.copy(command) as copy:
        for row in rows:
            await copy.write_row(row)


# -- reads from the catalog what SQLAlchemy does not reflect ----------------------------------------------------------

PARTIAL_INDEX = "postgresql_where"
# all equivalent as defaults, since the column stores the zone
_CLOCKS = ("now()", "statement_timestamp()", "clock_timestamp()", "transaction_timestamp()")
STORAGE_DIALECT = "postgresql"
_PARAMETERS = {
    "fillfactor": "80",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_cost_delay": "0",
    "autovacuum_analyze_scale_factor": "0.02",
}
# with named parameters, so that percent signs are not doubled
_FORMAT = postgresql.dialect(paramstyle="named").identifier_preparer.format_table  # type: ignore[no-untyped-call]
_catalog = partial(catalog, "pg_catalog")
_CLASS = _catalog("pg_class", "oid", "relname", relispartition=Boolean, reloptions=postgresql.ARRAY(postgresql.TEXT))
_INDEX = _catalog("pg_index", "indrelid", "indexrelid", indisvalid=Boolean)
_ATTRIBUTE = _catalog("pg_attribute", "attrelid", "attname", "attmissingval")
_TRIGGER = _catalog("pg_trigger", "tgrelid", "tgname", tgisinternal=Boolean)


def partitioned_indexes(connection: Connection, names: Collection[str]) -> set[str]:
    """Return the names of the indexes of partitioned tables that the indexes ``names``, of partitions, belong to."""
    root = _CLASS.alias("root")
    belongs = root.c.oid == cast(func.pg_catalog.pg_partition_root(_CLASS.c.oid), postgresql.OID)
    roots = select(root.c.relname).join_from(_CLASS, root, belongs)
    return set(connection.scalars(roots.where(_CLASS.c.relname.in_(names), _CLASS.c.relispartition)))


def storage_statement(of: Table, *, give: bool) -> str:
    """Return the statement that sets the table's storage parameters, or resets them."""
    settings = (f"{name} = {value}" if give else name for name, value in _PARAMETERS.items())
    return f"ALTER TABLE {_FORMAT(of)} {'SET' if give else 'RESET'} ({', '.join(settings)})"


def _oid(connection: Connection, of: Table) -> ColumnElement[int]:
    return cast(func.pg_catalog.to_regclass(live_name(connection, of)), postgresql.OID)


# -- checks the server's state and the privileges of an account, and reads plans --------------------------------------

_SESSIONS = _catalog("pg_stat_activity", "pid", "usename", "application_name", "state", "backend_xid")
_SCHEMAS = _catalog("pg_namespace", "nspowner", "nspacl", nspname=String)
_ROLES = _catalog("pg_roles", "oid", "rolsuper", rolname=String)
_DISTRIBUTED = catalog(None, "pg_dist_partition", "logicalrelid", "partmethod")
"""The catalog of Citus.  The method of a table that is not distributed is 'n'."""
_ATTRIBUTES = _catalog("pg_attribute", "attrelid", attname=String)
_SEQUENCES = _catalog("pg_sequence", "seqrelid", seqcache=Integer)


def _of_distribution(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    if connection.scalar(select(cast(func.pg_catalog.to_regclass(_DISTRIBUTED.name), String))) is None:
        return
    name = live_name(connection, spec.table)
    relation = cast(_DISTRIBUTED.c.logicalrelid, String) == cast(func.pg_catalog.to_regclass(name), String)
    if connection.scalar(select(_DISTRIBUTED.c.partmethod != "n").where(relation)):
        message = (
            f"{spec.table.fullname} is distributed by Citus, which rejects FOR UPDATE across shards: nothing"
            " can be claimed"
        )
        fix = f"keep queues in tables that are not distributed: SELECT undistribute_table('{name}')"
        yield Finding.of(spec, Severity.ERROR, "distributed-table", message, fix)


def _of_sequences(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about keys of a queue that keeps its order which are not generated in that of transactions."""
    name = live_name(connection, spec.table)
    sequence = func.pg_catalog.to_regclass(func.pg_catalog.pg_get_serial_sequence(name, _ATTRIBUTES.c.attname))
    is_its = _SEQUENCES.c.seqrelid == cast(sequence, postgresql.OID)
    keys = (
        select(_ATTRIBUTES.c.attname, cast(sequence, String), _SEQUENCES.c.seqcache)
        .join_from(_ATTRIBUTES, _SEQUENCES, is_its)
        .where(_ATTRIBUTES.c.attrelid == cast(func.pg_catalog.to_regclass(name), postgresql.OID))
        .where(_ATTRIBUTES.c.attname.in_([key.name for key in spec.primary_key]), _SEQUENCES.c.seqcache > 1)
    )
    for key, numbers, cached in connection.execute(keys):
        message = (
            f"each session takes {cached} numbers at once from {numbers}, which generates {key} of"
            f" {spec.table.fullname}: rows with the same {spec.sequence} may be taken out of order"
        )
        fix = f"ALTER SEQUENCE {numbers} CACHE 1"
        yield Finding.of(spec, Severity.WARNING, "unordered-identity", message, fix)


def _intruders() -> Select[*tuple[Any, ...]]:
    """Return a query for the schemas of the search_path in which others may create objects, with each such role, or
    ``None`` for all roles.  Owners and superusers are trusted."""
    granted = func.pg_catalog.aclexplode(_SCHEMAS.c.nspacl).table_valued("grantee", "privilege_type", name="granted")
    searched = _SCHEMAS.c.nspname == any_(func.pg_catalog.current_schemas(true()))
    may_create = and_(granted.c.privilege_type == "CREATE", granted.c.grantee != _SCHEMAS.c.nspowner)
    trusted = func.coalesce(or_(_ROLES.c.rolsuper, _ROLES.c.rolname == func.current_user()), false())
    return (
        select(_SCHEMAS.c.nspname, _ROLES.c.rolname)
        .select_from(_SCHEMAS.join(granted, true()).outerjoin(_ROLES, _ROLES.c.oid == granted.c.grantee))
        .where(searched, may_create, ~trusted)
        .order_by(_SCHEMAS.c.nspname, _ROLES.c.rolname)
    )


class CatalogInspection(Inspection):
    """The common base for PostgreSQL and CockroachDB."""

    def same_default(self, dialect: Dialect, live: str) -> bool:
        return super().same_default(dialect, live) or live in _CLOCKS

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        # invalid: a failed CREATE INDEX CONCURRENTLY leaves such indexes behind
        names = select(_CLASS.c.relname).join_from(_INDEX, _CLASS, _CLASS.c.oid == _INDEX.c.indexrelid)
        mine = _INDEX.c.indrelid == _oid(connection, table)
        return connection.scalars(names.where(mine, ~_INDEX.c.indisvalid)).all()

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        schema = connection.schema_for_object(spec.table)
        if schema and not connection.scalar(select(func.pg_catalog.has_schema_privilege(schema, "USAGE"))):
            return [f"USAGE on the schema {schema}"]
        # privileges on single columns are enough, if they cover the needed columns
        name = live_name(connection, spec.table)
        of_queue = {each.name for each in spec.columns.values()}
        present = [column["name"] for column in live]
        needed = {"SELECT": present, "INSERT": present, "UPDATE": [each for each in present if each in of_queue]}
        rights = {
            privilege: and_(*(func.pg_catalog.has_column_privilege(name, each, privilege) for each in columns))
            for privilege, columns in needed.items()
        }
        rights["DELETE"] = func.pg_catalog.has_table_privilege(name, "DELETE")
        for each in live:
            if "nextval(" in (each["default"] or ""):  # an identity needs no separate privilege
                sequence = func.pg_catalog.pg_get_serial_sequence(name, each["name"])
                right = func.coalesce(func.pg_catalog.has_sequence_privilege(sequence, "USAGE"), true())
                rights[f"USAGE on the sequence of {each['name']}"] = right
        granted = connection.execute(select(*(right.label(None) for right in rights.values()))).one()
        return [privilege for privilege, has in zip(rights, granted, strict=True) if not has]


class PostgreSQLInspection(CatalogInspection):
    """Detects standbys, tables that Citus distributes, and messages whose keys are not in order; checks privileges on
    schemas, columns and sequences; reads plans from EXPLAIN in JSON format."""

    partial_index = PARTIAL_INDEX
    reviving = "REINDEX INDEX CONCURRENTLY {schema}{index}"
    dates_old_rows = True

    def index_options(self, predicate: Criterion) -> dict[str, Any]:
        # A search drops conditions that the predicate implies, even those on the first columns of the index, and then
        # reads all of it (before PostgreSQL 18). The second condition, which no row satisfies, hides what is implied.
        first: Any = next(iter(getattr(predicate, "clauses", [predicate])))
        fixes = first.operator in (operators.eq, operators.is_)
        return super().index_options(or_(predicate, first.left < first.left) if fixes else predicate)

    def lacks_storage(self, connection: Connection, table: Table) -> bool:
        # whether one of the parameters is not set; the table's owner may choose other values
        options = connection.scalars(select(_CLASS.c.reloptions).where(_CLASS.c.oid == _oid(connection, table))).all()
        return any(not {*_PARAMETERS} <= {option.split("=")[0] for option in given or ()} for given in options)

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str]:
        # except those of its foreign keys
        mine = (_TRIGGER.c.tgrelid == _oid(connection, table)) & ~_TRIGGER.c.tgisinternal
        return connection.scalars(select(_TRIGGER.c.tgname).where(mine)).all()

    def added_at(self, connection: Connection, column: Column[Any]) -> datetime | None:
        # stored until the table is rewritten; the value has a pseudo-type that can only be cast to text
        value = cast(cast(_ATTRIBUTE.c.attmissingval, postgresql.TEXT), postgresql.ARRAY(column.type))
        mine = (_ATTRIBUTE.c.attrelid == _oid(connection, column.table), _ATTRIBUTE.c.attname == column.name)
        return next(iter(connection.scalar(select(value).where(*mine)) or ()), None)

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        read_only_default = func.pg_catalog.current_setting("default_transaction_read_only")
        state: Any = connection.execute(select(func.pg_catalog.pg_is_in_recovery(), read_only_default)).one()
        standby, default = state
        if standby:
            yield read_only("this server is a hot standby", "connect to the primary")
        if default == "on":
            yield read_only("transactions start read-only", "set default_transaction_read_only to off for this role")
        quoted = connection.dialect.identifier_preparer.quote
        for schema, role in connection.execute(_intruders()):
            message = (
                f"{role or 'every role'} may create functions and operators in the schema {schema}, which is in the"
                " search_path: this account's statements could call them instead of built-in ones"
            )
            grantee = quoted(role) if role else "PUBLIC"
            fix = f"REVOKE CREATE ON SCHEMA {quoted(schema)} FROM {grantee}, or leave it out of the search_path"
            yield Finding(severity=Severity.WARNING, code="open-schema", message=message, fix=fix)

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        yield from _of_distribution(connection, spec)
        if spec.sequence is not None:  # other queues are not ordered by their keys
            yield from _of_sequences(connection, spec)

    def hides_rows(self, connection: Connection, spec: QueueSpec) -> bool:
        name = live_name(connection, spec.table)
        return connection.scalar(select(func.pg_catalog.row_security_active(func.pg_catalog.to_regclass(name)))) is True

    def lock_owner(self, connection: Connection, spec: QueueSpec, identity: Identity) -> str | None:
        # the system column xmax shows the transaction that locked a row last, unless several share the lock
        last = select(cast(literal_column("xmax"), String)).where(spec.key(identity)).scalar_subquery()
        told = select(*_SESSIONS.c).where(cast(_SESSIONS.c.backend_xid, String) == last)
        owner = connection.execute(told).one_or_none()
        if owner is None:
            return None
        program = f", {owner.application_name}" if owner.application_name else ""
        return f"{owner.usename} (backend {owner.pid}{program}, {owner.state})"

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
        if not forced:
            return _plan(connection, statement)
        with connection.begin_nested() as savepoint:
            for way in ("seqscan", "sort", "bitmapscan"):
                connection.execute(select(func.pg_catalog.set_config(f"enable_{way}", "off", true())))
            plan = _plan(connection, statement)
            savepoint.rollback()  # resets the settings
        return plan


def _plan(connection: Connection, statement: Select[Any]) -> QueryPlan:
    (found,) = explain(connection, "EXPLAIN (FORMAT JSON)", statement).scalar_one()
    nodes = list(_nodes(found["Plan"]))
    names = {node["Index Name"] for node in nodes if "Index Name" in node}
    return QueryPlan(
        indexes=frozenset(names | partitioned_indexes(connection, names)),
        sorted=sum(node["Plan Rows"] for node in nodes if "Sort" in node["Node Type"]),
    )


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


# -- streams the result of one statement from PostgreSQL row by row, through psycopg's wrapper of libpq ---------------
#
# Psycopg's cursors either read all rows at once, or do not report how many rows a statement without a result has
# changed.

_COPY = "COPY FROM STDIN and COPY TO STDOUT need a client that sends or receives the rows: use a SELECT or an INSERT"
_BYTES = 17
_READ: Mapping[int, Callable[[str], Any]] = {
    16: lambda text: text == "t",
    **dict.fromkeys((20, 21, 23, 26), int),
    **dict.fromkeys((700, 701), float),
}
"""Conversions by type oid; values of other types keep the server's text."""


def _answer(results: Iterator[Any], encoding: str, type_name: Callable[[int], str]) -> StatementResult:
    first = next(results)
    columns = [(first.fname(n).decode(encoding), first.ftype(n)) for n in range(first.nfields)]
    if not columns:
        for _ in results:
            pass
        return StatementResult(None, (), first.command_tuples or 0)
    return StatementResult([(name, type_name(code)) for name, code in columns], _rows(first, results, encoding), 0)


def _rows(first: Any, results: Iterator[Any], encoding: str) -> Iterator[list[Any]]:
    from psycopg.pq import Escaping  # noqa: PLC0415

    def value(code: int, sent: bytes | None) -> Any:
        if sent is None:
            return None
        if code == _BYTES:
            return bytes(Escaping().unescape_bytea(sent))
        return _READ.get(code, str)(sent.decode(encoding, "replace"))

    codes = [first.ftype(n) for n in range(first.nfields)]
    for result in chain((first,), results):
        for row in range(result.ntuples):
            yield [value(code, result.get_value(row, n)) for n, code in enumerate(codes)]


def _results(driver: Any) -> Iterator[Any]:
    """Yield a result for each row, and one for the end."""
    from psycopg import NotSupportedError  # noqa: PLC0415
    from psycopg.errors import error_from_result  # noqa: PLC0415
    from psycopg.pq import ExecStatus  # noqa: PLC0415

    pgconn = driver.pgconn
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        while (result := _next(pgconn, selector)) is not None:
            if result.status in (ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH):
                raise NotSupportedError(_COPY)
            if result.status in (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE):
                raise error_from_result(result, driver.info.encoding)
            yield result


def _next(pgconn: Any, selector: selectors.BaseSelector) -> Any:
    """Return the next result.  ``get_result`` alone would block all threads."""
    while (sends := pgconn.flush()) or pgconn.is_busy():
        wanted = selectors.EVENT_READ | selectors.EVENT_WRITE if sends else selectors.EVENT_READ
        selector.modify(pgconn.socket, wanted)
        selector.select()
        pgconn.consume_input()
    return pgconn.get_result()


# -- the errors and timeouts of drivers, and of the server ------------------------------------------------------------

# admin shutdown, crash shutdown, cannot connect now, idle session timeout, read-only (such as a demoted primary)
_OUTAGES = frozenset({"57P01", "57P02", "57P03", "57P05", "25006"})
# connection exceptions, insufficient resources (a full disk, too many connections), system errors
_OUTAGE_CLASSES = ("08", "53", "58")
# and transaction state, authorization, unknown database, rollback (a deadlock), limits, state of an object (a lock),
# intervention (a statement timeout), internal errors
_TEMPORARY_CLASSES = (*_OUTAGE_CLASSES, "25", "28", "3D", "40", "54", "55", "57", "XX")
# idle-in-transaction and transaction timeouts, which close the connection as well
_TOO_SLOW = frozenset({"25P03", "25P04"})

_OF_LIBPQ = ("psycopg", "psycopg_async", "psycopg2", "psycopg2cffi")
_LIMITS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_LIMITS_OF_ASYNCPG = {"timeout": 10, "command_timeout": 60}
_UNSET = (None, "0")
_UNKNOWN = object()
_FOREVER = ("0", "0s")


class PsycopgConnections(Connections):
    """The common base for PostgreSQL and CockroachDB, whose drivers are the same."""

    snapshots_conflict = True
    # SQLSTATEs, which each driver keeps in its own place

    transient_errors = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock not available
    outage_errors = _OUTAGES
    duplicate_errors = ("23505",)
    reference_errors = ("23001", "23503")
    denied_errors = ("42501",)
    read_only_errors = ("25006",)

    def error_code(self, error: DBAPIError) -> Any:
        for name in ("sqlstate", "pgcode"):  # psycopg and asyncpg; psycopg2
            if found := getattr(error.orig, name, None):
                return found
        fields = first_argument(error)  # pg8000: those of the server's message
        return fields.get("C") if isinstance(fields, dict) else None

    def has_lost(self, error: DBAPIError) -> bool:
        code = self.error_code(error)
        if error.connection_invalidated:
            return code not in _TOO_SLOW
        # without a code, the client could not connect
        if code is None:
            return isinstance(error, OperationalError) or comes_from_network(error)
        return code in self.outage_errors or code.startswith(_OUTAGE_CLASSES)

    def is_temporary(self, error: DBAPIError) -> bool:
        code = self.error_code(error)
        if code is None:
            return super().is_temporary(error)
        return self.is_outage(error) or code.startswith(_TEMPORARY_CLASSES)

    ends_with_error = True
    short_lock_wait = "SET lock_timeout = '1s'"

    # SQL tasks, with psycopg

    request_drivers: ClassVar[Mapping[str, Mapping[str, Any]] | None] = {"psycopg": {}}

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        setting = func.pg_catalog.set_config("statement_timeout", f"{milliseconds(timeout)}ms", True)
        connection.execute(select(setting))

    @contextmanager
    def answer(self, connection: Connection, request: str) -> Iterator[StatementResult]:
        from psycopg.pq import TransactionStatus  # noqa: PLC0415  # a user of PostgreSQL may have another driver

        driver: Any = connection.connection.driver_connection
        try:
            with wrapping(connection.dialect, driver, request):
                # the extended protocol rejects more than one statement
                driver.pgconn.send_query_params(request.encode(driver.info.encoding), None)
                driver.pgconn.set_single_row_mode()
                yield _answer(_results(driver), driver.info.encoding, self.type_name)
        finally:
            if driver.pgconn.transaction_status in (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN):
                connection.invalidate()  # the connection does not accept a ROLLBACK

    def type_name(self, code: Any) -> str:
        try:
            from psycopg import adapters  # noqa: PLC0415  # a user of PostgreSQL may have another driver
        except ImportError:
            return str(code)
        known = adapters.types.get(code)
        return str(code) if known is None else known.name

    # drivers that use libpq, which environment variables can also configure, asyncpg and pg8000

    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = {
        **dict.fromkeys(_OF_LIBPQ, ("connect_timeout",)),
        "asyncpg": ("timeout",),
        "pg8000": ("timeout",),
    }

    def connect_limits(self, driver: str, within: timedelta) -> Mapping[str, int]:
        if driver in _OF_LIBPQ and "PGCONNECT_TIMEOUT" in os.environ:
            return {}
        return super().connect_limits(driver, within)

    def driver_advice(self, connection: Any) -> str | None:
        if getattr(getattr(connection, "_config", None), "command_timeout", _UNKNOWN) is None:  # asyncpg
            return f"create_async_engine(..., connect_args={_LIMITS_OF_ASYNCPG}), or longer if a statement takes longer"
        given = _parameters(connection)
        if given is None or all(given.get(name) not in _UNSET for name in ("keepalives_idle", "tcp_user_timeout")):
            return None
        return f"create_engine(..., connect_args={_LIMITS})"

    def lift_connect_limits(self, connection: Any, limits: Collection[str]) -> None:
        if "timeout" in limits and hasattr(connection, "_usock"):  # pg8000's socket keeps it
            connection._usock.settimeout(None)

    def descriptor(self, connection: Any) -> int | None:
        own = getattr(connection, "_usock", None)  # pg8000
        if own is not None:
            return int(own.fileno())
        transport = getattr(connection, "_transport", None)  # asyncpg
        return super().descriptor(connection) if transport is None else socket_of(transport)

    def server_advice(self, connection: Connection) -> Iterator[tuple[str, str]]:
        if (
            connection.scalar(select(func.pg_catalog.current_setting("idle_in_transaction_session_timeout")))
            in _FOREVER
        ):
            message = (
                "idle_in_transaction_session_timeout is not set: a client that disappears during a transaction keeps"
                " its locks until TCP closes the connection, after two hours by default"
            )
            fix = (
                "ALTER ROLE CURRENT_USER SET idle_in_transaction_session_timeout = '5min', or longer if a handler"
                " keeps its transaction idle for longer"
            )
            yield message, fix


def _parameters(connection: Any) -> Mapping[str, Any] | None:
    """Return the parameters of libpq that were given; ``None`` if the driver does not use it."""
    info: Any = getattr(connection, "info", None)
    if not hasattr(info, "get_parameters"):
        return getattr(info, "dsn_parameters", None)  # psycopg2
    given: Mapping[str, Any] = info.get_parameters()
    return given


# -- NOTIFY, and LISTEN with the drivers that can wait for notifications ----------------------------------------------

CHANNEL = "sqlqueue"
"""One channel for all queues: a notification's payload is the name of its queue, and of a process that needs none."""
_ORIGIN = uuid4().hex
"""Names this process, together with its number: forked processes have the same identifier."""

LISTEN = f"LISTEN {CHANNEL}"


def _names(payloads: Iterable[str]) -> Collection[str]:
    """Return the names in the payloads of notifications that this process needs."""
    mine = f"{_ORIGIN}-{os.getpid()}"
    parts = (payload.partition("\n") for payload in payloads)
    return {name for name, _, process in parts if process != mine}


class PsycopgListener(Listener):
    """Listens with psycopg, whose connections can wait for notifications."""

    def listen(self, connection: Any) -> None:
        connection.autocommit = True
        connection.execute(LISTEN)

    def news(self, connection: Any, seconds: float) -> Collection[str]:
        return _names(note.payload for note in connection.notifies(timeout=seconds, stop_after=1))

    async def listen_async(self, connection: Any) -> None:
        await connection.set_autocommit(True)
        await connection.execute(LISTEN)

    async def news_async(self, connection: Any, seconds: float) -> Collection[str]:
        return _names([note.payload async for note in connection.notifies(timeout=seconds, stop_after=1)])


class Psycopg2Listener(Listener):
    """Listens with psycopg2, whose connections collect notifications when they are polled."""

    def listen(self, connection: Any) -> None:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(LISTEN)

    def news(self, connection: Any, seconds: float) -> Collection[str]:
        with DefaultSelector() as arrival:
            arrival.register(connection, EVENT_READ)
            connection.poll()  # what was received together with the response to a statement
            if not connection.notifies and arrival.select(seconds):
                connection.poll()
        names = _names(note.payload for note in connection.notifies)
        connection.notifies.clear()
        return names


class AsyncpgListener(Listener):
    """Listens with asyncpg, which calls a function with each notification."""

    def __init__(self) -> None:
        self._payloads: asyncio.Queue[str] = asyncio.Queue()

    async def listen_async(self, connection: Any) -> None:
        await connection.add_listener(CHANNEL, self._notified)
        await connection.execute(LISTEN)  # again: the function above sends nothing if it is listening already

    async def news_async(self, connection: Any, seconds: float) -> Collection[str]:
        payloads = set[str]()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                payloads.add(await self._payloads.get())
        while not self._payloads.empty():
            payloads.add(self._payloads.get_nowait())
        if connection.is_closed():
            await connection.execute(LISTEN)  # raises the driver's error
        return _names(payloads)

    def _notified(self, _connection: object, _process: int, _channel: str, payload: str) -> None:
        self._payloads.put_nowait(payload)


class PostgreSQLConnections(PsycopgConnections):
    """Adds NOTIFY, which the server delivers at the commit, and only once for repeated identical notifications."""

    def interruption(self, connection: Connection) -> Interrupt:
        # by the process id of the server process
        process = connection.scalar(select(func.pg_catalog.pg_backend_pid()))

        def interrupt(by_force: bool) -> None:
            end = func.pg_catalog.pg_terminate_backend if by_force else func.pg_catalog.pg_cancel_backend
            with connection.engine.connect() as other:
                other.execute(select(end(process)))

        return interrupt

    listeners: ClassVar[Mapping[str, type[Listener]]] = {
        **dict.fromkeys(PSYCOPG, PsycopgListener),
        "psycopg2": Psycopg2Listener,
        "asyncpg": AsyncpgListener,
    }

    @contextmanager
    def alone(self, connection: Connection) -> Iterator[None]:
        # psycopg waits for the response to each BEGIN and COMMIT
        pooled: Any = connection.connection.dbapi_connection
        is_first = connection.dialect.driver in PSYCOPG and _sends_begin_next(connection.connection.driver_connection)
        if not is_first or self.level(connection) != READ_COMMITTED:
            yield
            return
        try:
            pooled.autocommit = True
            yield
        finally:
            try:
                pooled.autocommit = False
            except BaseException as error:  # the connection is lost, or a coroutine was cancelled
                connection.invalidate()
                if not isinstance(error, Exception):
                    raise

    def notify(self, connection: Connection, name: str, *, elsewhere: bool = False) -> None:
        driver: Any = connection.connection.driver_connection
        payload = f"{name}\n{_ORIGIN}-{os.getpid()}" if elsewhere else name
        if connection.dialect.driver in PSYCOPG and _sends_begin_next(driver):
            _begin_and_notify(connection, driver, payload)
        else:
            connection.execute(select(func.pg_catalog.pg_notify(CHANNEL, payload)))


def _sends_begin_next(driver: Any) -> bool:
    """Return whether psycopg would send a BEGIN before the next statement, with no option but an isolation level."""
    from psycopg.pq import TransactionStatus  # noqa: PLC0415  # a user of PostgreSQL may have another driver

    if driver.autocommit or driver.info.transaction_status != TransactionStatus.IDLE:
        return False
    return driver.read_only is driver.deferrable is None


def _begin_and_notify(connection: Connection, driver: Any, payload: str) -> None:
    """Begin the transaction and notify in one round trip; psycopg waits for the response to each BEGIN."""
    from psycopg.errors import error_from_result  # noqa: PLC0415
    from psycopg.generators import execute  # noqa: PLC0415
    from psycopg.pq import ExecStatus  # noqa: PLC0415
    from psycopg.sql import SQL  # noqa: PLC0415

    level = driver.isolation_level
    begin = "BEGIN" if level is None else f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}"
    request = begin.encode() + SQL("; SELECT pg_catalog.pg_notify({}, {})").format(CHANNEL, payload).as_bytes(driver)
    try:
        with wrapping(connection.dialect, driver):
            driver.pgconn.send_query(request)
            answer = driver.wait(execute(driver.pgconn))
            if connection.dialect.is_async:
                from sqlalchemy.util import await_only  # noqa: PLC0415

                answer = await_only(answer)
            for result in answer:
                if result.status == ExecStatus.FATAL_ERROR:
                    raise error_from_result(result, driver.info.encoding)
    except DBAPIError as error:
        if error.connection_invalidated:
            connection.invalidate(error)  # a rollback would fail
        raise


# -- PostgreSQL's parts -----------------------------------------------------------------------------------------------


class PostgreSQL(Adapter):
    """PostgreSQL 12 and newer."""

    product = Product(dialect="postgresql", name="PostgreSQL", minimum=(12,), needed="AS MATERIALIZED")
    parts = (PostgreSQLTypes, PostgreSQLRows, PostgreSQLConnections, PostgreSQLInspection)
