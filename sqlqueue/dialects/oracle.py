"""Oracle Database 12.2 and newer.  This project has never run it on a real server: see the README."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnClause,
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Integer,
    Select,
    String,
    Table,
    Text,
    Unicode,
    Uuid,
    and_,
    bindparam,
    extract,
    func,
    literal_column,
    outparam,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects import oracle
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import TypeEngine

from .._support.errors import ConfigurationError
from ..queue.spec import Criterion, Finding, Identity, QueueSpec, Severity
from ..sql import Assignment, KeyText, Pick, UTCDateTime, WrappedType
from .base import Adapter
from .connections import FORMER, Connections, Interrupt, Undo, first_argument, milliseconds
from .inspection import Inspection, LiveIndex, Term, Types, catalog, read_only
from .naming import Product, live_name
from .statements import ClaimRequest, Parameters, Rows, forget_unfinished, in_order

# -- times without a zone, and arithmetic on intervals by their parts -------------------------------------------------

_PARTS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}
"""The parts of an interval, in microseconds."""


class JSONText(WrappedType[Any]):
    """JSON stored as ASCII text."""

    impl = Text

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Return the JSON text to store for a value."""
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Return the value of stored JSON text."""
        return None if value is None else json.loads(value)


class OracleTypes(Types):
    """National character sets, and JSON as text."""

    timestamp = UTCDateTime.wrapping(oracle.TIMESTAMP)
    long_text = oracle.NCLOB()
    # SQLAlchemy supports JSON on Oracle since 2.1, and Oracle has it since 21c
    json = JSONText.wrapping(Text)

    def text(self, length: int) -> TypeEngine[Any] | None:
        return oracle.NVARCHAR2(length)

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.sys_extract_utc(text("SYSTIMESTAMP"))
        return now if seconds is None else now + func.numtodsinterval(seconds, text("'SECOND'"))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        # only the parts of an interval can be extracted; the seconds contain the fraction
        terms = (extract(part, later - earlier) * literal_column(str(factor)) for part, factor in _PARTS.items())
        return type_coerce(reduce(add, terms), BigInteger())


# -- the PL/SQL block of a claim --------------------------------------------------------------------------------------

_BLOCK = """\
DECLARE
  CURSOR sqlqueue_free IS {select};
  TYPE sqlqueue_rowids IS TABLE OF UROWID;
  sqlqueue_picked sqlqueue_rowids;
  sqlqueue_taken sqlqueue_rowids;
  sqlqueue_room PLS_INTEGER := {limit};
  sqlqueue_listed {text};
BEGIN
  OPEN sqlqueue_free;
  WHILE sqlqueue_room > 0 LOOP
    FETCH sqlqueue_free BULK COLLECT INTO sqlqueue_picked LIMIT sqlqueue_room;
    EXIT WHEN sqlqueue_picked.COUNT = 0;
    sqlqueue_taken := sqlqueue_rowids();
    FOR sqlqueue_i IN 1 .. sqlqueue_picked.COUNT LOOP
      FOR sqlqueue_still IN ({again}) LOOP
        sqlqueue_taken.EXTEND;
        sqlqueue_taken(sqlqueue_taken.COUNT) := sqlqueue_picked(sqlqueue_i);
        sqlqueue_listed := sqlqueue_listed || sqlqueue_picked(sqlqueue_i) || ',';
      END LOOP;
    END LOOP;
{write}    sqlqueue_room := sqlqueue_room - sqlqueue_taken.COUNT;
  END LOOP;
  CLOSE sqlqueue_free;
  {rowids} := sqlqueue_listed;
