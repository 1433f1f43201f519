"""Oracle Database 12.2 and newer.  Never run on a real server by this project: see the README."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from operator import add
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnClause,
    ColumnElement,
    Connection,
    Executable,
    Integer,
    Select,
    String,
    Table,
    Text,
    bindparam,
    column,
    extract,
    func,
    literal_column,
    outparam,
    select,
    table,
    text,
    type_coerce,
)
from sqlalchemy.dialects import oracle
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption
from sqlalchemy.sql.elements import ClauseElement

from .._support.jsontext import json_text
from ..queue.findings import Finding
from ..queue.spec import Identity, QueueSpec
from ..sql.clock import utc
from ..sql.selection import Assignment, Pick
from .base import Adapter
from .health import read_only
from .inspection import LiveIndex, Term
from .requests import Interrupt, milliseconds
from .rows import Parameters

_BLOCK = """\
DECLARE
  CURSOR free IS {select};
  TYPE rowids IS TABLE OF UROWID;
  picked rowids;
  taken rowids;
  room PLS_INTEGER := {limit};
  listed {text};
BEGIN
  OPEN free;
  WHILE room > 0 LOOP
    FETCH free BULK COLLECT INTO picked LIMIT room;
    EXIT WHEN picked.COUNT = 0;
    taken := rowids();
    FOR i IN 1 .. picked.COUNT LOOP
      FOR still IN ({again}) LOOP
        taken.EXTEND;
        taken(taken.COUNT) := picked(i);
        listed := listed || picked(i) || ',';
      END LOOP;
    END LOOP;
{write}    room := room - taken.COUNT;
  END LOOP;
  CLOSE free;
  {rowids} := listed;
END;"""

_UPDATE = """\
    FORALL i IN 1 .. taken.COUNT
      UPDATE {table} SET {assignments} WHERE ROWID = taken(i);
