from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.locking.innodb import InnoDB, MariaDB
from tests.locking.judging import Promises
from tests.locking.oracle import Oracle, OracleThatJudgesAgain
from tests.locking.play import ModelStage
from tests.locking.postgresql import PostgreSQL
from tests.locking.scenes import SCENES, Scene
from tests.locking.server import Server
from tests.locking.sqlserver import SQLServer, SQLServerThatKeepsEntries

MODELS: dict[str, tuple[type[Server], str]] = {
    "postgresql": (PostgreSQL, "postgresql"),
    "mysql": (InnoDB, "mysql"),
    "mariadb": (MariaDB, "mariadb"),
    "mssql": (SQLServer, "mssql"),
    "mssql, entries kept": (SQLServerThatKeepsEntries, "mssql"),
    "oracle": (Oracle, "oracle"),
    "oracle, judged again": (OracleThatJudgesAgain, "oracle"),
}
TURNS = st.lists(st.integers(0, 2), max_size=60)


def play(model: type[Server], dialect: str, scene: Scene, turns: Sequence[int]) -> None:
    stage = ModelStage(model, dialect, scene.scripts())
    stage.server.load(scene.model.__table__, scene.rows)
    stage.judge = Promises(stage.server, scene.model.__table__)
    stage.run(iter(turns))


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("model", MODELS)
def test_promises_are_kept(model: str, name: str) -> None:
    @settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(TURNS)
    def check(turns: list[int]) -> None:
        play(*MODELS[model], SCENES[name], turns)

    check()
