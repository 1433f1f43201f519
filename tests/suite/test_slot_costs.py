"""A claim of many limited keys takes as few statements as one of few keys."""

from __future__ import annotations

import pytest

from tests.suite.limited import visits
from tests.suite.slots import MANY, claim, held, sent
from tests.support.harness import Database
from tests.support.models import Visit


@pytest.mark.parametrize("limit", [MANY, 3 * MANY])
@pytest.mark.parametrize("known", [0, MANY // 2, MANY])
def test_many_keys_cost_a_claim_few_statements(db: Database, known: int, limit: int) -> None:
    keys = [f"{number:03}" for number in range(MANY)]
    visits(db, *keys[:known])
    assert len(claim(db)) == known
    visits(db, *keys)
    with db.session() as actor:
        assert actor.find(Visit, Visit.id < 0) == []  # it has its connection
        actor.rollback()
        with sent() as cost:
            assert len(actor.claim_many(Visit, limit=limit)) == MANY
        actor.commit()
    assert cost["statements"] <= 12
    assert cost["connections"] <= (known < MANY)
    assert len(db.session().limits(Visit)) == MANY
    assert held(db) == MANY + known


def test_full_and_closed_keys_cost_a_claim_few_statements(db: Database) -> None:
    full, closed, draining = ([f"{kind} {n}" for n in range(20)] for kind in ("full", "closed", "draining"))
    visits(db, *full, *full, *draining, *draining)
    assert len(claim(db)) == 80
    with db.begin() as actor:
        for key in closed:
            actor.set_limit(Visit, key, 0)
        for key in draining:
            actor.set_limit(Visit, key, 1)
    visits(db, *(full + closed + draining) * 3, *"abc", None)
    with db.session() as actor:
        assert actor.find(Visit, Visit.id < 0) == []
        actor.rollback()
        with sent() as cost:
            assert [task.limit_key for task in actor.claim_many(Visit, limit=MANY)] == ["a", "b", "c", None]
        actor.rollback()
    assert cost["statements"] <= 12
    assert cost["connections"] <= 1
