"""Checks the state and settings of the connected database."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Boolean, Connection, String, cast, column, func, select, table
from sqlalchemy.dialects import mssql

from ...queue.findings import Finding, Severity
from ..parts.server import read_only

_QUOTE = mssql.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]
_DATABASES = table(
    "databases",
    column("name", String),
    column("is_read_committed_snapshot_on", Boolean),
    column("is_parameterization_forced", Boolean),
    schema="sys",
)


def findings_of_database(connection: Connection) -> Iterator[Finding]:
    """Yield the problems of the connected database."""
    # cast from sql_variant, which not every driver can read
    answer = cast(func.databasepropertyex(func.db_name(), "Updateability"), mssql.NVARCHAR(128))
    if connection.scalar(select(answer)) == "READ_ONLY":
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