"""

_SHORT = 200
"""So many rowids fit a VARCHAR2 of 4,000, which is what the driver makes room for; more come as a CLOB."""

_PARTS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}
"""Of an interval, in microseconds."""

_QUOTE = oracle.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]
_QUOTED = re.compile(r'^"(.+)"$')
_INDEXES = table(
    "all_indexes",
    *(column(name, String) for name in ("table_owner", "table_name", "index_name", "status", "visibility")),
    schema="sys",
)
_GRANTS = table("all_tab_privs", *map(column, ("table_schema", "table_name", "privilege")), schema="sys")
_POWERS = table("session_privs", column("privilege"), schema="sys")

# https://docs.oracle.com/error-help/db/
_TRANSIENT = (
    # resource busy, at once or for too long; deadlock, of rows or of definitions; cannot serialize access
    *(54, 30006, 4021, 60, 4020, 8177),
)
_OUTAGES = (
    # killed, not logged on, closed
    *(28, 1012, 3113, 3114, 3135, 12537, 12547, 12571),
    # starting, not there, shut down, not open
    *(1033, 1034, 1089, 1090, 1092, 1109),
    # the listener: no such service or instance now, none that has room, not there, no such host, no answer
    *(12505, 12514, 12516, 12518, 12519, 12520, 12521, 12528, 12541, 12545, 12543, 12170),
    # too many sessions, too many processes; archive full, table or index or undo cannot grow
    *(18, 20, 257, 1653, 1654, 30036),
    # read-only (as a standby)
    16000,
    # python-oracledb: not connected, closed; refused, no such service, no such SID, proxy, cannot connect
    # https://python-oracledb.readthedocs.io/en/latest/user_guide/troubleshooting.html
    *("DPY-1001", "DPY-4011", "DPY-6000", "DPY-6001", "DPY-6003", "DPY-6004", "DPY-6005"),
)


class Oracle(Adapter):
    """The claim is one PL/SQL block: a cursor FOR UPDATE SKIP LOCKED, fetched as often as rows are wanted.

    Such a cursor locks each row when it is fetched.  Left to a driver, which fetches on its own, it would lock more
    than the claim returns (through SQLAlchemy's asyncio dialect, all of it); and a row limit cannot be combined with
    FOR UPDATE (ORA-02014).

    What it finds was so when it was opened.  So each row is read again once it is locked, and only what still matches
    is taken; in the place of what does not, the next is fetched.
    """

    name = "oracle"
    product = "Oracle Database"
    minimum: ClassVar[tuple[int, ...]] = (12, 2)
    needed = "FETCH FIRST and long names"
    timestamp = utc(oracle.TIMESTAMP)
    error_text = oracle.NVARCHAR2(2000)
    json = json_text()  # SQLAlchemy has a JSON for Oracle from 2.1 on, and Oracle itself from 21c on
    transient: ClassVar[Collection[Any]] = _TRANSIENT
    outages: ClassVar[Collection[Any]] = _OUTAGES
    reviving = "ALTER INDEX {schema}{index} VISIBLE, and ALTER INDEX {schema}{index} REBUILD if it is UNUSABLE"
    numbers_keys = False
    # ORA-01795: at most 1,000 expressions in a list
    batch = 1_000

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.sys_extract_utc(text("SYSTIMESTAMP"))
        return now if seconds is None else now + func.numtodsinterval(seconds, text("'SECOND'"))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        # an interval is only had in its parts, of which the last has the fraction
        terms = (extract(part, later - earlier) * literal_column(str(factor)) for part, factor in _PARTS.items())
        return type_coerce(reduce(add, terms), BigInteger())

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        locking = pick.select(*columns).with_for_update(skip_locked=True)
        if pick.index is None:
            return locking
        # left alone, the optimizer has all rows in mind, and may well sort all that are due to give out the first; a
        # hint names a table without its schema ("SQL Language Reference", Hints), and SQLAlchemy formats it
        hint = f"INDEX({_QUOTE(pick.spec.table.name)} {_QUOTE(pick.index)})".replace("%", "%%")
        return locking.with_hint(pick.spec.table, hint, self.name)

    def take(
        self,
        session: Session,
        pick: Pick,
        assignments: Sequence[Assignment],
        parameters: Parameters | None = None,
        *,
        delete: bool = False,
        options: Sequence[ExecutableOption] = (),
    ) -> list[Any]:
        rowids = self._picked(session, pick, assignments, parameters)
        tasks: list[Any] = []
        for some in self.batches(pick.spec, rowids):
            tasks += self._load_rows(session, pick.spec, some, options)
        if delete:
            self.delete(session, pick.spec, [pick.spec.identity_of(task) for task in tasks])
        return tasks

    def lock(self, session: Session, pick: Pick) -> list[Identity]:
        found: dict[str, Identity] = {}
        rowids, rowid = self._picked(session, pick), _rowid(pick.spec.table)
        for some in self.batches(pick.spec, rowids):
            keys = select(rowid, *pick.spec.primary_key).where(rowid.in_(some))
            found.update((row[0], tuple(row[1:])) for row in self.execute(session, pick.spec, keys))
        return [found[each] for each in rowids]

    def _picked(
        self,
        session: Session,
        pick: Pick,
        assignments: Sequence[Assignment] = (),
        parameters: Parameters | None = None,
    ) -> list[str]:
        """The rowids of what the block has locked, and written to if there are ``assignments``, in order."""
        result = self.execute(session, pick.spec, ClaimBlock(self, pick, assignments), parameters)
        return (result.out_parameters["rowids"] or "").split(",")[:-1]  # type: ignore[attr-defined]

    def _load_rows(
        self, session: Session, spec: QueueSpec, rowids: Sequence[str], options: Sequence[ExecutableOption]
    ) -> list[Any]:
        """The instances of these rows, in that order.  A rowid stands for a key of any types and columns."""
        rowid = _rowid(spec.table)
        rows = session.execute(
            select(spec.entity, rowid).where(rowid.in_(rowids)).options(*options),
            execution_options={"populate_existing": True},
            bind_arguments=spec.bind_arguments,
        )
        return self.in_order(spec, {row[1]: row[0] for row in rows.unique()}, rowids)

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        # a term that goes downward is kept as an expression: the name of its column in quotes
        normal: Any = connection.dialect
        return {
            name: replace(index, terms=tuple(_plain(term, normal) for term in index.terms))
            for name, index in super().live_indexes(connection, table).items()
        }

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        dialect: Any = connection.dialect
        owner = connection.schema_for_object(table) or dialect.default_schema_name
        is_of_table = (_INDEXES.c.table_owner == dialect.denormalize_name(owner)) & (
            _INDEXES.c.table_name == dialect.denormalize_name(table.name)
        )
        is_off = (_INDEXES.c.status == "UNUSABLE") | (_INDEXES.c.visibility == "INVISIBLE")
        names = connection.scalars(select(_INDEXES.c.index_name).where(is_of_table, is_off))
        return [dialect.normalize_name(name) for name in names]

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        role = connection.scalar(select(func.sys_context("USERENV", "DATABASE_ROLE")))
        if role != "PRIMARY":
            yield read_only(f"the role of this database is {role}", "connect to the primary")

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # of the whole table: rights to single columns do not count here
        dialect: Any = connection.dialect
        owner = dialect.denormalize_name(connection.schema_for_object(spec.table) or dialect.default_schema_name)
        if owner == connection.scalar(select(func.sys_context("USERENV", "SESSION_USER"))):
            return ()
        is_of_table = (_GRANTS.c.table_schema == owner) & (
            _GRANTS.c.table_name == dialect.denormalize_name(spec.table.name)
        )
        granted = {*connection.scalars(select(_GRANTS.c.privilege).where(is_of_table))}
        granted |= {*connection.scalars(select(_POWERS.c.privilege))}
        asked = ("SELECT", "INSERT", "UPDATE", "DELETE")
        return [privilege for privilege in asked if not granted & {privilege, f"{privilege} ANY TABLE"}]

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        driver: Any = connection.connection.driver_connection
        driver.call_timeout = milliseconds(timeout)

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.cancel()

    def is_duplicate(self, error: IntegrityError) -> bool:
        return bool(self.code(error) == 1)

    def is_referenced(self, error: IntegrityError) -> bool:
        return self.code(error) in (2292,)

    def is_outage(self, error: DBAPIError) -> bool:
        # what the driver, or the server, takes for one
        return super().is_outage(error) or getattr(super().code(error), "isrecoverable", False)

    def code(self, error: DBAPIError) -> Any:
        # errors of the driver itself, as that of a port where nobody listens, have no number but 0
        told = super().code(error)
        return getattr(told, "code", None) or getattr(told, "full_code", None)


def _rowid(table: Table) -> ColumnClause[str]:
    column = literal_column("ROWID", oracle.ROWID())
    column.table = table
    return column


def _plain(term: Term, dialect: Any) -> Term:
    return replace(term, name=_QUOTED.sub(lambda found: dialect.normalize_name(found[1]), term.name))


class ClaimBlock(Executable, ClauseElement):
    """The PL/SQL block; its one out parameter, ``rowids``, ends each with a comma."""

    inherit_cache = False

    def __init__(self, adapter: Oracle, pick: Pick, assignments: Sequence[Assignment]) -> None:
        rowid = _rowid(pick.spec.table)
        self.pick = pick
        self.assignments = assignments
        self.locking = adapter.picking(pick, rowid)
        # a row that is locked is read as it is, whoever changed it since the cursor was opened
        self.again = select(rowid).where(rowid == literal_column("picked(i)"), *pick.state, *pick.where)


@compiles(ClaimBlock, "oracle")
def _compile_block(block: ClaimBlock, compiler: Any, **kw: Any) -> str:
    long = block.pick.limit > _SHORT
    return _BLOCK.format(
        select=compiler.process(block.locking, **kw),
        limit=compiler.process(bindparam("wanted", block.pick.limit, type_=Integer(), unique=False), **kw),
        text="CLOB" if long else "VARCHAR2(32767)",
        again=compiler.process(block.again, **kw),
        write=_write(block, compiler, **kw) if block.assignments else "",
        rowids=compiler.process(outparam("rowids", Text() if long else String(4000)), **kw),
    )


def _write(block: ClaimBlock, compiler: Any, **kw: Any) -> str:
    quote, table = compiler.preparer.quote, block.pick.spec.table
    assignments = (f"{quote(column.name)} = {compiler.process(value, **kw)}" for column, value in block.assignments)
    return _UPDATE.format(table=compiler.preparer.format_table(table), assignments=", ".join(assignments))
