"""Workers start what waits for the ends of other tasks, also if the process that ended these has died since."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, String, delete, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateColumn

from sqlqueue import Discard, FlowMixin, LatchMixin, QueueMixin, QueueSession
from sqlqueue.sql import utcnow
from sqlqueue.worker import registration
from tests.suite.test_flows import ends, later
from tests.support.flows import Latch, Note, Page, flow
from tests.support.harness import Database
from tests.support.workers import LONG, Workers, eventually
from tests.worker.test_observability import metric

pytestmark = pytest.mark.sync_only

__all__ = ["flow"]


def wait_for_two_events(flow: Database) -> None:
    flow.committed.open_event(Page, "another")
    flow.committed.enqueue(Note(name="end"), after=["event", "another"])


def test_a_worker_without_a_table_of_batches_says_so_more_and_more_rarely(
    flow: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on with its tasks."""
    if flow.case.name == "sqlite":
        pytest.skip("a missing table is an operational error there, which is tried again with growing pauses")
    pauses = (timedelta(0), timedelta(0), LONG)
    monkeypatch.setattr("sqlqueue.worker.looking.growing_pauses", lambda: iter(pauses))
    worker = workers.make(poll=LONG)
    worker.handler(Page)(lambda page: None)
    failures = worker._reports.counts
    with workers.start(worker):
        eventually(lambda: worker._run and worker._run._latches[0]._swept)
        Latch.__table__.drop(flow.engine)
        try:
            for number in range(1, 9):
                flow.insert(Page, [{"reports_to": "import"}])
                eventually(lambda: list(ends(flow).values()) == ["completed"])
                flow.execute(delete(Page))
                eventually(lambda number=number: failures["database_errors"] >= min(number, len(pauses)))
            assert failures["database_errors"] == len(pauses)
        finally:
            Latch.__table__.create(flow.engine)


