"""Plain autogenerate when a model becomes a queue or ceases to be one, and in a schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update
from sqlalchemy.schema import CreateSchema, DropSchema

from sqlqueue import ExpiryMixin, FlowMixin, QueueMixin, StepMixin, Steps, TopicMixin, Worker, check
from sqlqueue.testing import drain
from tests.migrations import plain
from tests.migrations.conftest import MakeProject
from tests.migrations.definitions import definitions, table_names
from tests.support.harness import Database
from tests.support.workers import POLL, Workers, eventually

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
@pytest.mark.parametrize("mixins", [(), (QueueMixin,)], ids=["table", "queue"])
def test_a_table_in_use_gets_batches_steps_and_expiry_and_loses_them(
    sync_db: Database, project: MakeProject, mixins: tuple[type[Any], ...]
) -> None:
    former, flow = plain.shipment(*mixins), plain.shipment(FlowMixin, StepMixin, ExpiryMixin)
    here = project(former.metadata, plugin=True)
    here.migrate("former")
    with sync_db.engine.begin() as connection:
        connection.execute(insert(former), ROWS)
    before = definitions(sync_db, former.metadata)

    there = here.using(flow.metadata)
    there.migrate("batches")
    there.check()
    by_migration = definitions(sync_db, flow.metadata)
    with sync_db.begin() as session:
        ids = [task.id for task in session.claim_many(flow, limit=5)]
        assert ids == ([1, 2, 3] if mixins else []), "rows that are no tasks are not claimed"
    with sync_db.begin() as session, session.batch("import") as batch:
        first = batch.add(flow(id=4, cargo="", weight=0))
        batch.add(flow(id=5, cargo="", weight=0), after=first)
    with sync_db.begin() as session:
        session.enqueue(flow(id=6, cargo="", weight=0), expires=timedelta(hours=1))
    worker = Worker(sync_db.sessions())

    @worker.handler(flow, flow.id.in_([4, 6]))
    def run(steps: Steps, task: Any) -> None:
        steps.run("pack", lambda: "packed")

    assert drain(worker) == {"completed": 2}
    assert sync_db.committed.progress(flow, "import").unfinished == 1
    sync_db.execute(update(flow).where(flow.id == 5).values(status="waiting"))

    here.downgrade("-1")
    statuses = {1: "running", 2: "running", 3: "running", 4: "completed", 5: "cancelled", 6: "completed"}
    with sync_db.engine.connect() as connection:
        rows = {row.id: row for row in connection.execute(select(former.__table__).order_by("id"))}
    assert [*rows] == [*statuses]
    if mixins:
        assert {number: row.status for number, row in rows.items()} == statuses
        assert rows[5].finished_at is not None
    assert _alike(sync_db, definitions(sync_db, former.metadata)) == _alike(sync_db, before)
    here.upgrade()
    there.check()
    if mixins:  # without a downgrade, by a revision that drops them
        with sync_db.begin() as session:
            session.enqueue(flow(id=7, cargo="", weight=0), after="event")
        here.migrate("no batches")
        here.check()
        with sync_db.engine.connect() as connection:
            ended = connection.execute(select(former.status, former.finished_at).where(former.id == 7)).one()
        assert ended.status == "cancelled"
        assert ended.finished_at is not None
    here.downgrade()
    flow.metadata.create_all(sync_db.engine)
    created = definitions(sync_db, flow.metadata)
    for table in by_migration:
        assert _alike(sync_db, created, table) == _alike(sync_db, by_migration, table)


@pytest.mark.requires("drops_any_column")
def test_what_batches_steps_and_expiry_need_is_repaired(sync_db: Database, project: MakeProject) -> None:
    flow = plain.shipment(FlowMixin, StepMixin, ExpiryMixin)
    here = project(flow.metadata, plugin=True)
    here.migrate()
    tables = flow.metadata.tables
    with sync_db.engine.begin() as connection:
        for table, index in [
            ("plain_shipment", "ix_plain_shipment_reports"),
            ("plain_shipment", "ix_plain_shipment_waits"),
            ("plain_latch", "ix_plain_latch_opened"),
        ]:
            next(each for each in tables[table].indexes if each.name == index).drop(connection)
        for table, column in [
            ("plain_shipment", "steps"),
            ("plain_shipment", "expires_at"),
            ("plain_latch", "payload"),
        ]:
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
    with sync_db.engine.connect() as connection:
        found = {each.message for each in check(connection, flow.metadata) if each.code.startswith("missing")}
    assert found == {
        "plain_shipment has no columns steps, expires_at, nor the indexes ix_plain_shipment_waits,"
        " ix_plain_shipment_reports",
        "plain_latch has no column payload",
        "the index ix_plain_latch_opened of plain_latch is missing",
    }
    here.migrate("repair")
    here.check()
    with sync_db.engine.connect() as connection:
        assert not [each for each in check(connection, flow.metadata) if each.code.startswith("missing")]


@pytest.fixture
def workers(sync_db: Database) -> Iterator[Workers]:
    staff = Workers(sync_db)
    yield staff
    staff.end_test()


RENAMED = ("waits_for", "waits_when", "reports_to", "steps", "expires_at", "finished_at")


@pytest.mark.requires("drops_any_column")
def test_renamed_columns_of_batches_steps_and_expiry_keep_their_data(
    sync_db: Database, project: MakeProject, workers: Workers
) -> None:
    """Twice, the second time from names that tell nothing, while a worker runs."""
    mixins = FlowMixin, StepMixin, ExpiryMixin
    models = [
        plain.shipment(*mixins, names={role: f"{role}_{letter}" if letter else role for role in RENAMED})
        for letter in ("", "a", "b")
    ]
    here = project(models[0].metadata, plugin=True)
    here.migrate()

    def run(steps: Steps, task: Any) -> None:
        steps.run("pack", lambda: task.cargo)

    def work(model: Any, key: str) -> None:
        with sync_db.begin() as session, session.batch(key) as batch:
            first = batch.add(model(cargo=key, weight=0))
            batch.then(model(cargo="then", weight=0))
            batch.add(model(cargo="next", weight=0), after=first)
            session.enqueue(model(cargo="late", weight=0), expires=timedelta(hours=1))
        with workers.serve(model, run, poll=POLL):
            eventually(lambda: not unfinished(model))

    def unfinished(model: Any) -> int:
        with sync_db.session() as session:
            return int(session.scalar(select(func.count()).where(model.__queue_spec__["finished_at"].is_(None))))

    def stored(model: Any) -> list[Any]:
        spec = model.__queue_spec__
        with sync_db.engine.connect() as connection:
            columns = [spec[role] for role in ("status", *RENAMED)]
            return [*map(tuple, connection.execute(select(*columns).order_by(model.id)))]

    for number, model in enumerate(models):
        if number:
            before = stored(models[number - 1])
            with workers.serve(models[number - 1], run, poll=POLL):
                there = here.using(model.metadata)
                there.migrate(f"names {number}")
            there.check()
            assert stored(model) == before
        work(model, f"batch {number}")
        assert sync_db.committed.progress(model, "batch 0").completed == 2
    by_migration = definitions(sync_db, models[-1].metadata)
    before = stored(models[-1])
    here.downgrade("-2")
    assert stored(models[0]) == before
    work(models[0], "again")
    here.downgrade()
    models[-1].metadata.create_all(sync_db.engine)
    created = definitions(sync_db, models[-1].metadata)
    assert _alike(sync_db, created) == _alike(sync_db, by_migration)


def _alike(db: Database, found: dict[str, list[str]], table: str = "plain_shipment") -> list[str]:
    """Return the parts of a definition that Alembic reflects and can therefore restore."""
    lines = sorted(re.sub(r"::(character varying|text)(\[\])?|[()]", "", line) for line in found[table])
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
