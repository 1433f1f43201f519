"""The models of all engines, and the scenarios in which the rules of an engine violate a guarantee."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tests.locking.guarantees import WAITING, Deadlock, LocksTooMuch, Violation, Waits
from tests.locking.innodb import InnoDB, MariaDB
from tests.locking.oracle import Oracle, OracleThatJudgesAgain, OracleWithFewSlots
from tests.locking.postgresql import PostgreSQL
from tests.locking.server import Server
from tests.locking.sqlserver import (
    SQLServer,
    SQLServerAtBest,
    SQLServerThatEscalates,
    SQLServerThatWaitsForTransactions,
    SQLServerWithOptimizedLocking,
    SQLServerWithoutRowVersions,
    SQLServerWithPageLocks,
)


@dataclass(frozen=True)
class Model:
    """The model of an engine."""

    server: type[Server]
    dialect: str
    allowed: Mapping[str, Collection[type[Violation]]] = field(default_factory=dict)
    """The violations of each scenario, or of all other scenarios (``""``)."""

    def allows(self, scenario: str) -> Collection[type[Violation]]:
        return self.allowed.get(scenario, self.allowed.get("", ()))


BY_ENTRY: dict[str, Collection[type[Violation]]] = {
    "replace by unique key": [Deadlock],
    "rerun by unique key": [Deadlock],
}
"""A task is inserted, claimed and completed while another transaction inserts the same key: the completion has locked
the row and waits for the entry of its key, while the INSERT has locked the entry and waits for the row.  An INSERT
without ON DUPLICATE KEY does the same, since no statement of InnoDB locks the row first.  Real servers deadlock, too:
see :mod:`tests.locking.test_servers`."""
BY_ANOTHER_WAY: dict[str, type[Violation]] = {
    "ways in": Waits,
    "twice": Waits,
    "twice, locks": Deadlock,
    "criteria": Waits,
}
"""A claim through an index keeps locks on the entries of rows that others have locked through another index, and these
wait for it when they write."""
KEPT_LOCKS: dict[str, Collection[type[Violation]]] = {
    # on entries whose rows others have locked by key, and on early rows
    "ways in": [Waits, LocksTooMuch],
    "twice": [Waits],
    "criteria": [Waits],
    "postponing": [Waits],
    "promoting": [LocksTooMuch],
    # claims of one key use its index, claims that take turns lock by primary key
    "turns": [Waits],
}
"""UPDLOCK may keep locks on what does not match until the transaction ends.  Claims that lock by key release them."""
_MAY_WAIT: dict[str, Collection[type[Violation]]] = {"": [Waits, LocksTooMuch]}
_MAY_DEADLOCK: dict[str, Collection[type[Violation]]] = {"": WAITING}
MODELS = {
    "postgresql": Model(PostgreSQL, "postgresql"),
    "mysql": Model(InnoDB, "mysql", BY_ENTRY),
    "mariadb": Model(MariaDB, "mariadb", BY_ENTRY),
    "mssql": Model(SQLServer, "mssql", KEPT_LOCKS),
    "oracle": Model(Oracle, "oracle"),
}
VARIANTS = {
    "mssql, at best": Model(SQLServerAtBest, "mssql"),
    "mssql, READ_COMMITTED_SNAPSHOT off": Model(SQLServerWithoutRowVersions, "mssql", _MAY_DEADLOCK),
    "mssql, ALLOW_ROW_LOCKS off": Model(SQLServerWithPageLocks, "mssql", _MAY_DEADLOCK),
    "mssql, lock escalation": Model(SQLServerThatEscalates, "mssql", _MAY_WAIT),
    "mssql, optimized locking": Model(SQLServerWithOptimizedLocking, "mssql", KEPT_LOCKS),
    "mssql, optimized locking, READPAST waits": Model(SQLServerThatWaitsForTransactions, "mssql", _MAY_WAIT),
    "oracle, judged again": Model(OracleThatJudgesAgain, "oracle"),
    "oracle, no room in blocks": Model(OracleWithFewSlots, "oracle", {"": [Waits]}),
}
"""What the documentation allows besides, settings, and Azure SQL Database."""