END;"""
"""The names have a prefix because in SQL within a block, a column is preferred to a variable of the same name ("PL/SQL
Language Reference", PL/SQL Name Resolution)."""

_RESERVED = frozenset(re.findall(r"sqlqueue_\w+", _BLOCK))
"""The names of the block, which no column of a queue may have."""

_UPDATE = """\
    FORALL sqlqueue_i IN 1 .. sqlqueue_taken.COUNT
      UPDATE {table} SET {assignments} WHERE ROWID = sqlqueue_taken(sqlqueue_i);
"""

_SHORT = 200
"""The number of rowids that fit into the driver's VARCHAR2 of 4,000; more are returned as a CLOB."""


def rowid_of(table: Table) -> ColumnClause[str]:
    """Return the ROWID pseudocolumn of ``table``."""
    rowid = literal_column("ROWID", oracle.ROWID())
    rowid.table = table
    return rowid


def _check_names(spec: QueueSpec) -> None:
    """Raise :class:`.ConfigurationError` for a column that SQL within the block would use instead of a variable."""
    for column in spec.table.columns:
        if column.name.lower() in _RESERVED:
            raise ConfigurationError(
                f"the column {column.name} of {spec.table.fullname} has the name of a variable in the block that claims"
                " tasks on Oracle Database: rename it in a migration, to a name without the prefix sqlqueue_",
                model=spec.entity,
            )


class ClaimBlock(Executable, ClauseElement):
    """The PL/SQL block around ``locking``, which selects rowids.

    Its only out parameter, ``rowids``, contains the rowids, each followed by a comma.
    """

    _traverse_internals = [  # noqa: RUF012
        ("locking", InternalTraversal.dp_clauseelement),
        ("again", InternalTraversal.dp_clauseelement),
        ("wanted", InternalTraversal.dp_clauseelement),
        ("long", InternalTraversal.dp_boolean),
        ("table", InternalTraversal.dp_clauseelement),
        ("columns", InternalTraversal.dp_clauseelement_list),
        ("values", InternalTraversal.dp_clauseelement_list),
    ]

    def __init__(self, locking: Select[Any], pick: Pick, assignments: Sequence[Assignment]) -> None:
        self.pick = pick
        self.assignments = assignments
        self.table = pick.spec.table
        rowid = rowid_of(self.table)
        self.locking = locking
        # reads the current version of a locked row, which may have changed since the cursor was opened
        mine = rowid == literal_column("sqlqueue_picked(sqlqueue_i)")
        self.again = select(rowid).where(mine, *pick.state, *pick.where)
        self.wanted = bindparam("sqlqueue_wanted", pick.limit, type_=Integer())
        self.long = pick.limit > _SHORT
        self.columns = [column for column, _ in assignments]
        self.values = [value for _, value in assignments]


@compiles(ClaimBlock, "oracle")
def _compile_block(block: ClaimBlock, compiler: Any, **kw: Any) -> str:
    return _BLOCK.format(
        select=compiler.process(block.locking, **kw),
        limit=compiler.process(block.wanted, **kw),
        text="CLOB" if block.long else "VARCHAR2(32767)",
        again=compiler.process(block.again, **kw),
        write=_write(block, compiler, **kw) if block.assignments else "",
        rowids=compiler.process(outparam("rowids", Text() if block.long else String(4000)), **kw),
    )


def _write(block: ClaimBlock, compiler: Any, **kw: Any) -> str:
    quote, table = compiler.preparer.quote, compiler.preparer.format_table(block.table)
    assignments = (f"{quote(column.name)} = {compiler.process(value, **kw)}" for column, value in block.assignments)
    return _UPDATE.format(table=table, assignments=", ".join(assignments))


# -- claims in one PL/SQL block ---------------------------------------------------------------------------------------

_QUOTE = oracle.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]


