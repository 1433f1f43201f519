"""Every way to interleave that is tried keeps the library's promises, on a model of each engine.

With statements as they once were it does not: the model finds what was wrong with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.locking.formerly import FORMER, OracleWithFormerBlock, former
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
    "mssql, no row versions": (SQLServerWithoutRowVersions, "mssql"),
    "oracle": (Oracle, "oracle"),
    "oracle, former block": (OracleWithFormerBlock, "oracle"),
    "oracle, judged again": (OracleThatJudgesAgain, "oracle"),
}

def check(model: str, scene: str, *, examples: int) -> None:
    """Play a scene in many ways; the first promise that is broken is raised."""
    server, dialect = MODELS[model]

    @settings(
        max_examples=examples,
        phases=[Phase.generate],  # the one that fails is short enough
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.integers(0, 2), max_size=60))
    def play(turns: Sequence[int]) -> None:
        stage = ModelStage(server, dialect, SCENES[scene].scripts())
        for each, rows in SCENES[scene].all_rows.items():
            stage.server.load(each.__table__, rows)
        stage.judge = Promises(stage.server, SCENES[scene].model.__table__)
        stage.run(iter(turns))

    play()


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("model", MODELS)
def test_promises_are_kept(model: str, scene: str) -> None:
    check(model, scene, examples=20)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("model", [name for name, (_, dialect) in MODELS.items() if dialect in FORMER])
def test_former(model: str, scene: str) -> None:
    with former(MODELS[model][1]):
        check(model, scene, examples=20)
