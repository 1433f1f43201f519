"""Handlers report how far they are: while they run, fenced, in bounds, and only if they do."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Engine, event, update

from sqlqueue import ArgumentError, Retry, Worker, claim_of, current_job
from sqlqueue.operations.recording import reported
from sqlqueue.operations.settling import report_some
from sqlqueue.testing import drain
from sqlqueue.worker import handler_of
from sqlqueue.worker.jobs import LONGEST, NOTES, Progress
from tests.support.harness import Database
from tests.support.models import Render, Task
from tests.support.rows import end_leases, load_all, make_due
from tests.support.workers import LONG, Workers, all_are, eventually, with_session, without_session

ONE = [{"task": "render"}]
DOCUMENT = {"value": 0.5, "text": "Ünïcode", "attempt": 1, "notes": [], "dropped": 0}


def progress(db: Database) -> Any:
    return load_all(db, Render)[0].progress


def session_of(db: Database) -> Any:
    return db.sessions().begin()


@pytest.mark.parametrize("takes_session", [True, False])
def test_reports_are_seen_while_the_handler_runs(db: Database, workers: Workers, takes_session: bool) -> None:
    seen = Event()

    def during(_: Any) -> None:
        job = current_job()
        job.note("began")
        job.report(0.25, "page 1 of 4")
        assert seen.wait(60)
        job.report(1, "all pages")

    db.insert(Render, ONE)
    handler = with_session(db, during=during) if takes_session else without_session(db, during=during)
    workers.serve(Render, handler, poll=LONG)
    first = eventually(lambda: progress(db))
    assert (first["value"], first["text"], first["attempt"]) == (0.25, "page 1 of 4", 1)
    assert [note["text"] for note in first["notes"]] == ["began"]
    seen.set()
    eventually(all_are(db, "completed", Render))
    assert progress(db) == first | {"value": 1, "text": "all pages"}


@pytest.mark.sync_only
def test_a_report_for_a_lost_claim_changes_nothing(sync_db: Database) -> None:
    sync_db.insert(Render, ONE)
    with sync_db.begin() as session:
        lost = claim_of(session.claim(Render))
    end_leases(sync_db, Render)
    with sync_db.begin() as session:
        held = claim_of(session.claim(Render))
    with session_of(sync_db) as session:
        assert report_some(session, [(lost, DOCUMENT), (held, {**DOCUMENT, "attempt": 2})]) == [lost]
    assert progress(sync_db) == {**DOCUMENT, "attempt": 2}
    with session_of(sync_db) as session:
        session.complete(held)
        assert report_some(session, [(held, DOCUMENT)]) == [held]
    assert progress(sync_db)["attempt"] == 2


@pytest.mark.sync_only
@pytest.mark.requires("locks_rows")
def test_the_row_of_a_handler_that_has_changed_it_is_not_waited_for(sync_db: Database) -> None:
    sync_db.insert(Render, ONE)
    with sync_db.begin() as session:
        held = claim_of(session.claim(Render))
    with sync_db.begin() as handler:
        handler.execute(update(Render).values(priority=3))
        with session_of(sync_db) as session:
            assert report_some(session, [(held, DOCUMENT)], waits=False) == [held]


@pytest.mark.sync_only
@pytest.mark.requires("locks_rows")
def test_a_handler_above_read_committed_is_called_again_once(sync_db: Database, workers: Workers) -> None:
    calls: list[int] = []

    def work(session: Any, task: Render) -> None:
        calls.append(len(session.find(Render)))
        current_job().report(0.5)
        if len(calls) == 1:
            eventually(lambda: progress(sync_db))
        current_job().report(0.9)

    sync_db.insert(Render, ONE)
    workers.serve(Render, work, poll=LONG, engine=sync_db.variant(pool_size=20, isolation_level="REPEATABLE READ"))
    eventually(all_are(sync_db, "completed", Render))
    assert len(calls) <= 2  # InnoDB without snapshot isolation completes the first call
    assert progress(sync_db)["value"] == 0.9


@pytest.mark.one_engine
def test_a_failed_attempt_keeps_its_report_until_the_next_one_begins(sync_db: Database) -> None:
    worker, fails = Worker(sync_db.sessions()), iter([True, False, False])

    @worker.handler(Render)
    def render(task: Render) -> None:
        if next(fails):
            current_job().note("failing")
            current_job().report(0.7)
            raise Retry

    sync_db.insert(Render, ONE)
    assert drain(worker, raise_errors=False) == {"failed": 1}
    assert progress(sync_db)["value"] == 0.7
    make_due(sync_db, Render)
    with session_of(sync_db) as session:
        assert drain(worker, session) == {"completed": 1}
    found = progress(sync_db)
    assert (found["value"], found["attempt"]) == (None, 2)
    assert [(note["attempt"], note["text"]) for note in found["notes"]] == [(1, "failing")]
    with sync_db.begin() as session:
        assert session.rerun(Render) == 1
    assert progress(sync_db) is None


@pytest.mark.one_engine
def test_one_write_a_second_and_none_without_reports(sync_db: Database, workers: Workers) -> None:
    written: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "progress=" in statement.replace(" ", "") and "UPDATE" in statement:
            written.append(statement)

    def work(task: Render) -> None:
        for number in range(1_000 if task.task == "reports" else 0):
            current_job().report(number / 1_000)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        sync_db.insert(Render, ONE)
        workers.serve(Render, work)
        eventually(all_are(sync_db, "completed", Render))
        assert written == []
        sync_db.insert(Render, [{"task": "reports"}])
        eventually(all_are(sync_db, "completed", Render))
        assert load_all(sync_db, Render)[1].progress["value"] == 0.999
        assert len(written) < 10  # 1,000 would be one for each report
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_notes_and_texts_are_bounded() -> None:
    made = Progress({"value": None, "notes": [{"text": "old"}] * NOTES, "dropped": 4}, 2)
    assert made.unwritten() is None
    made.note("x" * 1_000 + "\0")
    made.report(0.123, "y" * LONGEST)
    number, document = made.unwritten() or pytest.fail("nothing to write")
    assert (len(document["notes"]), document["dropped"]) == (NOTES, 5)
    assert document["notes"][-1]["text"] == "x" * (LONGEST - 1) + "…"
    assert document["text"] == "y" * LONGEST
    made.note("newer")
    made.wrote(number)
    assert made.unwritten() is not None, "what was reported in the meantime is not written"


@pytest.mark.parametrize(
    "call",
    [
        lambda made: made.report(1.01, None),
        lambda made: made.report(float("nan"), None),
        lambda made: made.report("half", None),
        lambda made: made.report(0.5, 5),
        lambda made: made.note(None),
    ],
)
def test_other_reports_are_rejected(call: Callable[[Any], Any]) -> None:
    made = Progress(None, 1)
    with pytest.raises(ArgumentError):
        call(made)
    assert made.unwritten() is None


@pytest.mark.parametrize("stored", [None, "text", {}, {"value": "x", "text": None, "notes": [], "dropped": 0}])
def test_what_another_program_has_stored_is_not_shown(stored: object) -> None:
    assert reported(stored) is None


@pytest.mark.parametrize(("mode", "takes_session"), [("lock", True), ("at-most-once", False)])
def test_modes_in_which_nobody_would_see_a_report_are_rejected(mode: Any, takes_session: bool) -> None:
    handler = (lambda session, task: None) if takes_session else nothing_of
    with pytest.raises(ArgumentError, match=f"mode='{mode}' .*choose mode='lease'"):
        handler_of(handler, Render, (), mode=mode)


def nothing_of(task: Any) -> None:
    pass


@pytest.mark.one_engine
def test_a_report_needs_the_mixin(sync_db: Database) -> None:
    worker = Worker(sync_db.sessions())
    worker.handler(Task)(lambda _: current_job().report(0.5))
    sync_db.insert(Task, [{}])
    with pytest.raises(ArgumentError, match=r"Task has no column .* derive it from ProgressMixin"):
        drain(worker)