class OracleRows(Rows):
    """A claim is one PL/SQL block: a cursor FOR UPDATE SKIP LOCKED, from which only the needed rows are fetched.

    Such a cursor locks each row when it is fetched.  A driver fetches ahead, and would lock more rows than the claim
    returns (through SQLAlchemy's asyncio dialect, all of them); and a row limit cannot be combined with FOR UPDATE
    (ORA-02014).

    The cursor returns rows as they were when it was opened. Therefore, each row is read again after it is locked, and
    only rows that still match are taken; the next row is fetched in place of one that does not.
    """

    # a list has at most 1,000 expressions (ORA-01795)
    batch = 1_000
    pads_lists = True
    # the limit determines the type of the block's result
    names_exactly = True
    # the server generates keys only if the model declares how
    numbers_keys = False

    def select_locking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        return self.use_index(pick, pick.select(*columns).with_for_update(skip_locked=True))

    def prefer_index(self, spec: QueueSpec, index: str | None, reading: Select[Any]) -> Select[Any]:
        if index is None:
            return reading
        # without a hint, the optimizer plans for all rows, and may sort all due rows to return the first: it knows
        # neither how many a cursor fetches nor, before the fix of bug 22174392, what FETCH FIRST limits
        # (https://blogs.oracle.com/optimizer/fetch-first-rows-just-got-faster); a hint names a table without its schema
        # ("SQL Language Reference", Hints), and SQLAlchemy formats it
        hint = f"INDEX({_QUOTE(spec.table.name)} {_QUOTE(index)})".replace("%", "%%")
        return reading.with_hint(spec.table, hint, "oracle")

    def lock_and_write(self, session: Session, request: ClaimRequest) -> list[Any]:
        spec = request.pick.spec
        if not self.is_served(request.pick):
            return self.write_candidates(session, request)
        rowids = self._picked(session, request.pick, request.assignments, request.parameters)
        tasks: list[Any] = []
        for some in self.batches(spec, rowids):
            tasks += self._load_rows(session, request, some)
        if request.delete:
            self.delete(session, spec, [spec.identity_of(task) for task in tasks])
        return tasks

    def lock_selected(self, session: Session, pick: Pick, *, locks_only: bool) -> list[Identity]:
        rowids = self._picked(session, pick)
        return [key for some in self.batches(pick.spec, rowids) for key in self._keys_of(session, pick.spec, some)]

    def lock_keys(
        self, session: Session, pick: Pick, keys: Sequence[Identity], room: int, *, locks_only: bool
    ) -> list[Identity]:
        named = pick.named(self.key_in(pick.spec, keys), room)
        locked = set(self.lock_selected(session, named, locks_only=locks_only))
        return [key for key in keys if key in locked]

    def _keys_of(self, session: Session, spec: QueueSpec, rowids: Sequence[str]) -> list[Identity]:
        """Return the primary keys of these rows, in that order."""
        rowid = rowid_of(spec.table)
        named = self.one_of(spec, rowid, rowids)
        keys = select(rowid, *spec.primary_key).where(named)
        found: dict[str, Identity] = {row[0]: tuple(row[1:]) for row in self.execute(session, spec, keys)}
        return [found[each] for each in rowids]

    def _picked(
        self,
        session: Session,
        pick: Pick,
        assignments: Sequence[Assignment] = (),
        parameters: Parameters | None = None,
    ) -> list[str]:
        """Lock rows, and write ``assignments`` if there are any; return their rowids, in order."""
        block = pick.made.get((self, "block", assignments), lambda: self._block(pick, assignments))
        result = self.execute(session, pick.spec, block, parameters)
        return (result.out_parameters["rowids"] or "").split(",")[:-1]  # type: ignore[attr-defined]

    def _block(self, pick: Pick, assignments: Sequence[Assignment]) -> ClaimBlock:
        _check_names(pick.spec)
        return ClaimBlock(self.select_locking(pick, rowid_of(pick.spec.table)), pick, assignments)

    def _load_rows(self, session: Session, request: ClaimRequest, rowids: Sequence[str]) -> list[Any]:
        """Load the instances of these rows, in that order.  Rowids work for keys of any type and any number of
        columns."""
        spec = request.pick.spec
        rowid = rowid_of(spec.table)
        named = self.one_of(spec, rowid, rowids)
        try:
            rows = session.execute(
                select(spec.entity, rowid).where(named).options(*request.options),
                execution_options={"populate_existing": True},
                bind_arguments=spec.bind_arguments,
            )
            return in_order(spec, {row[1]: row[0] for row in rows.unique()}, rowids)
        except Exception as error:
            if not self.connections.is_of_row(error):
                raise
            keys = self._keys_of(session, spec, rowids)
            forget_unfinished(session, spec, keys, error)
            return self.load(session, spec, keys, request.options, unreadable=request.unreadable)


