# ruff: noqa: F811 - a fixture is a parameter of its name
"""A worker whose engine has a `schema_translate_map`: claims, heartbeats, notifications, and checks at its start."""

from __future__ import annotations

from typing import Any

import pytest

from sqlqueue import SchemaMismatchError
from tests.suite.test_schemas import Guest, Parking, Tenants, tables  # noqa: F401  (a fixture)
from tests.support.harness import Database
from tests.support.workers import LEASE, BlockingHandler, Workers, eventually, without_session


def test_a_worker_runs_in_a_translated_schema(db: Database, tables: dict[str, Any], workers: Workers) -> None:
    variant = db.variant(execution_options=tables)
    worker = workers.make(engine=db.variant(execution_options=tables, pool_size=20), notify=True)
    blocking = BlockingHandler()
    worker.handler(Guest, concurrency=3, lease=LEASE)(without_session(db, blocking))
    workers.start(worker)
    with variant.begin() as actor:
        actor.enqueue(Guest, [{"limit_key": "new"}, {"limit_key": "new"}, {"limit_key": "newer"}])
    blocking.wait_for(3)

    def extended() -> bool:
        with variant.begin() as actor:
            return all(each.available_at > each.claimed_at + LEASE for each in actor.find(Guest))

    eventually(extended)
    blocking.release()

    def completed() -> bool:
        with variant.begin() as actor:
            return {each.status for each in actor.find(Guest)} == {"completed"}

    eventually(completed)


def test_a_worker_does_not_start_without_the_tables(
    db: Database,
    tables: dict[str, Any],
    workers: Workers,
) -> None:
    variant = db.variant(execution_options=tables)
    Tenants.metadata.drop_all(db.engine.execution_options(**tables))
    worker = workers.make(engine=variant)
    worker.handler(Parking)(without_session(db))
    with pytest.raises(SchemaMismatchError):
        workers.start(worker).wait()
