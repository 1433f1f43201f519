"""Every tested interleaving keeps the library's guarantees, on a model of each engine. With earlier, incorrect
statements it does not: the model detects the violation.
"""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.locking.former_statements import OracleWithFormerBlock, former
from tests.locking.guarantees import (
    ClaimedTwice,
    Deadlock,
    FindsTooLittle,
    Guarantees,
    LocksTooMuch,
    TakesWrongly,
    Violation,
    Waits,
    WaitsForUnconcerned,
)
from tests.locking.innodb import InnoDB, MariaDB
from tests.locking.interleaving import ModelInterleaving
from tests.locking.models import BY_ANOTHER_WAY, MODELS, NEVER_WAITING, NO_ROW_VERSIONS, VIOLATED
from tests.locking.oracle import Oracle, OracleThatJudgesAgain
from tests.locking.scenarios import SCENARIOS
from tests.locking.server import Server
from tests.locking.sqlserver import SQLServer, SQLServerWithoutRowVersions
from tests.locking.wrong_statements import WRONG

FORMER: list[tuple[type[Server], str, str, type[Violation]]] = [
    # an entry stays locked although others hold its row
    *[(InnoDB, "mysql", name, error) for name, error in BY_ANOTHER_WAY.items()],
    *[(MariaDB, "mariadb", name, error) for name, error in BY_ANOTHER_WAY.items()],
    # a SELECT of keys alone locks index entries and not the rows: statements with another access path do not see the
    # lock
    (SQLServer, "mssql", "ways in, locks", ClaimedTwice),
    (SQLServer, "mssql", "twice, locks", ClaimedTwice),
    # loading the claimed rows scans a small table, including rows of another claimer that does the same
    *[(SQLServerWithoutRowVersions, "mssql", name, Deadlock) for name in ("leases", "ways in", "heartbeat")],
    # the index is locked while it is read, and the criterion is evaluated too late
    (SQLServer, "mssql", "criteria", LocksTooMuch),
    # a change by criterion waits for every locked row that it reads
    (SQLServer, "mssql", "sets", WaitsForUnconcerned),
    # the only candidate is locked by another transaction
    (Oracle, "oracle", "limits", FindsTooLittle),
    (OracleThatJudgesAgain, "oracle", "limits", FindsTooLittle),
    # a row found at OPEN has been completed or has changed by the time it is locked
    (OracleWithFormerBlock, "oracle", "locks", TakesWrongly),
    (OracleWithFormerBlock, "oracle", "stages", TakesWrongly),
]
MISSING_PARTS: list[tuple[str, str, str, type[Violation]]] = [
    # promoting, postponing, fair claims and claims of recurring tasks do not wait
    *[("WaitingSQLServer", "mssql", name, Waits) for name in ("promoting", "postponing", "recurring", "turns")],
    *[("WaitingOracle", "oracle", name, Waits) for name in ("promoting", "two columns", "messages", "messages, kept")],
    *[("WaitingPostgreSQL", "postgresql", name, Waits) for name in ("promoting", "turns", "messages")],
    *[("WaitingMySQL", "mysql", name, Waits) for name in ("postponing", "two columns", "recurring", "messages, kept")],
    # changes to sets, and enqueueing again, wait only for their own rows
    *[("ScanningSQLServer", "mssql", name, WaitsForUnconcerned) for name in ("pruning", "redriving", "rescuing")],
    *[("ScanningSQLServer", "mssql", f"{how} by primary key", WaitsForUnconcerned) for how in ("replace", "rerun")],
    *[("ScanningSQLServer", "mssql", f"{how} by unique key", WaitsForUnconcerned) for how in ("replace", "rerun")],
    *[("ScanningSQLServer", "mssql", f"{how} by both keys", WaitsForUnconcerned) for how in ("replace", "rerun")],
    # a row that is selected by key but cannot be claimed stays locked
    ("ConstantMySQL", "mysql", "ways in, locks", LocksTooMuch),
    # one locks the key before the row, the other the row before the key
    ("UnlockedKeysMySQL", "mysql", "ignore by unique key", Deadlock),
]
PLAYS = 2
"""The number of interleavings of each scenario."""
SEEDS = range(20)
"""The number of interleavings within which a violation must be found."""


def play(server: type[Server], dialect: str, name: str, seed: int, *, finely: bool, may_wait: bool = False) -> None:
    """Run one interleaving; a violated guarantee raises an error."""
    scenario = SCENARIOS[name]
    interleaving = ModelInterleaving(server, dialect, scenario.scripts(), finely=finely)
    for model, rows in scenario.all_rows.items():
        interleaving.server.load(model.__table__, rows)
    interleaving.checker = Guarantees(interleaving.server, scenario.model.__table__, scenario.line, may_wait=may_wait)
    interleaving.run(iter(Random(seed).choices((0, 1, 2), k=200)))


def play_until(error: type[Violation], server: type[Server], dialect: str, name: str) -> None:
    """Try one interleaving after another until this guarantee is violated."""
    for seed, finely in product(SEEDS, (False, True)):
        try:
            play(server, dialect, name, seed, finely=finely)
        except Violation as violation:
            if isinstance(violation, error):
                raise


KEPT = [
    pytest.param(model, name, id=f"{model}-{name}")
    for model, name in product(MODELS, SCENARIOS)
    if name not in VIOLATED.get(model, ())
]


# Threads left by earlier tests draw random numbers too, which hypothesis cannot distinguish from a strategy's.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize(("model", "name"), KEPT)
@settings(
    max_examples=PLAYS,
    phases=[Phase.generate],  # shrinking could only reorder turns, which does not make the example simpler
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), finely=st.booleans())
def test_all_guarantees_hold(model: str, name: str, seed: int, finely: bool) -> None:
    may_wait = model == NO_ROW_VERSIONS and name not in NEVER_WAITING
    play(*MODELS[model], name, seed, finely=finely, may_wait=may_wait)


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, names in VIOLATED.items() for name in names])
def test_violated_guarantees_of_the_models_are_detected(model: str, name: str) -> None:
    with pytest.raises(VIOLATED[model][name]):
        play_until(VIOLATED[model][name], *MODELS[model], name)


@pytest.mark.parametrize(("server", "dialect", "name", "error"), FORMER)
def test_former_statements_are_refuted(server: type[Server], dialect: str, name: str, error: type[Violation]) -> None:
    with former(dialect), pytest.raises(error):
        play_until(error, server, dialect, name)


@pytest.mark.parametrize(("adapter", "dialect", "name", "error"), MISSING_PARTS)
def test_careless_statements_are_refuted(adapter: str, dialect: str, name: str, error: type[Violation]) -> None:
    with former(dialect, WRONG[adapter]), pytest.raises(error):
        play_until(error, MODELS[dialect][0], dialect, name)


@pytest.mark.parametrize("name", ["leases", "heartbeat"])
def test_without_row_versions_claims_wait_for_writers(name: str) -> None:
    with pytest.raises(Waits):
        play_until(Waits, *MODELS[NO_ROW_VERSIONS], name)
