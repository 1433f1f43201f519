"""Workers of pipelines and of limited queues, and the relationships that their tasks have loaded."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import joinedload, raiseload, selectinload

from sqlqueue import Retry, enqueue
from sqlqueue.testing import drain, perform
from sqlqueue.worker import fetcher
from tests.suite import children
from tests.suite.limited import claim, set_limit, visits
from tests.support.harness import Database
from tests.support.models import Account, Attachment, Film, Mail, Push, Slot, Task, Visit
from tests.support.processes import Processes
from tests.support.rows import FUTURE, PAST, count, load_all, rows
from tests.support.workers import (
    AT_ONCE,
    LONG,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    nothing,
    with_session,
    without_session,
)

KINDS: dict[str, dict[str, Any]] = {"a session": {}, "the task alone": {}, "a lock": {"mode": "lock"}}


def returning(db: Database, kind: str, value: Callable[[Any], Any]) -> Any:
    """Return a handler of this kind for the worker of this database."""
    if kind == "the task alone":
        return without_session(db, value)
    return with_session(db, lambda session, task: value(task))


def films(db: Database) -> list[Any]:
    with db.engine.connect() as connection:
        return list(connection.execute(select(Film.__table__)).mappings())


def test_each_stage_has_its_handler_and_passes_its_result_on(db: Database, workers: Workers) -> None:
    db.insert(Film, rows(5))
    db.insert(Task, rows(1))
    worker = workers.make(poll=LONG)  # nothing polls for the next stage: the worker is notified
    for (kind, options), stage in zip(KINDS.items(), ("cut", "dub", "print"), strict=True):
        value = lambda task, stage=stage: [*(task.result or ()), stage]  # noqa: E731
        worker.handler(Film, Film.stage == stage, **options)(returning(db, kind, value))
    worker.handler(Task)(returning(db, "the task alone", lambda _: object()))  # the result is not stored
    workers.start(worker)
    eventually(all_are(db, "completed", Film))
    eventually(all_are(db, "completed", Task))
    assert [film["result"] for film in films(db)] == [["cut", "dub", "print"]] * 5


@pytest.mark.parametrize("options", [{}, {"mode": "lock"}], ids=["lease", "lock"])
def test_follow_up_jobs_are_enqueued_in_the_commit_of_the_completion(
    sync_db: Database, workers: Workers, options: dict[str, Any]
) -> None:
    """They are enqueued together, or not at all: each handler fails once after enqueueing."""
    tried: set[int] = set()

    def hand_on(session: Any, task: Any) -> None:
        if task.number:
            enqueue(session, Task, [{"number": task.number - 1}])
        if task.number not in tried:
            tried.add(task.number)
            raise Retry(timedelta(0))

    sync_db.insert(Task, rows(1, number=3))
    workers.serve(Task, with_session(sync_db, hand_on), poll=LONG, **options)
    eventually(lambda: count(sync_db, Task, Task.status == "completed") == 4)
    with sync_db.begin() as session:
        assert [(task.number, task.attempt) for task in session.find(Task, order_by=Task.id)] == [
            (number, 2) for number in (3, 2, 1, 0)
        ]


@pytest.mark.one_engine
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_is_not_json_is_a_failure(sync_db: Database, workers: Workers, kind: str) -> None:
    """Only the task with that result fails."""
    sync_db.insert(Film, rows(3, stage="print"))
    result = lambda task: object() if task.id == min(film["id"] for film in films(sync_db)) else "done"  # noqa: E731
    worker = workers.serve(Film, returning(sync_db, kind, result), poll=LONG, **KINDS[kind]).worker
    eventually(lambda: sorted(film["status"] for film in films(sync_db)) == ["completed", "completed", "retryable"])
    first = min(films(sync_db), key=lambda film: film["id"])
    assert (first["status"], first["result"]) == ("retryable", None)
    assert "cannot be stored as JSON" in first["error"]
    assert worker._reports.counts["failed"] == 1


@pytest.mark.one_engine
def test_a_test_sees_the_results(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Film, rows(2, stage="dub"))
    worker = workers.make()
    worker.handler(Film)(returning(sync_db, "the task alone", lambda task: [*(task.result or ()), task.stage]))
    assert drain(worker) == {"completed": 4}
    assert [film["result"] for film in films(sync_db)] == [["dub", "print"]] * 2


# -- limited queues ---------------------------------------------------------------------------------------------------


SOAK = float(os.environ.get("SQLQUEUE_TEST_SOAK", "0"))
"""Seconds for which the storm lasts, for a soak test."""


def test_a_worker_with_more_room_than_the_limit(
    db: Database,
    workers: Workers,
    blocking: BlockingHandler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetcher, "FIRST_LOOK", LONG.total_seconds())  # it must be notified of free slots
    visits(db, *["a"] * 6, "b")
    workers.serve(Visit, without_session(db, blocking), poll=LONG, concurrency=6)
    blocking.wait_for(3)
    assert sorted(blocking.started) == [1, 2, 7]
    blocking.release()
    eventually(all_are(db, "completed", Visit))
    assert blocking.max_running == 3


def test_a_suspect_that_only_its_lock_holds_leaves_its_slot_until_it_runs_alone(db: Database, workers: Workers) -> None:
    set_limit(db, 1)
    visits(db, "a", crashes=1)
    workers.serve(Visit, with_session(db, nothing), mode="lock")
    eventually(all_are(db, "completed", Visit))
    assert count(db, Slot, Slot.status == "running") == 0


def test_a_worker_learns_of_tasks_cancelled_elsewhere(
    sync_db: Database,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetcher, "FIRST_LOOK", LONG.total_seconds())
    visits(sync_db, *"aaa")
    assert len(claim(sync_db)) == 2
    workers.serve(Visit, without_session(sync_db), poll=LONG)
    time.sleep(0.5)
    with sync_db.begin() as actor:
        assert actor.cancel(Visit, Visit.id < 3) == 2
    eventually(lambda: count(sync_db, Visit, Visit.status == "completed"), AT_ONCE)


@pytest.mark.requires("obeys_hints")
def test_a_worker_that_holds_its_tasks_by_their_locks(
    db: Database,
    workers: Workers,
    blocking: BlockingHandler,
) -> None:
    visits(db, *["a"] * 6, "b")
    workers.serve(Visit, with_session(db, during=blocking), concurrency=6, mode="lock")
    at_once = 1 if db.case.one_writer else 3
    blocking.wait_for(at_once)
    time.sleep(0.3)
    assert sorted(blocking.started) == [1, 2, 7][:at_once]
    blocking.release()
    eventually(all_are(db, "completed", Visit))
    assert blocking.max_running == at_once
    assert count(db, Slot, Slot.status == "running") == 0


@pytest.mark.requires("locks_rows" if SOAK else "notifies")
@pytest.mark.timeout(60 + 3 * SOAK)
def test_workers_that_are_killed(sync_db: Database, processes: Processes, tmp_path: Path) -> None:
    """Locks of the operating system, which end with a process, show whether more than three run at once."""
    size = 12 if SOAK else 4
    set_limit(sync_db, 3)
    visits(sync_db, *["a"] * (int(SOAK * 100) or 150), max_attempts=1_000)
    visitors = [processes.spawn(children.visit, sync_db.url, str(tmp_path)) for _ in range(size)]
    for child in visitors:
        child.wait_until_arrived()
    for child in visitors:
        child.let_pass()
    end = time.monotonic() + SOAK
    while time.monotonic() < end:
        time.sleep(random.uniform(0.2, 2))
        visitors.pop(random.randrange(size)).kill()
        visitors.append(processes.spawn(children.visit, sync_db.url, str(tmp_path)))
        visitors[-1].let_pass()
    for child in visitors[2:]:
        time.sleep(random.uniform(0.2, 0.6))
        child.kill()
    eventually(lambda: count(sync_db, Visit, Visit.status == "completed") >= 150)
    assert (tmp_path / "3").exists()
    assert not (tmp_path / "4").exists()


# -- loader options: tasks have their relationships loaded, in every mode ---------------------------------------------


OPTIONS = (joinedload(Mail.account), selectinload(Mail.attachments), raiseload("*"))


@pytest.fixture
def mails(request: pytest.FixtureRequest) -> None:
    db: Database = request.getfixturevalue("db" if "db" in request.fixturenames else "sync_db")
    db.insert(Account, [{"id": 7, "name": "ada"}])
    db.insert(Mail, [{**row, "id": number, "account_id": 7} for number, row in enumerate(rows(3), 1)])
    db.insert(Attachment, [{"mail_id": number, "name": f"file {number}"} for number in (1, 2, 3)])


class Reader:
    """Handlers that read relationships."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.seen: set[tuple[str, str]] = set()

    def read(self, mail: Mail) -> None:
        assert mail.account is not None
        self.seen.update((mail.account.name, attachment.name) for attachment in mail.attachments)

    def handler(self, *, session: bool) -> Any:
        if session:
            return with_session(self._db, lambda session, mail: self.read(mail))
        return without_session(self._db, self.read)

    @property
    def has_seen_all(self) -> bool:
        return self.seen == {("ada", f"file {number}") for number in (1, 2, 3)}


