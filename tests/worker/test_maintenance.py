"""Maintenance by workers: rescue, prune; in small steps, and by several workers at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import event

from sqlqueue.sql import NEVER
from sqlqueue.worker import registration as maintenance
from tests.support.harness import Database
from tests.support.models import Attachment, Mail, Task
from tests.support.rows import PAST, TOMORROW, count
from tests.support.workers import LONG, Workers, all_are, eventually, without_session

OFTEN = timedelta(seconds=0.05)
DONE = {"status": "completed", "finished_at": PAST, "available_at": PAST}
CRASHED = {"status": "running", "available_at": PAST, "claimed_at": PAST, "attempt": 3, "max_attempts": 3}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "RESCUE_EVERY", OFTEN)
    monkeypatch.setattr(maintenance, "PRUNE_EVERY", OFTEN)
    monkeypatch.setattr(maintenance, "PRUNED", 2)


def start_two(db: Database, workers: Workers, model: Any) -> None:
    for name in ("first", "second"):
        workers.serve(model, without_session(db), name=name, poll=LONG)


@pytest.mark.usefixtures("often")
def test_rescue_by_two_workers(db: Database, workers: Workers) -> None:
    db.insert(Task, [CRASHED] * 3)
    start_two(db, workers, Task)
    eventually(all_are(db, "discarded"))
    assert count(db, Task, Task.error.like("crashed in every attempt%")) == 3


@pytest.mark.usefixtures("often")
def test_prune_by_two_workers_in_batches(db: Database, workers: Workers) -> None:
    db.insert(Mail, [{**DONE, "topic": "old"}] * 9)
    db.insert(Mail, [{**DONE, "topic": "new", "finished_at": TOMORROW}])
    start_two(db, workers, Mail)
    eventually(lambda: count(db, Mail, Mail.topic == "old") == 0)
    assert count(db, Mail) == 1


def test_many_batches_are_pruned_in_a_row(sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PRUNE_EVERY", timedelta(seconds=2))
    monkeypatch.setattr(maintenance, "PRUNED", 2)
    sync_db.insert(Mail, [{**DONE, "topic": "old"}] * 21)
    workers.serve(Mail, without_session(sync_db), poll=LONG)
    eventually(lambda: count(sync_db, Mail) < 21)
    eventually(lambda: count(sync_db, Mail) == 0, within=9 * 0.75 * 2)


@pytest.mark.usefixtures("often")
def test_rows_that_cannot_go_stay_and_the_others_are_pruned(
    sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    sync_db.insert(Mail, [{"id": number, **DONE} for number in range(1, 10)])
    sync_db.insert(Attachment, [{"mail_id": number} for number in (1, 2, 3, 4)])  # more than one batch
    sync_db.insert(Mail, [{"id": 20, **DONE, "finished_at": None, "available_at": NEVER}])  # adopted
    workers.serve(Mail, without_session(sync_db), poll=LONG)
    eventually(lambda: count(sync_db, Mail) == 5)
    eventually(lambda: "pruned Mail: kept 4 final rows" in caplog.text)


@pytest.fixture
def broken(sync_db: Database) -> Iterator[None]:
    """Drop the table of attachments, which pruning of mails reads."""
    Attachment.__table__.drop(sync_db.engine)
    yield
    Attachment.__table__.create(sync_db.engine)


@pytest.mark.usefixtures("often", "broken")
@pytest.mark.requires("locks_rows")
def test_a_failing_chore_is_named_and_does_not_block_others(
    sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    sync_db.insert(Mail, [DONE])
    workers.serve(Mail, without_session(sync_db), poll=LONG)
    eventually(lambda: caplog.text.count("pruning Mail failed: ") > 1)
    assert "Traceback" not in caplog.text
    sync_db.insert(Mail, [CRASHED])
    eventually(lambda: count(sync_db, Mail, Mail.status == "discarded") == 1)


@pytest.mark.usefixtures("often")
def test_rescue_in_batches(sync_db: Database, workers: Workers) -> None:
    """Before each commit, another session reads the result of the earlier batches."""
    sync_db.insert(Task, [CRASHED] * 7)
    seen: list[int] = []
    engine = sync_db.variant(pool_size=20)
    worker = workers.make(poll=LONG, engine=engine)
    worker.handler(Task)(without_session(sync_db))
    event.listen(engine.bind, "commit", lambda _: seen.append(count(sync_db, Task, Task.status == "discarded")))
    workers.start(worker)
    eventually(all_are(sync_db, "discarded"))
    in_order = sorted([*seen, 7])  # several threads commit, and record what they have seen slightly later
    assert max(after - before for before, after in pairwise(in_order)) == 2
