"""The models of all engines, and the scenarios in which an engine's rules violate a guarantee."""

from __future__ import annotations

from collections.abc import Mapping

from tests.locking.guarantees import Deadlock, Violation, Waits
from tests.locking.innodb import InnoDB, MariaDB
from tests.locking.oracle import Oracle, OracleThatJudgesAgain
from tests.locking.postgresql import PostgreSQL
from tests.locking.server import Server
from tests.locking.sqlserver import SQLServer, SQLServerThatKeepsEntries, SQLServerWithoutRowVersions

NO_ROW_VERSIONS = "mssql, READ_COMMITTED_SNAPSHOT off"
NEVER_WAITING = {"ways in", "twice", "two columns"}
"""Scenarios in which no claim waits even without READ_COMMITTED_SNAPSHOT. In all others readers may wait for writers,
which `check` reports as an error."""
MODELS: dict[str, tuple[type[Server], str]] = {
    "postgresql": (PostgreSQL, "postgresql"),
    "mysql": (InnoDB, "mysql"),
    "mariadb": (MariaDB, "mariadb"),
    "mssql": (SQLServer, "mssql"),
    "mssql, entries kept": (SQLServerThatKeepsEntries, "mssql"),
    NO_ROW_VERSIONS: (SQLServerWithoutRowVersions, "mssql"),
    "oracle": (Oracle, "oracle"),
    "oracle, judged again": (OracleThatJudgesAgain, "oracle"),
}
BY_ENTRY: dict[str, type[Violation]] = {"replace by unique key": Deadlock, "rerun by unique key": Deadlock}
"""A task is inserted, claimed and completed while another transaction inserts the same key: the completion has locked
the row and waits for the entry of its key, while the INSERT has locked the entry and waits for the row.  An INSERT
without ON DUPLICATE KEY does the same, since no statement of InnoDB locks the row first.  Real servers deadlock, too:
see :mod:`tests.locking.test_servers`."""
BY_ANOTHER_WAY: dict[str, type[Violation]] = {
    "ways in": Waits,
    "twice": Waits,
    "twice, locks": Deadlock,
    "criteria": Waits,
    "limits": Waits,
}
"""A claim through an index keeps locks on the entries of rows that others have locked through another index, and these
wait for it when they write."""
VIOLATED: Mapping[str, Mapping[str, type[Violation]]] = {
    "mysql": BY_ENTRY,
    "mariadb": BY_ENTRY,
    # undocumented; claims that only lock do so by primary key
    "mssql, entries kept": {name: error for name, error in BY_ANOTHER_WAY.items() if name != "twice, locks"},
    # each transaction reads the slots that the other has written; a few interleavings deadlock
    NO_ROW_VERSIONS: {"limits": Waits},
}
