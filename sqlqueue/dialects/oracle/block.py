"""The PL/SQL block of a claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnClause,
    Executable,
    Integer,
    Select,
    String,
    Table,
    Text,
    bindparam,
    literal_column,
    outparam,
    select,
)
from sqlalchemy.dialects import oracle
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement

from ...sql.changes import Assignment
from ...sql.selection import Pick

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
"""The number of rowids that fit into the driver's VARCHAR2 of 4,000; more are returned as a CLOB."""


def rowid_of(table: Table) -> ColumnClause[str]:
    """Return the ROWID pseudocolumn of ``table``."""
    rowid = literal_column("ROWID", oracle.ROWID())
    rowid.table = table
    return rowid


class ClaimBlock(Executable, ClauseElement):
    """The PL/SQL block around ``locking``, which selects rowids.

    Its only out parameter, ``rowids``, contains the rowids, each followed by a comma.
    """

    inherit_cache = False

    def __init__(self, locking: Select[Any], pick: Pick, assignments: Sequence[Assignment]) -> None:
        rowid = rowid_of(pick.spec.table)
        self.pick = pick
        self.assignments = assignments
        self.locking = locking
        # reads the current version of a locked row, which may have changed since the cursor was opened
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