@pytest.mark.parametrize("change", ["cancel", "rescue", "expire", "seal", "nest", "open", "another process"])
def test_a_worker_looks_when_others_say_so(
    flow: Database, workers: Workers, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its next poll."""
    monkeypatch.setattr("sqlqueue.worker.looking.SWEEP_SHARE", 1)  # the sweeps of a busy machine are slow
    if change == "another process" and flow.case.name != "postgresql":
        pytest.skip("no notifications between processes")
    if change == "open":
        if flow.case.one_writer:
            pytest.skip("a transaction with an older snapshot cannot write")
        flow.committed.enqueue(Note(name="first"), after="event")
    with flow.begin() as session, session.batch("import", sealed=change != "seal") as batch:
        batch.add(Page, [] if change in ("seal", "expire") else [{"name": "a", "priority": 5}])
        batch.add(Note, [{"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}] if change == "expire" else [])
        if change not in ("nest", "open"):
            batch.then(Note(name="end"), when="final")
    worker = workers.make(poll=LONG, notify=change == "another process")
    worker.handler(Note, Note.name == "end")(lambda task: None)
    with workers.start(worker):
        eventually(lambda: worker._run and worker._run._latches[0]._swept)
        if change == "seal":
            flow.committed.seal(Page, "import")
        elif change == "cancel":
            flow.committed.cancel(Page)
        elif change == "nest":
            with flow.begin() as session, session.batch(into="import") as empty:
                empty.then(Note(name="end"))
        elif change == "open":  # in a snapshot that may not show who waits
            later(flow, lambda: wait_for_two_events(flow), lambda session: session.open_event(Page, "event"))
        elif change == "expire":
            assert flow.committed.claim(Note, Note.name == "") is None
        elif change == "rescue":
            flow.committed.claim(Page)
            flow.execute(update(Page).values(attempt=Page.max_attempts, available_at=utcnow()))  # it has crashed
            assert flow.committed.rescue(Page) == 1
        else:
            # this process does not see the commit of a connection
            with flow.engine.begin() as connection, QueueSession(connection) as session, session.begin():
                session.cancel(Page)
                session.info.clear()  # what this process itself would tell its workers
        eventually(lambda: ends(flow, Note)["end"] == "completed")


@pytest.mark.one_engine
def test_a_worker_reports_batches_that_nobody_seals(
    flow: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sqlqueue.worker.looking.UNSEALED_EVERY", 0.0)
    for key, age in (("old", timedelta(days=2)), ("new", timedelta(hours=2))):
        with flow.begin() as session, session.batch(key, sealed=False) as batch:
            batch.add(Page, [])
        flow.execute(update(Latch).where(Latch.id == key).values(created_at=utcnow(-age)))
    worker = workers.make()
    worker.handler(Page)(lambda task: None)
    with workers.start(worker):
        eventually(lambda: "seal(Page, 'old')" in caplog.text)
    assert "'new'" not in caplog.text


@pytest.mark.parametrize("hints", ["kept", "lost"])
def test_a_worker_releases_what_waits(flow: Database, workers: Workers, hints: str, monkeypatch: Any) -> None:
    if hints == "lost":
        monkeypatch.setattr("sqlqueue.worker.looking.LatchWatch.note", lambda *_: None)
        monkeypatch.setattr("sqlqueue.worker.looking.SWEEP_SHARE", 1)  # the sweeps of a busy machine are slow
    with flow.begin() as session, session.batch("crawl") as batch:
        first = batch.add(Page, [{"name": f"page {n}"} for n in range(20)])
        last = batch.add(Page(name="last"), after=first)
        batch.add(Page(name="refund"), after=last, when="failed")
        batch.then(Note(name="end"), when="final")
    with flow.begin() as session, session.batch("again") as batch:
        batch.add(Page(name="flaky"))
        batch.then(Note(name="alarm"), when="failed")
    ran: list[str] = []

    def handle(task: Any) -> None:
        ran.append(task.name)
        if task.name == "last" or (ran.count("flaky") == 1 and task.name == "flaky"):
            raise ValueError("boom")

    worker = workers.make()
    worker.handler(Page)(handle)
    worker.handler(Note)(handle)
    with workers.start(worker):
        eventually(lambda: ends(flow, Note) == {"end": "completed", "alarm": "cancelled"})
    counts = Counter(ran)
    assert counts == {**{f"page {n}": 1 for n in range(20)}, "last": 2, "refund": 1, "end": 1, "flaky": 2}


@pytest.mark.one_engine
def test_a_worker_tells_of_batches_in_its_log_and_metrics(
    flow: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registration, "MEASURE_EVERY", timedelta(seconds=0.05))
    counted, count_batches = set[Any](), registration.unfinished_batches

    def count_for(session: Any, entity: Any) -> Any:
        counted.add(entity)
        return count_batches(session, entity)

    monkeypatch.setattr(registration, "unfinished_batches", count_for)
    caplog.set_level(logging.INFO)
    for key, names in (("good", ["a", "b"]), ("bad", ["a", "fails"]), ("long", ["a", "later"])):
        with flow.begin() as session, session.batch(key) as batch:
            first = batch.add(Page, [{"name": name} for name in names])
            batch.add(Note(name="n"), after=first)  # whose predecessors are no batch
    flow.execute(update(Page).where(Page.name == "later").values(status="scheduled", available_at=utcnow(LONG)))
    worker = workers.make()

    @worker.handler(Page)
    def handle(page: Page) -> None:
        if page.name == "fails":
            raise Discard("no")

    worker.handler(Note)(lambda note: None)
    worker.metrics()  # from now on, somebody reads them
    with workers.start(worker):
        eventually(lambda: metric(worker.metrics(), "batches_unfinished", table=Latch.__tablename__) == 1)
        assert (metric(worker.metrics(), "oldest_batch_seconds", table=Latch.__tablename__) or 0) > 0
        assert metric(worker.metrics(), "look_seconds_count", kind="look")
        eventually(lambda: metric(worker.metrics(), "look_seconds_count", kind="sweep"))
        measured = [
            lambda name=each.__tablename__: metric(worker.metrics(), "tasks_abandoned", queue=name)
            for each in (Page, Note)
        ]
        eventually(lambda: all(each() is not None for each in measured))
    assert len(counted) == 1, "the queues share their table of latches"
    told = {each.batch: each for each in caplog.records if hasattr(each, "batch")}
    assert {(key, each.levelname, each.getMessage()) for key, each in told.items()} == {
        ("good", "INFO", "the batch good has ended: 3 completed"),
        ("bad", "ERROR", "the batch bad has ended: 1 completed, 1 discarded, 1 cancelled"),
    }
    assert told["bad"].discarded == 1


class Before(DeclarativeBase):
    pass


class PageBefore(QueueMixin, Before):
    """As a release maps it that was deployed before the mixin."""

    __tablename__ = "rolled_page"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(50), default="")


class After(DeclarativeBase):
    pass


class LatchAfter(LatchMixin, After):
    __tablename__ = "rolled_latch"


class PageAfter(FlowMixin, After):
    __tablename__ = "rolled_page"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(50), default="")


def migrate(db: Database) -> None:
    """Do what Alembic does after the mixin has been added."""
    table, before = PageAfter.__table__, PageBefore.__table__
    with db.engine.begin() as connection:
        for column in table.columns:
            if column.name not in before.columns:
                added = CreateColumn(column).compile(dialect=db.engine.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {added}")
        for index in before.indexes:
            index.drop(connection)
        for index in table.indexes:
            index.create(connection)
    LatchAfter.__table__.create(db.engine)


def test_workers_of_a_release_without_batches_beside_others_before_and_after_the_migration(
    sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either runs members and callbacks, and only the new one starts what waits: at its sweeps, as the old one says
    nothing."""
    monkeypatch.setattr("sqlqueue.worker.looking.SWEEP_SHARE", 1)
    Before.metadata.create_all(sync_db.engine)
    try:
        ran: list[tuple[str, str]] = []
        old = workers.serve(PageBefore, lambda page: ran.append((page.name, "old")), concurrency=2)
        for number in range(20):
            sync_db.committed.enqueue(PageBefore(name=f"before {number}"))
        eventually(lambda: ran)
        migrate(sync_db)
        workers.serve(PageAfter, lambda page: ran.append((page.name, "new")), concurrency=2)
        for number in range(3):
            with sync_db.begin() as session, session.batch(f"import {number}") as batch:
                first = batch.add(PageAfter, [{"name": f"{number} {name}"} for name in range(20)])
                batch.add(
                    PageAfter(name=f"{number} next"), after=batch.add(PageAfter(name=f"{number} last"), after=first)
                )
                batch.then(PageAfter(name=f"{number} end"))
            sync_db.committed.enqueue(PageBefore(name=f"after {number}"))
        eventually(lambda: len(ran) >= 20 + 3 * 24, within=100)
        old.stop()
        names = [name for name, _ in ran]
        assert sorted(names) == sorted({*names})
        for number in range(3):
            order = [each for each in names if each.startswith(f"{number} ")]
            assert order[-3:] == [f"{number} last", f"{number} next", f"{number} end"]
            with sync_db.begin() as session:
                progress = session.progress(PageAfter, f"import {number}")
                assert (progress.completed, progress.total) == (22, 22)
    finally:
        workers.end_test()
        After.metadata.drop_all(sync_db.engine)
