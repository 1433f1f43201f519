"""SQL Server 2016 and newer.  This project has never run it on a real server: see the README."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    BooleanClauseList,
    ColumnElement,
    Connection,
    Delete,
    Integer,
    Select,
    String,
    Table,
    Unicode,
    UniqueConstraint,
    Update,
    and_,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
)
from sqlalchemy.dialects import mssql
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedColumn, ReflectedIndex
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql import operators
from sqlalchemy.sql.util import ClauseAdapter
from sqlalchemy.types import TypeEngine

from .._support.private import criteria_of, hints_of, without_criteria
from ..queue.spec import Criterion, Finding, Identity, QueueSpec, Severity
from ..sql import Assignment, KeyText, Pick, UTCDateTime
from .base import Adapter
from .connections import FORMER, READ_COMMITTED, Connections, first_argument
from .inspection import Inspection, Types, catalog, read_only
from .naming import Product, live_name, plain
from .statements import MANY, ByKey, ClaimRequest, Rows, names_of

# -- selects rows by key within the limit of 2,100 parameters ---------------------------------------------------------

_PREPARER = mssql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
_QUOTE = _PREPARER.quote
_WANTED = "sqlqueue_wanted"


class OneOf(BooleanClauseList):
    """The criterion of rows whose columns have the values of one of several rows, each given as equalities.

    Between parameters, which may be equal, an OR is no list of keys to seek: SQL Server would read, and lock, all rows
    with the first column of one of them (https://dba.stackexchange.com/questions/45107).  Of a table of values, it
    looks up each row: a semijoin becomes a join with its distinct rows
    (https://learn.microsoft.com/en-us/archive/blogs/craigfr/semi-join-transformation).
    """

    inherit_cache = True

    @classmethod
    def of(cls, rows: Sequence[ColumnElement[bool]]) -> ColumnElement[bool]:
        """Return the criterion for ``rows``, each a conjunction of equalities with the same columns."""
        return rows[0] if len(rows) == 1 else cls._construct_raw(operators.or_, rows)

    @property
    def _flattened_operator_clauses(self) -> tuple[ColumnElement[Any], ...]:
        return (self,)  # within an OR as well


@compiles(OneOf, "mssql")
def _compile_as_values(one_of: OneOf, compiler: Any, **kw: Any) -> str:
    first: Any = one_of.clauses[0]
    columns = [equality.left for equality in first.clauses]
    # a parameter in a table of values may have the database's collation, which must not conflict with the column's
    collations = [collation_of(column.type, compiler.dialect) for column in columns]
    suffixes = [f" COLLATE {collation}" if collation else "" for collation in collations]

    def values(row: Any) -> str:
        pairs = zip(row.clauses, suffixes, strict=True)
        return ", ".join(f"{compiler.process(equality.right, **kw)}{suffix}" for equality, suffix in pairs)

    rows = ", ".join(f"({values(row)})" for row in one_of.clauses)
    names = ", ".join(f"value_{n}" for n, _ in enumerate(columns, 1))
    terms = (f"{_WANTED}.value_{n} = {compiler.process(column, **kw)}" for n, column in enumerate(columns, 1))
    return f"EXISTS (SELECT 1 FROM (VALUES {rows}) AS {_WANTED} ({names}) WHERE {' AND '.join(terms)})"


def collation_of(kind: TypeEngine[Any], dialect: Dialect) -> str | None:
    """Return the collation that the model declares for columns of this type, if any."""
    stored: Any = kind.dialect_impl(dialect)
    return getattr(stored, "collation", None)


class SeekingUpdate(Update):
    """An UPDATE with its hints in a FROM clause, since index hints after the table are an error (1069)."""

    inherit_cache = True


class SeekingDelete(Delete):
    """A DELETE with its hints in a FROM clause."""

    inherit_cache = True


@compiles(SeekingUpdate, "mssql")
@compiles(SeekingDelete, "mssql")
def _compile_with_from(statement: Any, compiler: Any, **kw: Any) -> str:
    found: Select[Any] = select(literal_column("1")).select_from(statement.table).where(*criteria_of(statement))
    for hints in hints_of(statement):
        found = found.with_hint(statement.table, hints)
    visit = compiler.visit_update if statement.is_update else compiler.visit_delete
    text = visit(without_criteria(statement), **kw)
    compiler.stack.append({"correlate_froms": set(), "asfrom_froms": set(), "selectable": statement})
    rows = compiler.process(found, **kw).removeprefix("SELECT 1 ")
    compiler.stack.pop()
    return f"{text} {rows}"


def seek_by_key(table: Table) -> str:
    """Return the hints with which a statement seeks rows through the primary key.

    FORCESEEK alone allows every index whose conditions the statement implies, and would lock all of its ready entries
    instead of the named rows: https://learn.microsoft.com/en-us/sql/t-sql/queries/hints-transact-sql-table
    """
    index = index_of_key(table)
    return "FORCESEEK" if index is None else f"FORCESEEK, INDEX({index})"


def index_of_key(table: Table) -> str | None:
    """Return the index of the primary key, as a hint names it.

    1 is the clustered index, which the primary key is unless the model declares otherwise.  The index of another
    primary key has its name; without one, it cannot be named.
    """
    key = table.primary_key
    others = (*table.indexes, *(each for each in table.constraints if isinstance(each, UniqueConstraint)))
    if _clusters(key) is not False and not any(map(_clusters, others)):
        return "1"
    return _PREPARER.format_constraint(key) if key.name else None


def _clusters(index: Any) -> bool | None:
    """Return whether the model declares the index as clustered, if it does say so."""
    clusters: bool | None = index.dialect_options["mssql"]["clustered"]
    return clusters


def _seek(pick: Pick) -> str:
    return seek_by_key(pick.spec.table) if pick.index is None else f"FORCESEEK, INDEX({_QUOTE(pick.index)})"


def _with_row(spec: QueueSpec, columns: Sequence[ColumnElement[Any]]) -> Sequence[ColumnElement[Any]]:
    """Return the columns together with one that no index contains, so that the row itself is read and locked.

    A statement covered by an index locks the index's keys instead of the rows: a transaction that reaches a row through
    another index would not see the lock.  See the remarks on table hints.
    """
    indexed = {column for index in spec.table.indexes for column in index.columns} | set(spec.primary_key)
    beyond = [column for column in spec.columns.values() if column not in indexed]
    return columns if set(columns) & set(beyond) else (*columns, *beyond[:1])


# -- times without a zone, and Unicode keys compared character by character -------------------------------------------

_EXACT = "Latin1_General_100_BIN2"


class SQLServerTypes(Types):
    """Unicode types, independent of the database's collation."""

    timestamp = UTCDateTime.wrapping(mssql.DATETIME2, precision=6)
    long_text = mssql.NVARCHAR()

    def key(self, length: int) -> TypeEngine[Any] | None:
        return KeyText.wrapping(mssql.NVARCHAR, length=length, collation=_EXACT)

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.sysutcdatetime()
        if seconds is None:
            return now
        # DATEADD takes an int, whose seconds cover 68 years only: whole minutes first, then the remaining microseconds
        minutes = func.floor(seconds.op("/")(literal_column("60")))
        micros = (seconds - minutes * literal_column("60")) * literal_column("1000000")
        return func.dateadd(text("microsecond"), micros, func.dateadd(text("minute"), minutes, now))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return func.datediff_big(text("microsecond"), earlier, later, type_=BigInteger())

    def beginning(self, text: ColumnElement[str], length: int) -> ColumnElement[str]:
        return func.substring(text, 1, length, type_=text.type)


# -- claims in one statement ------------------------------------------------------------------------------------------

_FEW = 25
"""The number of rows up to which a plan looks up each row as it reads the index.  For more rows it may read ahead, and
keep the locks: https://learn.microsoft.com/en-us/archive/blogs/craigfr/read-committed-and-bookmark-lookup"""


class ClaimingUpdate(Update):
    """An UPDATE on one processor: parallel scans would read, and lock, further entries."""

    inherit_cache = True


@compiles(ClaimingUpdate, "mssql")
def _compile_on_one_processor(update: ClaimingUpdate, compiler: Any, **kw: Any) -> str:
    return f"{compiler.visit_update(update, **kw)} OPTION (MAXDOP 1)"


def _null_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value


class SQLServerRows(Rows):
    """READPAST skips locked rows, UPDLOCK keeps locks until the transaction ends, ROWLOCK prevents page locks, and
    FORCESEEK prevents scanning and sorting a small table, which would lock all of it.  Locks may be kept on rows that
    turn out not to match, and on index entries whose rows READPAST skips. Therefore, rows are first read without locks,
    and then locked by primary key, except by the claims that :meth:`lock_and_write` makes in one statement.
    https://learn.microsoft.com/en-us/sql/t-sql/queries/hints-transact-sql-table
    """

    # the engine has no tuple comparison: several columns are compared with a table of values
    seeks_tuples = False
    names_rows = False
    batch = 400
    pads_lists = True
    locks_after_sorting = False
    # NOCOUNT suppresses the count, and the statements of a trigger add their own
    reports_counts = False
    # a scan waits for rows that others have locked, and about 5,000 locks of one statement escalate to a table lock
    sweeps_by_key = True
    of_found = "leading"
    # https://learn.microsoft.com/en-us/sql/t-sql/language-elements/string-comparison-assignment
    drops_blanks = True

    def most(self, spec: QueueSpec) -> int:
        # at most 2,100 parameters; a statement may contain each key three times: all keys, keys with attempt and
        # token, and keys that are not locked
        return max(self.batch * 5 // (3 * len(spec.primary_key) + 2), 1)

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(keys) > self.most(spec):
            types = [column.type for column in spec.primary_key]
            keys = [
                tuple(literal(part, kind, literal_execute=True) for part, kind in zip(key, types, strict=True))
                for key in keys
            ]
        elif len(spec.primary_key) == 1:
            return super().key_in(spec, keys)
        rows = [spec.key(key) for key in self.padded(spec, keys)]
        return OneOf.of(rows) if len(spec.primary_key) > 1 else or_(*rows)

    def key_in_parameters(self, spec: QueueSpec, count: int) -> Criterion:
        if count == MANY:
            return super().key_in_parameters(spec, count)
        return OneOf.of([spec.key(names_of(spec, number)) for number in range(count)])

    def rows_in(
        self, spec: QueueSpec, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None
    ) -> Criterion:
        pairs = (zip(columns, row, strict=True) for row in self.padded(spec, rows or ()))
        found = [and_(*(column == value for column, value in each)) for each in pairs]
        # the keys are always given as well, and those of a single column are sought already
        are_composite = sum(getattr(column, "primary_key", False) for column in columns) > 1
        return OneOf.of(found) if are_composite else or_(*found)

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        # a scan would wait for rows that others have locked
        if isinstance(statement, Select):
            return statement.with_hint(spec.table, f"WITH ({seek_by_key(spec.table)})")
        return self.writing(spec.table, statement)

    def writing(self, table: Table, statement: ByKey) -> ByKey:
        hinted = statement.with_hint(f"WITH (ROWLOCK, {seek_by_key(table)})")
        hinted.__class__ = SeekingUpdate if isinstance(statement, Update) else SeekingDelete
        return hinted

    def select_locking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        picked = pick.select(*_with_row(pick.spec, columns)).limit(pick.limit)
        return picked.with_hint(pick.spec.table, f"WITH (ROWLOCK, UPDLOCK, READPAST, {_seek(pick)})")

    def use_index(self, pick: Pick, reading: Select[Any]) -> Select[Any]:
        return reading.with_hint(pick.spec.table, f"WITH ({_seek(pick)})")

    def is_served(self, pick: Pick) -> bool:
        return pick.index is None

    def select_by_key(self, spec: QueueSpec, *criteria: Criterion, waits: bool) -> Select[Any]:
        matching = select(*_with_row(spec, spec.primary_key)).where(*criteria)
        skips = "" if waits else "READPAST, "
        return matching.with_hint(spec.table, f"WITH (ROWLOCK, UPDLOCK, {skips}{seek_by_key(spec.table)})")

    def locking(self, table: Table, reading: Select[Any], *, skips: bool, shared: bool = False) -> Select[Any]:
        kind, skip = "HOLDLOCK" if shared else "UPDLOCK", ", READPAST" if skips else ""
        ordered = reading if skips else reading.order_by(*table.primary_key)
        return ordered.with_hint(table, f"WITH (ROWLOCK, {kind}{skip}, {seek_by_key(table)})")

    def supports_returning(self, spec: QueueSpec) -> bool:
        # OUTPUT fails on a table with triggers, which Table(implicit_returning=False) declares
        return spec.table.implicit_returning

    def select_instances(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        loading: Select[Any] = self.by_key(spec, super().select_instances(spec, count, latest=latest))
        return loading

    # Locks that are kept without a write cover exactly the rows that are returned: all are released, and those that are
    # returned locked again.  UPDLOCK may keep others until the transaction ends, but a rollback to a savepoint releases
    # later locks, "except for escalated and converted locks":
    # https://learn.microsoft.com/en-us/sql/t-sql/language-elements/rollback-transaction-transact-sql

    def lock_selected(self, session: Session, pick: Pick, *, locks_only: bool) -> list[Identity]:
        if not locks_only:
            return super().lock_selected(session, pick, locks_only=False)
        with session.connection(pick.spec.bind_arguments).begin_nested() as savepoint:
            found = super().lock_selected(session, pick, locks_only=True)
            if len(found) == pick.limit:
                return found
            savepoint.rollback()
        return self.lock_keys(session, pick, found, len(found), locks_only=True)

    def lock_keys(
        self, session: Session, pick: Pick, keys: Sequence[Identity], room: int, *, locks_only: bool
    ) -> list[Identity]:
        if not locks_only:
            return super().lock_keys(session, pick, keys, room, locks_only=False)
        while keys:
            with session.connection(pick.spec.bind_arguments).begin_nested() as savepoint:
                found = super().lock_keys(session, pick, keys, room, locks_only=True)
                if len(found) == min(room, len(keys)):
                    return found
                savepoint.rollback()
            keys = found
        return []

    def lock_and_write(self, session: Session, request: ClaimRequest) -> list[Any]:
        """Update a common table expression whose rows are locked as they are found.

        This applies to a few rows that one index finds.  Others, and rows that are only locked, possibly for as long as
        their handler runs, are first read without locks, and then locked by primary key.
        """
        pick, spec = request.pick, request.pick.spec
        is_found_by_one_index = pick.exact and (pick.index is None or pick.limit <= _FEW)
        if not request.assignments or request.delete or not self.supports_returning(spec) or not is_found_by_one_index:
            return super().lock_and_write(session, request)
        taken = self.execute(session, spec, self.claiming(pick, request.assignments), request.parameters).all()
        count = len(pick.order)
        for n, term in reversed(list(enumerate(pick.order))):
            taken = sorted(taken, key=lambda row, n=n: _null_first(row[n]), reverse=term.descending)  # type: ignore[misc]
        keys = [tuple(row[count:]) for row in taken]
        return self.load(session, spec, keys, request.options, unreadable=request.unreadable)

    def claiming(self, pick: Pick, assignments: Sequence[Assignment]) -> Any:
        """Return the claim's statement.  It returns the values by which rows are ordered, then the primary key."""
        spec = pick.spec
        columns = {column.name: column for column in (*spec.primary_key, *spec.columns.values())}
        columns |= {term.column.name: term.column for term in pick.order}
        picked = self.select_locking(pick, *columns.values()).cte("picked")
        adapter = ClauseAdapter(picked)
        values = {picked.c[column.name]: adapter.traverse(value) for column, value in assignments}
        before = picked.alias("deleted").c
        order = [before[term.column.name] for term in pick.order]
        return ClaimingUpdate(picked).values(values).returning(*order, *(picked.c[c.name] for c in spec.primary_key))


# -- reads columns and indexes from the system views ------------------------------------------------------------------

_INDEXES = catalog(
    "sys",
    "indexes",
    *("object_id", "index_id", "is_disabled", "allow_row_locks", "is_primary_key", "type"),
    name=String,
)
_COLUMNS = catalog("sys", "columns", "object_id", name=String, collation_name=String)
_KEYS = catalog("sys", "index_columns", "object_id", "index_id", "column_id", "is_descending_key")
_TRIGGERS = catalog("sys", "triggers", "parent_id", name=String)


def name_of(connection: Connection, table: Table) -> ColumnElement[str]:
    """Return the table's quoted name as a string literal, for system functions."""
    return literal(live_name(connection, table), Unicode())


def is_of(connection: Connection, table: Table) -> ColumnElement[bool]:
    """Return the criterion of the table's indexes."""
    return _INDEXES.c.object_id == func.object_id(name_of(connection, table))


def collations_of(connection: Connection, table: Table) -> Mapping[str, str | None]:
    """Return the collations of the columns of ``table``, by name."""
    mine = _COLUMNS.c.object_id == func.object_id(name_of(connection, table))
    found = select(_COLUMNS.c.name, _COLUMNS.c.collation_name).where(mine)
    return {each[0]: each[1] for each in connection.execute(found)}


# -- checks a table's settings, its indexes, and the procedures and triggers that refer to it -------------------------

_READERS = ("View", "ScalarFunction", "InlineFunction", "TableFunction")


def findings_of_table(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield the problems of a queue's existing table."""
    has_ansi_nulls = func.objectproperty(func.object_id(name_of(connection, spec.table)), "IsAnsiNullsOn")
    if connection.scalar(select(has_ansi_nulls)) == 0:  # NULL where the property is unknown
        message = (
            f"{spec.table.fullname} was created with ANSI_NULLS off, which filtered indexes do not allow: creating"
            " them fails (error 1935)"
        )
        fix = "copy its rows into a table that is created with SET ANSI_NULLS ON"
        yield Finding.of(spec, Severity.WARNING, "ansi-nulls", message, fix)
    if modules := _unsuited_modules(connection, spec):
        message = (
            f"{', '.join(modules)} had QUOTED_IDENTIFIER or ANSI_NULLS off when created: what they write to"
            f" {spec.table.fullname} fails (error 1934) because of its filtered indexes"
        )
        fix = "SET QUOTED_IDENTIFIER ON, SET ANSI_NULLS ON, and then ALTER each with the definition that it has"
        yield Finding.of(spec, Severity.WARNING, "set-options", message, fix)
    name = live_name(connection, spec.table)
    own = {index.name for index in spec.table.indexes}
    without = select(_INDEXES.c.name, _INDEXES.c.is_primary_key).where(_INDEXES.c.allow_row_locks == 0)
    for index, is_key in connection.execute(without.where(is_of(connection, spec.table)).order_by(_INDEXES.c.name)):
        if not is_key and index not in own:
            continue
        message = (
            f"the index {index} of {spec.table.fullname} has ALLOW_ROW_LOCKS off: claims and writes lock whole pages"
            " of it, and wait for each other instead of skipping rows, so leases expire, and a task may run twice"
        )
        fix = f"ALTER INDEX {plain(connection.dialect, str(index))} ON {name} SET (ALLOW_ROW_LOCKS = ON)"
        yield Finding.of(spec, Severity.ERROR, "no-row-locks", message, fix)
    if _sets_identities(spec) and not connection.scalar(select(may(connection, spec, "ALTER"))):
        key = getattr(spec.table.autoincrement_column, "name", None)
        message = (
            f"this account lacks ALTER on {spec.table.fullname}, without which declare_schedules() cannot insert"
            f" tasks whose {key} it is given (SET IDENTITY_INSERT)"
        )
        fix = (
            f"declare {key} as mapped_column(primary_key=True, autoincrement=False), or derive the model from"
            f" UniqueMixin and declare tasks by unique_key, or GRANT ALTER ON {name} to this account"
        )
        yield Finding.of(spec, Severity.WARNING, "missing-privilege", message, fix)


def findings_of_key(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield the reasons why statements that find tasks by primary key fail."""
    is_key = (is_of(connection, spec.table), _INDEXES.c.is_primary_key == 1)
    live = connection.execute(select(_INDEXES.c.type, _INDEXES.c.name).where(*is_key)).first()
    named = index_of_key(spec.table)
    if live is None and named is not None:
        number = 307 if named == "1" else 308
        message = (
            f"{spec.table.fullname} has no primary key: every statement that finds tasks by key fails (error {number})"
        )
        of = ", ".join(plain(connection.dialect, column.name) for column in spec.primary_key)
        key = "PRIMARY KEY CLUSTERED" if named == "1" else f"CONSTRAINT {named} PRIMARY KEY NONCLUSTERED"
        fix = f"ALTER TABLE {live_name(connection, spec.table)} ADD {key} ({of})"
        yield Finding.of(spec, Severity.ERROR, "key-index", message, fix)
    elif live is not None and named not in {plain(connection.dialect, live[1]), *(["1"] if live[0] == 1 else [])}:
        columns = ", ".join(repr(column.name) for column in spec.primary_key)
        key = f"PrimaryKeyConstraint({columns}, name={live[1]!r}, mssql_clustered={live[0] == 1})"
        fix = f"declare it in __table_args__ as {key}"
        if named is None:
            message = (
                f"the model does not name the primary key of {spec.table.fullname}, which it declares as not clustered:"
                " statements that lock tasks by key may read, and lock, others through another index"
            )
            yield Finding.of(spec, Severity.WARNING, "key-index", message, fix)
        else:
            what = "is not its clustered index" if named == "1" else f"is not the index {named}"
            numbers = "error 307 or 8622" if named == "1" else "error 308"
            message = (
                f"the primary key of {spec.table.fullname} {what}, as the model declares: every statement that"
                f" finds tasks by key fails ({numbers})"
            )
            yield Finding.of(spec, Severity.ERROR, "key-index", message, fix)
    yield from _findings_of_collations(connection, spec)


def _findings_of_collations(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield the columns of the primary key that are converted before they are compared, so that no index is used."""
    collations = collations_of(connection, spec.table)
    live = [(column, text) for column in spec.primary_key if (text := collations.get(column.name))]
    # of other collations, the server derives a range of the index from the wide text
    narrow = [each.name for each, text in live if text[:4] == "SQL_" and is_narrow(each.type, connection.dialect)]
    if narrow and connection.dialect.driver == "pymssql":
        message = (
            f"pymssql sends every text as NVARCHAR, and {', '.join(narrow)} in the primary key of"
            f" {spec.table.fullname} is VARCHAR with a collation of SQL Server's own: rows are not looked up by index,"
            " so statements fail (error 8622)"
        )
        fix = "use pyodbc or aioodbc, or make the column NVARCHAR, as Unicode declares it"
        yield Finding.of(spec, Severity.ERROR, "narrow-key", message, fix)
    if len(spec.primary_key) == 1 or not live:
        return  # a single column is compared with parameters, in its own collation
    default = connection.scalar(select(cast(func.databasepropertyex(func.db_name(), "Collation"), mssql.NVARCHAR(128))))
    for key, collation in live:
        expected = str(collation_of(key.type, connection.dialect) or default)
        if expected.lower() != collation.lower():
            message = (
                f"{spec.table.fullname}.{key.name} in the primary key has the collation {collation} instead of"
                f" {expected}: statements that find several tasks by key fail (error 468 or 8622)"
            )
            fix = f"declare it in the model, as String(..., collation={collation!r}), or alter the column"
            yield Finding.of(spec, Severity.ERROR, "key-collation", message, fix)


def is_narrow(kind: TypeEngine[Any], dialect: Dialect) -> bool:
    """Return whether a column of this type is VARCHAR, in a code page."""
    stored: Any = kind.dialect_impl(dialect)
    stored = getattr(stored, "impl_instance", stored)
    return isinstance(stored, String) and not isinstance(stored, Unicode)


def may(connection: Connection, spec: QueueSpec, privilege: str) -> Any:
    """Return the expression for whether this account has a privilege on the whole table."""
    return func.has_perms_by_name(name_of(connection, spec.table), "OBJECT", privilege)


def _unsuited_modules(connection: Connection, spec: QueueSpec) -> Sequence[str]:
    """Return the procedures and triggers that refer to the table, and were created with settings under which it cannot
    be written; those that this account can see."""
    # sys.sql_expression_dependencies is for owners of the database only, and this function for all
    schema = connection.schema_for_object(spec.table) or connection.dialect.default_schema_name or ""
    name = ".".join(plain(connection.dialect, part) for part in (schema, spec.table.name))
    referring = func.sys.dm_sql_referencing_entities(literal(name, Unicode()), "OBJECT").table_valued(
        "referencing_id", "referencing_class_desc", name="referring"
    )
    module = referring.c.referencing_id
    is_off = (func.objectproperty(module, f"ExecIs{each}On") == 0 for each in ("QuotedIdent", "AnsiNulls"))
    full_name = func.object_schema_name(module, type_=String) + "." + func.object_name(module, type_=String)
    found = select(full_name).where(
        referring.c.referencing_class_desc == "OBJECT_OR_COLUMN",
        or_(*is_off),
        # views and functions write nothing; of a property that does not apply, the answer is 0
        *(func.objectproperty(module, f"Is{kind}") == 0 for kind in _READERS),
    )
    return sorted(set(connection.scalars(found)))


def _sets_identities(spec: QueueSpec) -> bool:
    """Return whether declared schedules give their tasks keys that the server generates otherwise."""
    key = spec.table.autoincrement_column
    return "schedule" in spec.columns and "unique_key" not in spec.columns and key is not None


# -- checks the state and settings of the connected database, and the options of the session --------------------------

_DATABASES = catalog(
    "sys", "databases", name=String, is_read_committed_snapshot_on=Boolean, is_parameterization_forced=Boolean
)
_OPTIONS = {
    512: (
        Severity.ERROR,
        "NOCOUNT",
        "the server does not tell how many rows a statement has changed, so pauses, registrations of workers and"
        " changes of tasks fail",
    ),
    16384: (
        Severity.WARNING,
        "XACT_ABORT",
        "a duplicate ends the whole transaction instead of its statement, so enqueue(on_conflict=...) fails"
        " (error 3930)",
    ),
}
"""Options of sessions that are off by default, by their bits in @@OPTIONS.
https://learn.microsoft.com/en-us/sql/database-engine/configure-windows/configure-the-user-options-server-configuration-option"""


def findings_of_database(connection: Connection) -> Iterator[Finding]:
    """Yield the problems of the connected database and of this session."""
    # cast from sql_variant, which not every driver can read; an unknown property is NULL
    updateability = cast(func.databasepropertyex(func.db_name(), "Updateability"), mssql.NVARCHAR(128))
    optimized = cast(func.databasepropertyex(func.db_name(), "IsOptimizedLockingOn"), Integer)
    state = connection.execute(select(updateability, optimized, literal_column("@@OPTIONS", Integer))).one()
    if state[0] == "READ_ONLY":
        yield read_only("this database is read-only, as a secondary is", "connect to the primary")
    # by name: on Azure, db_id() differs from this view's id
    asked = select(_DATABASES).where(_DATABASES.c.name == func.db_name())
    for name, has_versions, is_forced in connection.execute(asked):
        if not has_versions:
            message = (
                "READ_COMMITTED_SNAPSHOT is off: reads wait for open claims, so claims hang, leases expire, and a task"
                " may run twice"
            )
            fix = f"ALTER DATABASE {_QUOTE(name)} SET READ_COMMITTED_SNAPSHOT ON, with no other connections open"
            yield Finding(severity=Severity.ERROR, code="no-row-versions", message=message, fix=fix)
        if is_forced:
            message = (
                "PARAMETERIZATION is FORCED: states become parameters, which no filtered index matches, so claims"
                " fail (error 8622) or are slow"
            )
            fix = f"ALTER DATABASE {_QUOTE(name)} SET PARAMETERIZATION SIMPLE"
            yield Finding(severity=Severity.WARNING, code="forced-parameters", message=message, fix=fix)
        if state[1]:
            message = (
                "optimized locking is on, and claims were never tested with it: a lock of the transaction, not one of"
                " each row, protects the rows that it has changed"
            )
            fix = f"nothing, or, where the server allows it, ALTER DATABASE {_QUOTE(name)} SET OPTIMIZED_LOCKING = OFF"
            yield Finding(severity=Severity.NOTE, code="optimized-locking", message=message, fix=fix)
    for bit, (severity, option, outcome) in _OPTIONS.items():
        if state[2] & bit:
            message = f"{option} is on when a session begins: {outcome}"
            fix = f"SET {option} OFF on each new connection, or take {bit} out of sp_configure 'user options'"
            yield Finding(severity=severity, code="session-options", message=message, fix=fix)


# -- checks the server's edition, the state of the database and the privileges of an account --------------------------

_ALWAYS_NEW = ("5", "8", "12")
"""Editions whose version number is meaningless: Azure SQL Database, Azure SQL Managed Instance, Fabric.
https://learn.microsoft.com/en-us/sql/t-sql/functions/serverproperty-transact-sql"""


class SQLServerInspection(Inspection):
    """Reads the system views: filtered indexes, disabled indexes and sort directions; checks a server, or an Azure SQL
    database."""

    partial_index = "mssql_where"
    reviving = "ALTER INDEX {index} ON {table} REBUILD"
    dropping_defaults: ClassVar[Mapping[str, Any]] = {"mssql_drop_default": True}

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        name = func.col_name(_KEYS.c.object_id, _KEYS.c.column_id, type_=String)
        same = (_KEYS.c.object_id == _INDEXES.c.object_id) & (_KEYS.c.index_id == _INDEXES.c.index_id)
        terms = select(_INDEXES.c.name, name).join_from(_INDEXES, _KEYS, same).where(is_of(connection, table))
        return {(index, each) for index, each in connection.execute(terms.where(_KEYS.c.is_descending_key == 1))}

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        disabled = select(_INDEXES.c.name).where(is_of(connection, table), _INDEXES.c.is_disabled == 1)
        return connection.scalars(disabled).all()

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str] | None:
        name = name_of(connection, table)
        found = connection.scalars(select(_TRIGGERS.c.name).where(_TRIGGERS.c.parent_id == func.object_id(name))).all()
        # an account without this privilege sees no triggers
        sees = select(func.has_perms_by_name(name, "OBJECT", "VIEW DEFINITION"))
        return found if found or connection.scalar(sees) else None

    def collations(self, connection: Connection, table: Table) -> Mapping[str, str | None]:
        return collations_of(connection, table)

    def same_moments(self, dialect: Dialect, declared: TypeEngine[Any], live: TypeEngine[Any]) -> bool:
        # SQLAlchemy does not reflect the precision
        unknown = isinstance(live, mssql.DATETIME2) and live.precision is None
        return unknown or super().same_moments(dialect, declared, live)

    def banner(self, connection: Connection) -> str:
        if (connection.dialect.server_version_info or ()) >= self.product.minimum:
            return ""
        return str(connection.scalar(select(cast(func.serverproperty("EngineEdition"), Integer))))

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        if banner not in _ALWAYS_NEW:
            super().judge(version, banner)

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        yield from findings_of_database(connection)

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        yield from findings_of_table(connection, spec)

    def key_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        yield from findings_of_key(connection, spec)

    def unindexed_reference(self, connection: Connection) -> str | None:
        return "makes the server read all of it, and wait for the rows that others have locked"

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # privileges on the whole table; those on single columns are not considered
        asked = ("SELECT", "INSERT", "UPDATE", "DELETE")
        granted = connection.execute(
            select(*(may(connection, spec, privilege).label(privilege) for privilege in asked))
        ).one()
        return [privilege for privilege, has in zip(asked, granted, strict=True) if not has]


# -- errors, transactions, and the timeouts of drivers ----------------------------------------------------------------

# https://learn.microsoft.com/en-us/sql/relational-databases/errors-events/database-engine-events-and-errors
_TRANSIENT = (
    # deadlock, lock timeout, no memory for locks; a snapshot's conflict with a write, and with a change of the table
    *(1205, 1222, 1204, 3960, 3961),
    # commits of memory-optimized tables that depend on, or conflict with, others
    *(41301, 41302, 41305, 41325, 41839),
)
_OUTAGES = (
    # SQLSTATE: cannot connect, not connected, refused, lost at commit, communication link failure
    *("08001", "08003", "08004", "08007", "08S01"),
    # database cannot be opened, not recovered yet, being recovered; not accessible as part of an availability group
    *(4060, 921, 922, 976, 983),
    # session killed; shutdown, paused, upgraded, too many connections
    *(596, 6005, 17142, 18401, 17809),
    # read-only (such as a secondary), log full, file group full
    *(3906, 9002, 1105),
    # Azure SQL: failover, too busy, not available, limit reached, not enough resources, too many operations
    # https://learn.microsoft.com/en-us/azure/azure-sql/database/troubleshoot-common-errors-issues
    *(40197, 40501, 40613, 10928, 10929, 10936, 40143, 40540, 49918, 49919, 49920),
    # Azure SQL: session ended by its age, locks, share of tempdb, of the log or of memory
    *(40549, 40550, 40551, 40552, 40553),
    # a replica that is still starting
    4221,
    # pymssql, with DB-Library's numbers: connection failed, read, write, no socket, unreachable, closed
    *(20002, 20004, 20006, 20008, 20009, 20017, 20047),
)
_TIMEOUTS = frozenset({"HYT00", 20003})
"""Timeouts of a login or a statement."""
_FIRST = re.compile(r"\((-?\d+)\) \(SQL[A-Za-z]+[)(]")
"""Matches 2627 in "[23000] ... (2627) (SQLExecDirectW); [01000] ... (3621)": the number follows the message's text."""
_FURTHER = re.compile(r"\((-?\d+)\)(?=; \[|$)")


def _numbers(error: DBAPIError) -> Iterator[int]:
    """Yield the server's numbers, which pyodbc appends to each message; numbers within a message do not count."""
    text = str(error.orig.args[-1]) if error.orig is not None and error.orig.args else ""
    *_, first = (None, *_FIRST.finditer(text))
    if first is not None:
        yield int(first[1])
        yield from map(int, _FURTHER.findall(text, first.end()))


_LONGER = ", or longer if a statement takes longer"
_REST = f"{_LONGER}; KeepAlive=10;KeepAliveInterval=3 in the connection string, as ODBC may still wait for the server"


class SQLServerConnections(Connections):
    """Codes of the server or the driver; READ COMMITTED, with locks or row versions; the login timeouts of ODBC and
    FreeTDS.

    pyodbc gives the server's number only in the text, at a fixed position.
    """

    transient_errors = _TRANSIENT
    outage_errors = _OUTAGES
    duplicate_errors = (2601, 2627)
    reference_errors = (547,)
    # denied on an object, a column, in general, on a server's or database's state; no access to a database
    denied_errors = (229, 230, 297, 300, 262, 916)
    lost_savepoint_errors = (3903, 6401)
    short_lock_wait = "SET LOCK_TIMEOUT 1000"
    harmless_levels = (READ_COMMITTED,)
    # error 650: READPAST works only at READ COMMITTED and REPEATABLE READ
    refused_levels = ("READ UNCOMMITTED", "SNAPSHOT", "SERIALIZABLE")
    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = {
        "pyodbc": ("timeout",),
        "aioodbc": ("timeout",),
        "pymssql": ("login_timeout",),
    }

    def has_lost(self, error: DBAPIError) -> bool:
        if not _TIMEOUTS.isdisjoint(self.error_codes(error)):
            # a login timeout is an outage; a statement timeout is not, although SQLAlchemy invalidates the connection
            return error.statement is None
        return super().has_lost(error)

    def error_code(self, error: DBAPIError) -> Any:
        code = first_argument(error)
        return code[0] if isinstance(code, tuple) else code  # pymssql: number and text

    def error_codes(self, error: DBAPIError) -> Collection[Any]:
        return (self.error_code(error), *_numbers(error))

    @contextmanager
    def tentative(self, session: Session) -> Iterator[None]:
        # a savepoint, although the server rolls back a failed statement alone: with XACT_ABORT on, which a server can
        # set for all sessions, a violated key ends the transaction, and later writes would be committed without the
        # earlier ones
        try:
            with session.begin_nested():
                yield
        except DBAPIError as error:
            reason = self.reason(error)
            raise reason from reason.orig

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        # the server's QUERY_GOVERNOR_COST_LIMIT limits estimates only; with a timeout, the driver cancels statements
        driver: Any = connection.connection.driver_connection
        connection.info.setdefault(FORMER, driver.timeout)
        driver.timeout = max(math.ceil(timeout.total_seconds()), 1)

    def lift_time_limit(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.timeout = connection.info.pop(FORMER)

    def driver_advice(self, connection: Any) -> str | None:
        """Return advice for statements only: ODBC's driver decides whether a statement ends in time, and may wait for
        the server."""
        if getattr(getattr(connection, "_conn", None), "query_timeout", None) == 0:  # pymssql
            limits = {"login_timeout": 10, "timeout": 60}
            return f"create_engine(..., connect_args={limits}){_LONGER}"
        if getattr(connection, "timeout", None) != 0:
            return None
        if inspect.iscoroutinefunction(connection.execute):  # aioodbc
            arguments = "connect_args={'after_created': limit}"
            return f"async def limit(connection): connection.timeout = 60; create_async_engine(..., {arguments}){_REST}"
        listener = "lambda connection, _: setattr(connection, 'timeout', 60)"
        return f"event.listen(engine, 'connect', {listener}){_REST}"


# -- SQL Server's parts -----------------------------------------------------------------------------------------------


class SQLServer(Adapter):
    """SQL Server 2016 and newer, and Azure SQL."""

    product = Product(
        dialect="mssql",
        name="SQL Server",
        minimum=(13,),
        needed="filtered indexes and DATETIME2 arithmetic as this library uses them",
    )
    parts = (SQLServerTypes, SQLServerRows, SQLServerConnections, SQLServerInspection)
