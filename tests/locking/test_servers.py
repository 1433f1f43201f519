"""Real servers behave like the models of locks, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from sqlalchemy import delete

from tests.locking.interleaving import DEADLOCK, ModelInterleaving
from tests.locking.models import BY_ENTRY, MODELS
from tests.locking.real_servers import ServerInterleaving
from tests.locking.scenarios import SCENARIOS, Scenario
from tests.support.harness import Database

PLAYS = 1


def by_model(db: Database, scenario: Scenario, turns: list[int], *, longest_first: bool = True) -> list[list[str]]:
    server = MODELS[db.case.name].server
    interleaving = ModelInterleaving(
        server, db.case.name, scenario.scripts(), finely=False, longest_first=longest_first
    )
    for model, rows in scenario.all_rows.items():
        interleaving.server.load(model.__table__, rows)
    return interleaving.run(iter(turns))


def by_server(db: Database, scenario: Scenario, turns: list[int]) -> list[list[str]]:
    for model, rows in scenario.all_rows.items():
        with db.engine.begin() as connection:
            connection.execute(delete(model))
        for row in rows:  # they may return different columns
            db.insert(model, [row])
    interleaving = ServerInterleaving(db, scenario.scripts())
    try:
        return interleaving.run(iter(turns))
    finally:
        interleaving.close()


@pytest.mark.requires("waits_sql")
@pytest.mark.parametrize("name", SCENARIOS)
def test_servers_behave_like_their_models(sync_db: Database, name: str) -> None:
    random = Random(name)
    for _ in range(PLAYS):
        turns = [random.randrange(3) for _ in range(60)]
        done = by_server(sync_db, SCENARIOS[name], turns)
        if done != by_model(sync_db, SCENARIOS[name], turns):
            # an engine may wake all transactions that wait for an insert of the same key at once
            assert done == by_model(sync_db, SCENARIOS[name], turns, longest_first=False)


@pytest.mark.requires("waits_sql")
@pytest.mark.parametrize("name", BY_ENTRY)
def test_deadlocks_of_the_model_happen_on_the_server(sync_db: Database, name: str) -> None:
    if name not in MODELS[sync_db.case.name].allowed:
        pytest.skip("the model finds no deadlock")
    turns = next(
        each for each in ways_to_take_turns(name) if by_model(sync_db, SCENARIOS[name], each)[-1] == [DEADLOCK]
    )
    assert by_server(sync_db, SCENARIOS[name], turns) == by_model(sync_db, SCENARIOS[name], turns)


def ways_to_take_turns(name: str) -> Iterator[list[int]]:
    random = Random(name)
    for _ in range(500):
        yield [random.randrange(3) for _ in range(60)]
