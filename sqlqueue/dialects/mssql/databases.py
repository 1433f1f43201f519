"""Checks the state and settings of the connected database, and the options of the session."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Boolean, Connection, Integer, String, cast, column, func, literal_column, select, table
from sqlalchemy.dialects import mssql

from ...queue.spec import Finding, Severity
from ..parts.server import read_only

_QUOTE = mssql.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]
_DATABASES = table(
    "databases",
    column("name", String),
    column("is_read_committed_snapshot_on", Boolean),
    column("is_parameterization_forced", Boolean),
    schema="sys",
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
