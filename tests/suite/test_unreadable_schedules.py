"""An unreadable schedule ends only its own task."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, select

from sqlqueue import claim_of
from tests.support.harness import Database
from tests.support.models import Ping, Report
from tests.support.rows import end_leases, row_of


@pytest.mark.parametrize("model", [Report, Ping])
def test_an_unreadable_schedule_ends_only_its_own_task(db: Database, model: Any) -> None:
    with db.engine.begin() as connection:  # as any program can
        connection.execute(insert(model), [{"id": 1, "schedule": "now and then"}, {"id": 2, "schedule": "PT60S"}])
    with db.begin() as actor:
        claims = [claim_of(task) for task in actor.claim_many(model, limit=2)]
        assert {claim.identity for claim in claims} >= {(1,)}
        actor.complete(claims)
    with db.begin() as actor:
        found = dict(actor.run(lambda session: session.execute(select(model.id, model.status)).all()))
    assert found == {2: "scheduled"} | ({} if model.__queue__.on_complete == "delete" else {1: "completed"})


def test_a_crashed_task_without_a_readable_schedule_is_rescued(db: Database) -> None:
    with db.engine.begin() as connection:
        connection.execute(insert(Report), [{"id": 1, "schedule": "now and then", "max_attempts": 1}])
    with db.begin() as actor:
        claim = claim_of(actor.claim(Report))
    end_leases(db, Report)
    with db.begin() as actor:
        assert actor.rescue(Report) == 1
    assert row_of(db, claim)["status"] == "discarded"
