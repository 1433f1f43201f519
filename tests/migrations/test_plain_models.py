"""Plain autogenerate when a model becomes a queue or ceases to be one, and in a schema."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.schema import CreateSchema, DropSchema

from sqlqueue import FlowMixin, QueueMixin, TopicMixin
from tests.migrations import plain
from tests.migrations.conftest import MakeProject
from tests.migrations.definitions import definitions, table_names
from tests.support.harness import Database

ROWS = [{"id": number, "cargo": f"no. {number}", "weight": -number} for number in range(1, 4)]


@pytest.fixture(
    params=[
        pytest.param(False, id="plain", marks=pytest.mark.requires("adds_any_column")),
        pytest.param(True, id="batch"),
    ]
)
def batch(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.requires("drops_any_column")
def test_without_the_mixin_only_its_columns_and_indexes_go(
    sync_db: Database, project: MakeProject, batch: bool
) -> None:
    queue, model = plain.shipment(TopicMixin), plain.shipment()
    here = project(queue.metadata, options={"render_as_batch": batch})
    here.migrate("queue")
    with sync_db.engine.begin() as connection:
        connection.execute(insert(queue), ROWS)
    as_queue = definitions(sync_db, queue.metadata)

    there = here.using(model.metadata)
    revision = there.revise("no queue")
    assert "sqlqueue" not in revision.read_text()
    there.upgrade()
    there.check()
    with sync_db.engine.connect() as connection:
        assert connection.execute(select(model).order_by("id")).mappings().all() == ROWS
    by_migration = definitions(sync_db, model.metadata)

    here.downgrade("-1")
    assert _alike(sync_db, definitions(sync_db, queue.metadata)) == _alike(sync_db, as_queue)
    with sync_db.begin() as session:
        assert [task.id for task in session.claim_many(queue, limit=5)] == [1, 2, 3]

    here.downgrade()
    model.metadata.create_all(sync_db.engine)
    assert definitions(sync_db, model.metadata) == by_migration


@pytest.mark.requires("drops_any_column")
def test_a_queue_in_use_gets_batches_and_loses_them(sync_db: Database, project: MakeProject) -> None:
    queue, flow = plain.shipment(QueueMixin), plain.shipment(FlowMixin)
    here = project(queue.metadata, plugin=True)
    here.migrate("queue")
    with sync_db.engine.begin() as connection:
        connection.execute(insert(queue), ROWS)
    as_queue = definitions(sync_db, queue.metadata)

    there = here.using(flow.metadata)
    there.revise("batches")
    there.upgrade()
    there.check()
    by_migration = definitions(sync_db, flow.metadata)
    with sync_db.begin() as session:
        assert [task.id for task in session.claim_many(flow, limit=5)] == [1, 2, 3]
    sync_db.execute(update(flow).where(flow.id == 2).values(status="waiting", waits_for="a"))

    here.downgrade("-1")
    with sync_db.engine.connect() as connection:
        rows = {row.id: row for row in connection.execute(select(queue))}
    assert [rows[number].status for number in (1, 2, 3)] == ["running", "cancelled", "running"]
    assert rows[2].finished_at is not None
    assert _alike(sync_db, definitions(sync_db, queue.metadata)) == _alike(sync_db, as_queue)
    here.downgrade()
    flow.metadata.create_all(sync_db.engine)
    assert _alike(sync_db, definitions(sync_db, flow.metadata)) == _alike(sync_db, by_migration)


def _alike(db: Database, found: dict[str, list[str]]) -> list[str]:
    """Return the parts of a definition that Alembic reflects and can therefore restore."""
    lines = sorted(re.sub(r"::(character varying|text)(\[\])?|[()]", "", line) for line in found["plain_shipment"])
    return lines if db.case.reflects_descending else [line.replace(" DESC", "") for line in lines]


@pytest.mark.requires("schemas")
def test_a_table_in_a_schema(sync_db: Database, project: MakeProject) -> None:
    schema = "plain_schema"
    queue = plain.shipment(TopicMixin, schema=schema)
    here = project(queue.metadata, options={"include_schemas": True})
    with sync_db.engine.begin() as connection:
        connection.execute(CreateSchema(schema))
    try:
        here.migrate()
        here.check()
        by_migration = definitions(sync_db, queue.metadata)
        with sync_db.begin() as session:
            session.enqueue(queue, ROWS)
            session.complete(session.claim(queue))
        here.downgrade()
        assert not table_names(sync_db, schema)
        queue.metadata.create_all(sync_db.engine)
        assert by_migration == definitions(sync_db, queue.metadata)
    finally:
        here.drop()
        with sync_db.engine.begin() as connection:
            connection.execute(DropSchema(schema))