# -- reads indexes from the data dictionary, with Oracle's names ------------------------------------------------------

_QUOTED = re.compile(r'^"(.+)"$')
_catalog = partial(catalog, "sys")
_INDEXES = _catalog(
    "all_indexes", table_owner=String, table_name=String, index_name=String, status=String, visibility=String
)
_TRIGGERS = _catalog("all_triggers", table_owner=String, table_name=String, trigger_name=String)


def _plain(term: Term, dialect: Any) -> Term:
    return replace(term, name=_QUOTED.sub(lambda found: dialect.normalize_name(found[1]), term.name))


# -- checks a table's organization and keys, and how the session and the database treat its texts ---------------------

_PARAMETERS = _catalog("nls_session_parameters", parameter=String, value=String)
_DATABASE = _catalog("nls_database_parameters", parameter=String, value=String)
_TABLES = _catalog("all_tables", "owner", "table_name", "iot_type", "row_movement")
_IDENTITIES = _catalog(
    "all_tab_identity_cols", owner=String, table_name=String, column_name=String, identity_options=String
)
_PARTITIONED_BY = [
    _catalog(name, "owner", "name", "object_type", column_name=String)
    for name in ("all_part_key_columns", "all_subpart_key_columns")
]
_UNICODE = ("AL32UTF8", "UTF8", "UTFE")
"""The character sets of databases that can store all texts."""
_CLAIMED = ("status", "available_at", "attempt", "max_attempts", "claimed_by", "claimed_at", "claim_token", "crashes")
"""The roles of the columns that a claim writes."""
_SETTLED = ("finished_at", "error", "error_group")
_IS_CLUSTER = text(
    "BEGIN :clustered := CASE WHEN sys.dbms_utility.is_cluster_database THEN 1 ELSE 0 END; END;"
).bindparams(outparam("clustered", Integer()))
"""Not v$parameter, which ordinary accounts cannot read.  A BOOLEAN can be selected since 23ai only."""


def owner_of(connection: Connection, of: Table) -> Any:
    """Return the owner of a table, as the dictionary writes it."""
    dialect: Any = connection.dialect
    return dialect.denormalize_name(connection.schema_for_object(of) or dialect.default_schema_name)


def is_of(connection: Connection, of: Table, owner: ColumnElement[Any], name: ColumnElement[Any]) -> Criterion:
    """Return the criterion of rows of the dictionary that belong to a table, by the columns of its owner and name."""
    dialect: Any = connection.dialect
    return and_(owner == owner_of(connection, of), name == dialect.denormalize_name(of.name))


def comparison(connection: Connection) -> Mapping[str, str]:
    """Return the session's parameters NLS_COMP and NLS_SORT."""
    asked = select(_PARAMETERS).where(_PARAMETERS.c.parameter.in_(("NLS_COMP", "NLS_SORT")))
    return {each[0]: each[1] for each in connection.execute(asked)}


