"""Error numbers of SQL Server and DB-Library, and SQLSTATEs of ODBC."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from sqlalchemy.exc import DBAPIError

from ..parts.errors import Errors, first_argument

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


class SQLServerErrors(Errors):
    """Codes of the server or the driver.

    pyodbc gives the server's number only in the text, at a fixed position.
    """

    def __init__(self) -> None:
        super().__init__(
            transient=_TRANSIENT,
            outages=_OUTAGES,
            duplicates=(2601, 2627),
            references=(547,),
            # denied on an object, a column, in general, on a server's or database's state; no access to a database
            denied=(229, 230, 297, 300, 262, 916),
            lost_savepoints=(3903, 6401),
        )

    def has_lost(self, error: DBAPIError) -> bool:
        if not _TIMEOUTS.isdisjoint(self.codes(error)):
            # a login timeout is an outage; a statement timeout is not, although SQLAlchemy invalidates the connection
            return error.statement is None
        return super().has_lost(error)

    def code(self, error: DBAPIError) -> Any:
        code = first_argument(error)
        return code[0] if isinstance(code, tuple) else code  # pymssql: number and text

    def codes(self, error: DBAPIError) -> Collection[Any]:
        return (self.code(error), *_numbers(error))


def _numbers(error: DBAPIError) -> Iterator[int]:
    """Yield the server's numbers, which pyodbc appends to each message; numbers within a message do not count."""
    text = str(error.orig.args[-1]) if error.orig is not None and error.orig.args else ""
    *_, first = (None, *_FIRST.finditer(text))
    if first is not None:
        yield int(first[1])
        yield from map(int, _FURTHER.findall(text, first.end()))
