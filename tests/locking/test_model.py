"""Every tested interleaving keeps the library's guarantees, on a model of each engine. With earlier, incorrect
statements it does not: the model detects the violation.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from itertools import product
from random import Random
from typing import Any

import pytest
from sqlalchemy import update

from sqlqueue.dialects.statements import Rows
from tests.locking.guarantees import (
    ClaimedTwice,
    Deadlock,
    FindsTooLittle,
    Guarantees,
    LeaseNotExtended,
    LocksTooMuch,
    TakesWrongly,
    Violation,
    Waits,
    WaitsForUnconcerned,
)
from tests.locking.innodb import InnoDB, MariaDB
from tests.locking.interleaving import COMMIT, ModelInterleaving, Script, Step
from tests.locking.models import BY_ANOTHER_WAY, BY_ENTRY, KEPT_LOCKS, MODELS, VARIANTS
from tests.locking.oracle import Oracle, OracleThatJudgesAgain
from tests.locking.scenarios import SCENARIOS
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
from tests.locking.wrong_statements import (
    FORMER_ROWS,
    ClingingSQLServer,
    ConstantMySQL,
    CrowdedOracleWithFormerBlock,
    LockingEntriesSQLServer,
    OracleWithFormerBlock,
    ScanningSQLServer,
    UnlockedKeysMySQL,
    UnnamedIndexSQLServer,
    WaitingMySQL,
    WaitingOracle,
    WaitingPostgreSQL,
    WaitingSQLServer,
    sending,
)
from tests.support.models import Task

FORMER: list[tuple[type[Server], str, str, type[Violation]]] = [
    # an entry stays locked although others hold its row
    *[(InnoDB, "mysql", name, error) for name, error in BY_ANOTHER_WAY.items()],
    *[(MariaDB, "mariadb", name, error) for name, error in BY_ANOTHER_WAY.items()],
    # a SELECT of keys alone locks index entries and not the rows: statements with another access path do not see the
    # lock
    (SQLServer, "mssql", "ways in, locks", ClaimedTwice),
    (SQLServer, "mssql", "twice, locks", ClaimedTwice),
    *[
        (server, "mssql", "ways in, locks", ClaimedTwice)
        for server in (
            SQLServerAtBest,
            SQLServerWithoutRowVersions,
            SQLServerWithPageLocks,
            SQLServerThatEscalates,
            SQLServerWithOptimizedLocking,
            SQLServerThatWaitsForTransactions,
        )
    ],
    # loading the claimed rows scans a small table, including rows of another claimer that does the same
    *[(SQLServerWithoutRowVersions, "mssql", name, Deadlock) for name in ("leases", "ways in", "heartbeat")],
    # the index is locked while it is read, and the criterion is evaluated too late
    (SQLServer, "mssql", "criteria", LocksTooMuch),
    # a change by criterion waits for every locked row that it reads
    (SQLServer, "mssql", "sets", WaitsForUnconcerned),
    # the only candidate is locked by another transaction
    (Oracle, "oracle", "locks", FindsTooLittle),
    (OracleThatJudgesAgain, "oracle", "locks", FindsTooLittle),
    # a row found at OPEN has been completed or has changed by the time it is locked
    (OracleWithFormerBlock, "oracle", "locks", TakesWrongly),
    (OracleWithFormerBlock, "oracle", "stages", TakesWrongly),
    (CrowdedOracleWithFormerBlock, "oracle", "locks", TakesWrongly),
]
MISSING_PARTS: list[tuple[type[Rows], str, str, type[Violation]]] = [
    # promoting, postponing, fair claims and claims of recurring tasks do not wait
    *[(WaitingSQLServer, "mssql", name, Waits) for name in ("promoting", "postponing", "recurring", "turns")],
    *[(WaitingOracle, "oracle", name, Waits) for name in ("promoting", "two columns", "messages", "messages, kept")],
    *[(WaitingPostgreSQL, "postgresql", name, Waits) for name in ("promoting", "messages")],
    *[(WaitingMySQL, "mysql", name, Waits) for name in ("postponing", "two columns", "recurring", "messages, kept")],
    # any index may be used, and locked, that has the rows
    *[(UnnamedIndexSQLServer, "mssql", name, LocksTooMuch) for name in ("criteria", "promoting")],
    # rows that another claim has taken stay locked
    (ClingingSQLServer, "mssql", "heartbeat, locks", LeaseNotExtended),
    # entries stay locked as long as handlers run
    (LockingEntriesSQLServer, "mssql", "twice, locks", Deadlock),
    # changes to sets, and enqueueing again, wait only for their own rows
    *[(ScanningSQLServer, "mssql", name, WaitsForUnconcerned) for name in ("pruning", "redriving", "rescuing")],
    *[(ScanningSQLServer, "mssql", f"{how} by primary key", WaitsForUnconcerned) for how in ("replace", "rerun")],
    *[(ScanningSQLServer, "mssql", f"{how} by unique key", WaitsForUnconcerned) for how in ("replace", "rerun")],
    *[(ScanningSQLServer, "mssql", f"{how} by both keys", WaitsForUnconcerned) for how in ("replace", "rerun")],
    # a row that is selected by key but cannot be claimed stays locked
    (ConstantMySQL, "mysql", "ways in, locks", LocksTooMuch),
    # one locks the key before the row, the other the row before the key
    (UnlockedKeysMySQL, "mysql", "ignore by unique key", Deadlock),
]
PLAYS = int(os.environ.get("SQLQUEUE_TEST_PLAYS", "1"))
"""The number of interleavings of each scenario on each model; raise it after changes of statements."""
SEEDS = range(40)
"""The interleavings within which a violation must be found."""


def play(
    server: type[Server], dialect: str, name: str, seed: int, *, allowed: Collection[type[Violation]] = ()
) -> None:
    """Run one interleaving; a violated guarantee raises an error, unless it is ``allowed``."""
    scenario = SCENARIOS[name]
    interleaving = ModelInterleaving(server, dialect, scenario.scripts(), finely=seed % 2 == 1)
    for model, rows in scenario.all_rows.items():
        interleaving.server.load(model.__table__, rows)
    random = Random(f"{name} {seed}")
    interleaving.server.choose = random.choice
    interleaving.checker = Guarantees(interleaving.server, scenario.model.__table__, scenario.line, allowed)
    interleaving.run(iter(random.choices((0, 1, 2), k=200)))


def play_until(error: type[Violation], server: type[Server], dialect: str, name: str) -> None:
    """Try one interleaving after another until this guarantee is violated."""
    others = {each for each in Violation.__subclasses__() if each is not error}
    for seed in SEEDS:
        play(server, dialect, name, seed, allowed=others)


@pytest.mark.parametrize(("model", "name"), list(product([*MODELS, *VARIANTS], SCENARIOS)))
def test_all_guarantees_hold(model: str, name: str) -> None:
    random, tested = Random(f"{model} {name}"), MODELS.get(model) or VARIANTS[model]
    for seed in random.choices(SEEDS, k=PLAYS):
        play(tested.server, tested.dialect, name, seed, allowed=tested.allows(name))


KNOWN: list[tuple[str, str, type[Violation]]] = [
    *[(model, name, error) for model in ("mysql", "mariadb") for name, errors in BY_ENTRY.items() for error in errors],
    *[("mssql", name, error) for name, errors in KEPT_LOCKS.items() for error in errors],
    *[(model, "ways in", Waits) for model, tested in VARIANTS.items() if tested.allows("ways in")],
]


@pytest.mark.parametrize(("model", "name", "error"), KNOWN)
def test_known_violations_are_found(model: str, name: str, error: type[Violation]) -> None:
    tested = MODELS.get(model) or VARIANTS[model]
    with pytest.raises(error):
        play_until(error, tested.server, tested.dialect, name)


@pytest.mark.parametrize(("server", "dialect", "name", "error"), FORMER)
def test_former_statements_are_refuted(server: type[Server], dialect: str, name: str, error: type[Violation]) -> None:
    with sending(dialect, FORMER_ROWS[dialect]), pytest.raises(error):
        play_until(error, server, dialect, name)


@pytest.mark.parametrize(("rows", "dialect", "name", "error"), MISSING_PARTS)
def test_careless_statements_are_refuted(rows: type[Rows], dialect: str, name: str, error: type[Violation]) -> None:
    with sending(dialect, rows), pytest.raises(error):
        play_until(error, MODELS[dialect].server, dialect, name)


TASKS: Any = Task.__table__


def _writes(value: int, criterion: Any) -> Script:
    change = update(TASKS).values(number=value).where(criterion)
    return [Step(f"write {value}", lambda session, _: session.execute(change)), COMMIT]


@pytest.mark.parametrize(
    ("server", "second", "number", "waits"),
    [
        # a row that matches once the first transaction commits
        (SQLServer, Task.number == 2, 3, True),
        (SQLServerWithOptimizedLocking, Task.number == 2, 2, False),
        # one that matches before, too
        (SQLServerWithOptimizedLocking, Task.id == 1, 3, True),
        # one that no longer matches: it is checked again
        (SQLServerWithOptimizedLocking, Task.number == 0, 2, True),
        # one that does not match at any time
        (SQLServer, Task.name == "other", 2, True),
        (SQLServerWithOptimizedLocking, Task.name == "other", 2, False),
    ],
)
def test_optimized_locking_qualifies_rows_before_it_locks_them(
    server: type[Server], second: Any, number: int, waits: bool
) -> None:
    """The examples in the documentation of optimized locking."""
    interleaving = ModelInterleaving(server, "mssql", [_writes(2, Task.id == 1), _writes(3, second)], finely=False)
    interleaving.server.load(TASKS, [{"id": 1}])
    trace = interleaving.run(iter([0, 0, 1, 1]))
    assert interleaving.server.committed[TASKS][1]["number"] == number
    assert any("waits" in line for turn in trace for line in turn) is waits