def _of_storage(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    mine = is_of(connection, spec.table, _TABLES.c.owner, _TABLES.c.table_name)
    stored = select(_TABLES.c.iot_type, _TABLES.c.row_movement).where(mine)
    index_organized, moves = connection.execute(stored).one_or_none() or (None, None)
    if index_organized:
        message = (
            f"{spec.table.fullname} is index-organized: a claim returns rowids, and those of such a table are too long"
            " for a claim of many tasks, which fails (ORA-06502)"
        )
        fix = "copy its rows into a table with ORGANIZATION HEAP, which is the default"
        yield Finding.of(spec, Severity.ERROR, "index-organized", message, fix)
    changed = {spec[role].name for role in (*_CLAIMED, *(() if moves == "ENABLED" else _SETTLED))}
    dialect: Any = connection.dialect
    by = {
        dialect.normalize_name(name)
        for source in _PARTITIONED_BY
        for name in connection.scalars(
            select(source.c.column_name).where(
                is_of(connection, spec.table, source.c.owner, source.c.name), source.c.object_type.like("TABLE%")
            )
        )
    }
    if moving := sorted(by & changed):
        message = (
            f"{spec.table.fullname} is partitioned by {', '.join(moving)}, which the queue changes: the row would move"
            " to another partition, where its claim does not find it, or the change fails (ORA-14402)"
        )
        fix = "partition it by columns that do not change, such as its primary key or created_at"
        yield Finding.of(spec, Severity.ERROR, "partition-key", message, fix)


def _of_order(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield a finding if the session does not sort the texts of the claim order as indexes do."""
    texts = sorted({term.column.name for term in (*spec.ready_order, *spec.due_order) if _is_text(term.column)})
    if texts and (sort := comparison(connection).get("NLS_SORT", "BINARY")) != "BINARY":
        message = (
            f"NLS_SORT is {sort}, by which no index orders {', '.join(texts)}: a claim from {spec.table.fullname} reads"
            " and sorts all ready tasks"
        )
        fix = "ALTER SESSION SET NLS_SORT = BINARY on each new connection"
        yield Finding.of(spec, Severity.WARNING, "linguistic-order", message, fix)


def _of_characters(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield a finding if the database cannot store all characters of the queue's keys."""
    keys = {column.name for column in spec.columns.values() if isinstance(column.type, KeyText)}
    keys |= {column.name for column in spec.primary_key if _is_text(column) and not isinstance(column.type, Unicode)}
    if not keys:
        return
    asked = select(_DATABASE.c.value).where(_DATABASE.c.parameter == "NLS_CHARACTERSET")
    if (characters := connection.scalar(asked)) not in _UNICODE:
        message = (
            f"the character set of this database is {characters}: keys in {', '.join(sorted(keys))} of"
            f" {spec.table.fullname} that differ only in other characters are stored as the same key"
        )
        fix = "keep such keys to characters of that set, or migrate the database to AL32UTF8"
        yield Finding.of(spec, Severity.NOTE, "character-set", message, fix)  # nobody can change it at will


def _of_identity(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield a finding if the rows of a queue that keeps its order are not numbered in that of their transactions."""
    if spec.sequence is None:  # other queues are not ordered by their keys
        return
    mine = is_of(connection, spec.table, _IDENTITIES.c.owner, _IDENTITIES.c.table_name)
    options = select(_IDENTITIES.c.column_name, _IDENTITIES.c.identity_options)
    for name, option in connection.execute(options.where(mine)):
        if "ORDER_FLAG: Y" in option or not _is_cluster(connection):
            continue
        dialect: Any = connection.dialect
        key, target = dialect.normalize_name(name), live_name(connection, spec.table)
        message = (
            f"this database is a cluster, each instance of which numbers {key} of {spec.table.fullname} from a range of"
            f" its own: rows with the same {spec.sequence} may be taken out of order"
        )
        fix = (
            f"ALTER TABLE {target} MODIFY ({key} GENERATED BY DEFAULT AS IDENTITY (ORDER)), and Identity(order=True),"
            " or oracle_order=True since SQLAlchemy 2.1, in the model"
        )
        yield Finding.of(spec, Severity.WARNING, "unordered-identity", message, fix)


def _is_cluster(connection: Connection) -> bool:
    parameters: Any = connection.execute(_IS_CLUSTER).out_parameters  # type: ignore[attr-defined]
    return bool(parameters["clustered"] == 1)


def _is_text(of: ColumnElement[Any] | Column[Any]) -> bool:
    return isinstance(of.type, String | KeyText) and not isinstance(of.type, Uuid)


# -- checks the role of the database, how sessions compare texts, and the privileges of an account --------------------

_GRANTS = _catalog("all_tab_privs", "table_schema", "table_name", "privilege")
_POWERS = _catalog("session_privs", "privilege")
_POWERS_IN_SCHEMAS = _catalog("session_schema_privs", "privilege", "schema")
"""Since 23ai: SELECT ANY TABLE ON SCHEMA, and others."""


class OracleInspection(Inspection):
    """Reads unusable and invisible indexes, and descending terms; detects standbys, and checks privileges on whole
    tables."""

    reviving = "ALTER INDEX {schema}{index} VISIBLE, and ALTER INDEX {schema}{index} REBUILD if it is UNUSABLE"

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        # a descending term is stored as an expression: the column's quoted name
        normal: Any = connection.dialect
        return {
            name: replace(index, terms=tuple(_plain(term, normal) for term in index.terms))
            for name, index in super().live_indexes(connection, table).items()
        }

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str] | None:
        mine = is_of(connection, table, _TRIGGERS.c.table_owner, _TRIGGERS.c.table_name)
        found = connection.scalars(select(_TRIGGERS.c.trigger_name).where(mine)).all()
        # other accounts than the owner may not see all
        user = func.sys_context("USERENV", "SESSION_USER")
        return found if found or owner_of(connection, table) == connection.scalar(select(user)) else None

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        dialect: Any = connection.dialect
        mine = is_of(connection, table, _INDEXES.c.table_owner, _INDEXES.c.table_name)
        is_off = (_INDEXES.c.status == "UNUSABLE") | (_INDEXES.c.visibility == "INVISIBLE")
        names = connection.scalars(select(_INDEXES.c.index_name).where(mine, is_off))
        return [dialect.normalize_name(name) for name in names]

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        role = connection.scalar(select(func.sys_context("USERENV", "DATABASE_ROLE")))
        if role != "PRIMARY":
            yield read_only(f"the role of this database is {role}", "connect to the primary")
        session = comparison(connection)
        rule, sort = session.get("NLS_COMP", "BINARY"), session.get("NLS_SORT", "BINARY")
        if rule != "BINARY" and sort != "BINARY":
            message = (
                f"NLS_COMP is {rule} and NLS_SORT is {sort}: different keys may be taken for the same, and comparisons"
                " of texts, such as states, do not use indexes"
            )
            fix = "ALTER SESSION SET NLS_COMP = BINARY on each new connection"
            yield Finding(severity=Severity.ERROR, code="linguistic-comparison", message=message, fix=fix)

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        yield from _of_storage(connection, spec)
        yield from _of_order(connection, spec)
        yield from _of_characters(connection, spec)
        yield from _of_identity(connection, spec)

    def unindexed_reference(self, connection: Connection) -> str | None:
        return "makes the server lock and read all of it: writers wait for the deletion, and the deletion for writers"

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # privileges on the whole table; those on single columns are not considered
        owner = owner_of(connection, spec.table)
        if owner == connection.scalar(select(func.sys_context("USERENV", "SESSION_USER"))):
            return ()
        mine = is_of(connection, spec.table, _GRANTS.c.table_schema, _GRANTS.c.table_name)
        granted = {*connection.scalars(select(_GRANTS.c.privilege).where(mine))}
        granted |= {*connection.scalars(select(_POWERS.c.privilege))}
        if (connection.dialect.server_version_info or ()) >= (23,):
            here = _POWERS_IN_SCHEMAS.c.schema == owner
            granted |= {*connection.scalars(select(_POWERS_IN_SCHEMAS.c.privilege).where(here))}
        asked = ("SELECT", "INSERT", "UPDATE", "DELETE")
        return [privilege for privilege in asked if not granted & {privilege, f"{privilege} ANY TABLE"}]


# -- errors, and the timeouts of python-oracledb, which does not expose its socket ------------------------------------

# https://docs.oracle.com/error-help/db/
_TRANSIENT = (
    # resource busy, at once or for too long; deadlock, of rows or of definitions; cannot serialize access
    *(54, 30006, 4021, 60, 4020, 8177),
)
_OUTAGES = (
    # session killed, not logged on, closed
    *(28, 1012, 3113, 3114, 3135, 12537, 12547, 12571),
    # starting, not available, shut down, not open
    *(1033, 1034, 1089, 1090, 1092, 1109),
    # the listener: service or instance unknown or full; unreachable, unknown host, no answer
    *(12505, 12514, 12516, 12518, 12519, 12520, 12521, 12528, 12541, 12545, 12543, 12170),
    # too many sessions, too many processes; archive full, table or index or undo cannot grow
    *(18, 20, 257, 1653, 1654, 30036),
    # read-only (such as a standby)
    16000,
    # python-oracledb: not connected, closed; refused, no such service, no such SID, proxy, cannot connect
    # https://python-oracledb.readthedocs.io/en/latest/user_guide/troubleshooting.html
    *("DPY-1001", "DPY-4011", "DPY-6000", "DPY-6001", "DPY-6003", "DPY-6004", "DPY-6005"),
)

_COMPILATION = 6550
_HIDDEN_PACKAGE = re.compile(r"PLS-00201: .*'(SYS\.)?DBMS_")
"""What the error of a block contains if it calls a package of the server on which the account has no privilege: that it
is not declared (https://docs.oracle.com/en/error-help/db/pls-00201/)."""


class OracleConnections(Connections):
    """Codes of the server or the driver, which ends calls that take too long, but waits forever for a listener that
    sends nothing."""

    snapshots_conflict = True
    transient_errors = _TRANSIENT
    outage_errors = _OUTAGES
    duplicate_errors = (1,)
    reference_errors = (2292,)
    # insufficient privileges; a table that does not exist for this account
    denied_errors = (1031, 41900, 942)
    read_only_errors = (1456, 16000)
    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = dict.fromkeys(
        ("oracledb", "oracledb_async"), ("tcp_connect_timeout",)
    )

    def is_denied(self, error: DBAPIError) -> bool:
        # any other error of compilation is a fault of the block
        is_hidden = self.error_code(error) == _COMPILATION and _HIDDEN_PACKAGE.search(str(error.orig)) is not None
        return super().is_denied(error) or is_hidden

    def has_lost(self, error: DBAPIError) -> bool:
        # the driver or the server marks the error as recoverable
        return super().has_lost(error) or getattr(first_argument(error), "isrecoverable", False)

    def error_code(self, error: DBAPIError) -> Any:
        # the driver's own errors, such as a refused connection, have the number 0
        told = first_argument(error)
        return getattr(told, "code", None) or getattr(told, "full_code", None)

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        driver: Any = connection.connection.driver_connection
        connection.info.setdefault(FORMER, driver.call_timeout)
        driver.call_timeout = milliseconds(timeout)

    def lift_time_limit(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.call_timeout = connection.info.pop(FORMER)

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.cancel()

    def driver_advice(self, connection: Any) -> str | None:
        if getattr(connection, "call_timeout", None) != 0:
            return None
        limits = {"tcp_connect_timeout": 10, "expire_time": 1}
        listener = "lambda _, record: setattr(record.driver_connection, 'call_timeout', 60_000)"
        return (
            f"event.listen(engine, 'connect', {listener}), or longer if a call takes longer, and"
            f" create_engine(..., connect_args={limits})"
        )

    def limit_calls(self, connection: Any, within: timedelta) -> Undo:
        before = connection.call_timeout
        connection.call_timeout = milliseconds(within)
        return partial(setattr, connection, "call_timeout", before)


# -- oracle's parts ---------------------------------------------------------------------------------------------------


class Oracle(Adapter):
    """Oracle Database 12.2 and newer."""

    product = Product(dialect="oracle", name="Oracle Database", minimum=(12, 2), needed="FETCH FIRST and long names")
    parts = (OracleTypes, OracleRows, OracleConnections, OracleInspection)
