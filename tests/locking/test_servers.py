"""Real servers behave like the models of locks, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from sqlalchemy import delete

from tests.locking.innodb import InnoDB, MariaDB
from tests.locking.play import DEADLOCK, ModelStage
from tests.locking.postgresql import PostgreSQL
from tests.locking.real import ServerStage
from tests.locking.scenes import SCENES
from tests.locking.steps import Scene
from tests.locking.test_model import BY_ENTRY, NOT_KEPT
from tests.support.harness import Database

MODELS = {"postgresql": PostgreSQL, "mysql": InnoDB, "mariadb": MariaDB}
PLAYS = 2


def by_model(db: Database, scene: Scene, turns: list[int], *, longest_first: bool = True) -> list[list[str]]:
    scripts = scene.scripts()
    stage = ModelStage(MODELS[db.case.name], db.case.name, scripts, finely=False, longest_first=longest_first)
    for model, rows in scene.all_rows.items():
        stage.server.load(model.__table__, rows)
    return stage.run(iter(turns))


def by_server(db: Database, scene: Scene, turns: list[int]) -> list[list[str]]:
    for model, rows in scene.all_rows.items():
        with db.engine.begin() as connection:
            connection.execute(delete(model))
        for row in rows:  # which need not give the same columns
            db.insert(model, [row])
    stage = ServerStage(db, scene.scripts())
    try:
        return stage.run(iter(turns))
    finally:
        stage.close()


@pytest.mark.requires("waits_sql")
@pytest.mark.parametrize("name", SCENES)
def test_servers_behave_like_their_models(sync_db: Database, name: str) -> None:
    random = Random(name)
    for _ in range(PLAYS):
        turns = [random.randrange(3) for _ in range(60)]
        done = by_server(sync_db, SCENES[name], turns)
        if done != by_model(sync_db, SCENES[name], turns):
            # an engine may wake all at once that wait for an insert of the same key
            assert done == by_model(sync_db, SCENES[name], turns, longest_first=False)


@pytest.mark.requires("waits_sql")
@pytest.mark.parametrize("name", BY_ENTRY)
def test_deadlocks_of_the_model_happen_on_the_server(sync_db: Database, name: str) -> None:
    if name not in NOT_KEPT.get(sync_db.case.name, ()):
        pytest.skip("the model finds no deadlock")
    turns = next(each for each in ways_to_take_turns(name) if by_model(sync_db, SCENES[name], each)[-1] == [DEADLOCK])
    assert by_server(sync_db, SCENES[name], turns) == by_model(sync_db, SCENES[name], turns)


def ways_to_take_turns(name: str) -> Iterator[list[int]]:
    random = Random(name)
    for _ in range(500):
        yield [random.randrange(3) for _ in range(60)]
