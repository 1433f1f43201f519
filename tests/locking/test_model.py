"""Every way to interleave that is tried keeps the library's promises, on a model of each engine.

With statements as they once were it does not: the model finds what was wrong with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.locking.careless import CARELESS
from tests.locking.formerly import OracleWithFormerBlock, former
from tests.locking.innodb import InnoDB, MariaDB
from tests.locking.judging import (
    Broken,
    ClaimedTwice,
    Deadlock,
    FindsTooLittle,
    LocksTooMuch,
    Promises,
    TakesWrongly,
    Waits,
    WaitsForUnconcerned,
)
from tests.locking.oracle import Oracle, OracleThatJudgesAgain
from tests.locking.play import ModelStage
from tests.locking.postgresql import PostgreSQL
from tests.locking.scenes import SCENES
from tests.locking.server import Server
from tests.locking.sqlserver import SQLServer, SQLServerThatKeepsEntries, SQLServerWithoutRowVersions

MODELS: dict[str, tuple[type[Server], str]] = {
    "postgresql": (PostgreSQL, "postgresql"),
    "mysql": (InnoDB, "mysql"),
    "mariadb": (MariaDB, "mariadb"),
    "mssql": (SQLServer, "mssql"),
    "mssql, entries kept": (SQLServerThatKeepsEntries, "mssql"),
    "oracle": (Oracle, "oracle"),
    "oracle, judged again": (OracleThatJudgesAgain, "oracle"),
}
BY_ENTRY: dict[str, type[Broken]] = {"replace by unique key": Deadlock, "rerun by unique key": Deadlock}
"""A task that is inserted while another transaction is about to insert the same key, and then claimed and completed:
who completes it has its row and wants the entry of its key, whose lock the INSERT has got and kept, on its way to the
row.  An INSERT without ON DUPLICATE KEY would do the same; no statement of InnoDB asks for the row first.  The real
servers do it too: see :mod:`tests.locking.test_servers`."""
BY_ANOTHER_WAY: dict[str, type[Broken]] = {
    "ways in": Waits,
    "twice": Waits,
    "twice, locks": Deadlock,
    "criteria": Waits,
    "limits": Waits,
}
"""A claim that goes by an index keeps the entries of rows that others have locked by another way; those wait for it as
soon as they write."""
NOT_KEPT: Mapping[str, Mapping[str, type[Broken]]] = {
    "mysql": BY_ENTRY,
    "mariadb": BY_ENTRY,
    # if it does so, of which nothing is documented
    "mssql, entries kept": BY_ANOTHER_WAY,
}
FORMERLY: list[tuple[type[Server], str, str, type[Broken]]] = [
    # an entry stays locked whose row others have
    *[(InnoDB, "mysql", name, error) for name, error in BY_ANOTHER_WAY.items()],
    *[(MariaDB, "mariadb", name, error) for name, error in BY_ANOTHER_WAY.items()],
    # a SELECT of keys alone locks index entries and not the rows: a statement by another access path does not see it
    (SQLServer, "mssql", "ways in, locks", ClaimedTwice),
    (SQLServer, "mssql", "twice, locks", ClaimedTwice),
    # what only reads waits for the handler's row, and all other leases with it; and claims wait for claims
    (SQLServerWithoutRowVersions, "mssql", "heartbeat", Waits),
    (SQLServerWithoutRowVersions, "mssql", "leases", Waits),
    # the index is locked as it is read, the criterion judged too late
    (SQLServer, "mssql", "criteria", LocksTooMuch),
    # a set that changes by its criterion waits for all that is locked on the way
    (SQLServer, "mssql", "sets", WaitsForUnconcerned),
    # the one candidate is the one that another has locked
    (Oracle, "oracle", "limits", FindsTooLittle),
    (OracleThatJudgesAgain, "oracle", "limits", FindsTooLittle),
    # what was found at OPEN has been done, or has moved on, by the time that it is locked
    (OracleWithFormerBlock, "oracle", "locks", TakesWrongly),
    (OracleWithFormerBlock, "oracle", "stages", TakesWrongly),
]
CAREFUL: list[tuple[str, str, str, type[Broken]]] = [
    # promoting, postponing, fair claims and claims of recurring tasks wait for none
    *[("WaitingSQLServer", "mssql", name, Waits) for name in ("promoting", "postponing", "recurring", "turns")],
    *[("WaitingOracle", "oracle", name, Waits) for name in ("promoting", "two columns", "messages", "messages, kept")],
    *[("WaitingPostgreSQL", "postgresql", name, Waits) for name in ("promoting", "turns", "messages")],
    *[("WaitingMySQL", "mysql", name, Waits) for name in ("postponing", "two columns", "recurring", "messages, kept")],
    # sets, and rows that are enqueued again, wait for their own rows alone
    *[("ScanningSQLServer", "mssql", name, WaitsForUnconcerned) for name in ("pruning", "redriving", "rescuing")],
    *[("ScanningSQLServer", "mssql", f"{how} by primary key", WaitsForUnconcerned) for how in ("replace", "rerun")],
    *[("ScanningSQLServer", "mssql", f"{how} by unique key", WaitsForUnconcerned) for how in ("replace", "rerun")],
    *[("ScanningSQLServer", "mssql", f"{how} by both keys", WaitsForUnconcerned) for how in ("replace", "rerun")],
    # a row that is claimed by its key, and cannot be claimed, stays locked
    ("ConstantMySQL", "mysql", "ways in, locks", LocksTooMuch),
    # the key before the row, the row before the key
    ("UnlockedKeysMySQL", "mysql", "ignore by unique key", Deadlock),
]
PLAYS = 5
"""Ways in which each scene is played."""
SEEDS = range(20)
"""In so many ways at most, what is wrong shows."""


def play(server: type[Server], dialect: str, name: str, seed: int, *, finely: bool) -> None:
    """Play one interleaving; a violated guarantee raises an error."""
    scene = SCENES[name]
    stage = ModelStage(server, dialect, scene.scripts(), finely=finely)
    for model, rows in scene.all_rows.items():
        stage.server.load(model.__table__, rows)
    stage.judge = Promises(stage.server, scene.model.__table__, scene.line)
    stage.run(iter(Random(seed).choices((0, 1, 2), k=200)))


def play_until(error: type[Broken], server: type[Server], dialect: str, name: str) -> None:
    """Try one interleaving after another until this guarantee is violated."""
    for seed, finely in product(SEEDS, (False, True)):
        try:
            play(server, dialect, name, seed, finely=finely)
        except Broken as broken:
            if isinstance(broken, error):
                raise


KEPT = [
    pytest.param(model, name, id=f"{model}-{name}")
    for model, name in product(MODELS, SCENES)
    if name not in NOT_KEPT.get(model, ())
]


@pytest.mark.parametrize(("model", "name"), KEPT)
@settings(
    max_examples=PLAYS,
    phases=[Phase.generate],  # the order of turns is all that could be made simpler, and it is no simpler for that
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), finely=st.booleans())
def test_all_guarantees_hold(model: str, name: str, seed: int, finely: bool) -> None:
    play(*MODELS[model], name, seed, finely=finely)


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, names in NOT_KEPT.items() for name in names])
def test_violated_guarantees_of_the_models_are_detected(model: str, name: str) -> None:
    with pytest.raises(NOT_KEPT[model][name]):
        play_until(NOT_KEPT[model][name], *MODELS[model], name)


@pytest.mark.parametrize(("server", "dialect", "name", "error"), FORMERLY)
def test_former_statements_are_refuted(server: type[Server], dialect: str, name: str, error: type[Broken]) -> None:
    with former(dialect), pytest.raises(error):
        play_until(error, server, dialect, name)


@pytest.mark.parametrize(("adapter", "dialect", "name", "error"), CAREFUL)
def test_careless_statements_are_refuted(adapter: str, dialect: str, name: str, error: type[Broken]) -> None:
    with former(dialect, CARELESS[adapter]), pytest.raises(error):
        play_until(error, MODELS[dialect][0], dialect, name)
