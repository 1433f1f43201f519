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
from sqlalchemy.sql.visitors import InternalTraversal

from ...sql.rows import Assignment
from ...sql.selection import Pick

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
