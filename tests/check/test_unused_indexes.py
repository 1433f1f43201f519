"""`check` reports indexes that claims cannot use."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.schema import DropIndex

from sqlqueue import verify_schema
from sqlqueue.dialects import adapter_for
from sqlqueue.sql import picks
from tests.check.checking import CLAIM, execute, findings, found, looked
from tests.support.check_models import Base, KeyedBase, Limited, Ordered, Post, Shared
from tests.support.harness import Database

LARGE = 10_000


@pytest.mark.requires("misleading_index")
def test_an_index_with_the_right_columns_in_the_wrong_form(healthy: Database) -> None:
    option = adapter_for(healthy.engine.dialect).inspection.predicate_option
    where = f" WHERE {CLAIM.dialect_kwargs[option]}" if option else ""
    execute(
        healthy,
        DropIndex(CLAIM),
        f"CREATE INDEX ix_checked_post_claim ON checked_post ({healthy.case.misleading_index}){where}",
    )
    with healthy.session_engine.connect() as connection:
        verify_schema(connection, Base)
    assert found(healthy) == {("error" if healthy.case.plans_empty_tables else "note", "index-not-used")}
    if not healthy.case.plans_empty_tables:
        healthy.insert(Post, [{} for _ in range(LARGE)])
        assert found(healthy) == {("error", "index-not-used")}


@pytest.mark.requires("analyze")
def test_a_planner_that_reads_a_small_table_as_a_whole(healthy: Database) -> None:
    healthy.insert(Post, [{} for _ in range(3)])
    execute(healthy, healthy.case.analyze.format(table="checked_post"))
    with healthy.session_engine.connect() as connection, connection.begin():
        before = _plan(connection)
        assert not before.indexes
        assert looked(connection) == []
        assert _plan(connection) == before, "settings of the transaction were changed"


@pytest.mark.requires("without_indexes")
def test_a_planner_that_reads_a_large_table_as_a_whole(healthy: Database) -> None:
    healthy.insert(Post, [{} for _ in range(LARGE)])
    execute(healthy, healthy.case.analyze.format(table="checked_post"))
    assert found(healthy) == set()
    misled = healthy.variant(on_connect=healthy.case.without_indexes)
    assert found(misled) == {("error", "index-not-used")}


@pytest.mark.requires("sql_modes")
def test_sessions_whose_sql_has_another_meaning(healthy: Database) -> None:
    healthy.insert(Post, [{} for _ in range(LARGE)])
    for mode in healthy.case.sql_modes:
        assert found(healthy.variant(connect_args=mode, isolation_level="READ COMMITTED")) == set(), mode


def _plan(connection: Connection) -> Any:
    adapter = adapter_for(connection.dialect)
    ready, _ = picks(Post.__queue_spec__, [], ())
    return adapter.inspection.plan(connection, adapter.rows.select_locking(ready(1), Post.__queue_spec__["status"]))


@pytest.mark.parametrize(
    ("model", "name", "former"),
    [
        (Shared, "ix_checked_shared_tenant_claim", "tenant, status, priority, available_at, id"),
        (Ordered, "ix_checked_ordered_order", "account, finished_at, id"),
    ],
)
def test_the_index_of_keys_in_another_order_of_columns(healthy: Database, model: Any, name: str, former: str) -> None:
    KeyedBase.metadata.create_all(healthy.engine)
    assert found(healthy, KeyedBase) == set()
    (index,) = (each for each in model.__table__.indexes if each.name == name)
    execute(healthy, DropIndex(index))
    assert found(healthy, KeyedBase) == {("error", "missing-index")}
    predicate = "finished_at IS NULL" if model is Ordered else "status = 'available'"
    where = f" WHERE {predicate}" if healthy.case.partial_indexes else ""
    execute(healthy, f"CREATE INDEX {name} ON {model.__tablename__} ({former}){where}")
    assert found(healthy, KeyedBase) == {("error", "wrong-index")}


@pytest.mark.requires("without_indexes")
@pytest.mark.parametrize(
    ("model", "column", "keys"), [(Shared, "tenant", "yz"), (Limited, "limit_key", "yz"), (Ordered, "account", (1, 2))]
)
def test_a_planner_that_reads_all_tasks_of_a_key(healthy: Database, model: Any, column: str, keys: Any) -> None:
    KeyedBase.metadata.create_all(healthy.engine)
    healthy.insert(model, [{column: key} for key in keys for _ in range(LARGE)])
    execute(healthy, healthy.case.analyze.format(table=model.__tablename__))
    assert found(healthy, model) == set()
    misled = healthy.variant(on_connect=healthy.case.without_indexes)
    texts = [finding.message for finding in findings(misled, model)]
    assert any(f"a claim of a key of {model.__tablename__} does not use the index" in text for text in texts)
    if model is not Ordered:  # of whose key, not even these settings make the planner use another index
        assert any(f"looks for the next key of {model.__tablename__} does not use the index" in text for text in texts)