@pytest.mark.one_engine
@pytest.mark.usefixtures("mails")
@pytest.mark.parametrize(
    ("mode", "session"), [("lease", False), ("lease", True), ("lock", True), ("at-most-once", False)]
)
def test_a_handler_gets_a_task_with_its_options_loaded(
    sync_db: Database, workers: Workers, mode: Any, session: bool
) -> None:
    reader = Reader(sync_db)
    workers.serve(Mail, reader.handler(session=session), mode=mode, options=OPTIONS)
    eventually(all_are(sync_db, "completed", Mail))
    eventually(lambda: reader.has_seen_all)  # completed before the handler is called, at most once


@pytest.mark.one_engine
@pytest.mark.usefixtures("mails")
@pytest.mark.parametrize("session", [False, True])
def test_the_test_helpers_load_the_same(db: Database, workers: Workers, session: bool) -> None:
    worker, reader = workers.make(), Reader(db)
    worker.handler(Mail, options=OPTIONS)(reader.handler(session=session))
    with db.begin() as actor:
        first = actor.claim(Mail)
        actor.pass_to(lambda session: perform(worker, session, first))
        actor.pass_to(lambda session: drain(worker, session))
    assert reader.has_seen_all


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock", "at-most-once"])
def test_workers_do_not_run_what_has_expired(sync_db: Database, workers: Workers, mode: str) -> None:
    seen: list[int] = []

    def locking(session: Any, push: Push) -> None:
        seen.append(push.id)

    def handle(push: Push) -> None:
        seen.append(push.id)

    sync_db.insert(Push, [*rows(3, expires_at=PAST), *rows(1, expires_at=FUTURE)])
    running = workers.serve(Push, locking if mode == "lock" else handle, mode=mode)
    eventually(lambda: [push.status for push in load_all(sync_db, Push)] == ["cancelled"] * 3 + ["completed"])
    eventually(lambda: seen)  # at most once: the task is completed before its handler is called
    assert seen == [4]
    health = running.worker.health()
    assert health is not None
    assert health.counts["cancelled"] == 3
