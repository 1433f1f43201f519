"""Checks of the database file."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sqlalchemy import URL, Connection

from ...queue.spec import Finding, Severity
from ..parts.server import Server, read_only


class SQLiteServer(Server):
    """A database file."""

    def absent(self, url: URL) -> str | None:
        path = url.database
        if not path or path == ":memory:" or path.startswith("file:") or os.path.exists(path):
            return None
        return f"the file {path} does not exist"

    def findings(self, connection: Connection) -> Iterator[Finding]:
        if connection.exec_driver_sql("PRAGMA query_only").scalar():
            yield read_only("query_only is set on this connection", "set PRAGMA query_only to off")
        (path, *_) = connection.exec_driver_sql("PRAGMA database_list").scalars("file")
        if not path or connection.engine.url.query.get("vfs") == "memdb":
            return  # in memory
        if connection.engine.url.query.get("mode") == "ro":
            yield read_only("the URL says mode=ro", "leave it out")
        for needed in (path, os.path.dirname(path)):  # the journal is a file in the same directory
            if not os.access(needed, os.W_OK):
                yield read_only(f"{needed} is not writable", "give this user write permission")
        if (mode := connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()) != "wal":
            yield Finding(
                severity=Severity.WARNING,
                code="journal-mode",
                message=f"the journal mode is {mode}, in which readers block claims, and claims block readers",
                fix="run once, with any SQLite client: PRAGMA journal_mode = WAL",
            )

    def unindexed_reference(self, connection: Connection) -> str | None:
        is_enforced = connection.exec_driver_sql("PRAGMA foreign_keys").scalar()
        return super().unindexed_reference(connection) if is_enforced else None
