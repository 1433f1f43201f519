"""Rows that cannot be read do not keep operators from finding them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue import Cause, Claim, Status, check, utcnow
from sqlqueue.dashboard import Action, Dashboard, Viewer
from sqlqueue.dashboard.requests import cursor, position
from sqlqueue.operations import recording
from sqlqueue.operations.paging import key_of, page
from sqlqueue.operations.schedules import recurring_tasks
from sqlqueue.testing import assert_enqueued
from tests.cli.invoking import told
from tests.suite.test_unreadable_rows import signs
from tests.support.harness import Database
from tests.support.history import Base as History
from tests.support.history import Parcel, Past, archive, sync_archive
from tests.support.models import Base, Report, Sign, Task
from tests.support.rows import PAST, TOMORROW
from tests.support.workers import statuses
from tests.worker.test_left_alone import insert_odd_times

__all__ = ["archive", "sync_archive"]


def test_find_leaves_them_out_and_says_so(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    recording._said.clear()
    signs(db, "rose", "dove", "rose")
    with caplog.at_level(logging.ERROR), db.begin() as actor:
        assert [task.id for task in actor.find(Sign)] == [1, 3]
        assert [task.id for task in actor.find(Sign, Sign.id > 1, order_by=Sign.id.desc(), limit=2)] == [3]
    (record,) = caplog.records
    assert record.getMessage().startswith("sign 2 cannot be read: LookupError")


def test_list_and_show(sync_db: Database) -> None:
    signs(sync_db, "rose", "dove")
    listed = told(sync_db, "list", "--json", target="Sign")
    assert [task["key"] for task in listed] == ["2", "1"]
    assert listed[0]["status"] == "available"
    assert listed[0]["columns"]["symbol"].startswith("(cannot be read: LookupError: 'dove'")
    assert listed[1]["columns"] == {"id": 1, "symbol": "rose"}
    assert "cannot be read" in told(sync_db, "list", target="Sign")
    assert "cannot be read" in told(sync_db, "show", "2", target="Sign")
    assert told(sync_db, "show", "--json", "2", target="Sign")["columns"]["id"] == 2


@pytest.mark.parametrize("column", ["available_at", "created_at"])
def test_odd_times(sync_db: Database, column: str) -> None:
    number = insert_odd_times(sync_db, column, "scheduled")
    assert len(told(sync_db, "list", "--json")) == number
    told(sync_db, "list")
    first = min(statuses(sync_db))
    explained = told(sync_db, "why", str(first), "--json")
    assert {reason["cause"] for reason in explained["reasons"]}.isdisjoint({"unreadable", "missing"})
    for key in statuses(sync_db):
        told(sync_db, "show", str(key))
        explained = told(sync_db, "why", str(key), "--json")
        assert explained["status"] == "scheduled"
        assert explained["reasons"]
    (found,) = told(sync_db, "stats", "--json")
    assert found["scheduled"] == number
    told(sync_db, "stats")
    with sync_db.engine.connect() as connection:
        assert "unadopted-rows" not in {finding.code for finding in check(connection, Task)}


def insert_oddly(db: Database, into: str, values: str) -> None:
    """Insert a row with values that the session's usual mode may not accept."""
    with db.engine.connect() as connection:
        if db.case.odd_mode:
            connection.execute(text(db.case.odd_mode))
        connection.execute(text(f"INSERT INTO {into} VALUES ({values})"))
        connection.commit()
        connection.invalidate()


def far_away(db: Database, column: str, **columns: str) -> int:
    """Insert tasks with odd times and these columns, and one whose times are now; return how many."""
    insert_odd_times(db, column, "completed")
    with db.engine.begin() as connection:
        connection.execute(insert(Task).values(name="", number=0))
        key = connection.scalar(select(func.max(Task.id)))
        moments = {each: utcnow() for each in ("created_at", "claimed_at", "finished_at")}
        others = {each: moment for each, moment in moments.items() if each != column}
        connection.execute(update(Task).values(**others, **columns))
        connection.execute(update(Task).where(Task.id == key).values({column: utcnow()}))
        return connection.scalar(select(func.count()).select_from(Task.__table__)) or 0


@pytest.mark.parametrize("column", ["created_at", "claimed_at", "finished_at"])
def test_figures(db: Database, column: str) -> None:
    number = far_away(db, column, status="completed")
    with db.begin() as actor:
        ended = sum(bucket.completed for bucket in actor.timeline(Task))
        assert ended == (1 if column == "finished_at" else number)
        assert actor.overview(Task).counts[Status.COMPLETED] == number
        assert "completed" in actor.overview(Task, Task.number == 0, scan=2).capped


@pytest.mark.parametrize("column", ["claimed_at", "finished_at"])
@pytest.mark.parametrize("cap", [None, 3])
def test_errors_of_odd_times(db: Database, column: str, cap: int | None) -> None:
    number = far_away(db, column, status="discarded", error="no")
    with db.begin() as actor:
        (group,) = actor.errors(Task, cap=cap)
    assert (group.message, group.capped) == ("no", {"tasks", "unfinished", "retriable"} if cap else set())
    assert group.tasks == (cap or number)


def test_a_history_with_odd_times(archive: Database) -> None:
    columns = "queue, task, attempt, outcome, error, started_at, finished_at"
    for moment in archive.case.odd_times:
        for moments in (f"{moment}, {moment}", f"{moment}, '{PAST:%Y-%m-%d %H:%M:%S}'"):
            insert_oddly(archive, f"past ({columns})", f"'past_parcel', '1', 1, 'failed', 'no', {moments}")
    number = 2 * len(archive.case.odd_times)
    with archive.begin() as actor:
        assert len(actor.history(Claim(Parcel, (1,), 0))) == number
        (group,) = actor.errors(Parcel)
        assert (group.attempts, group.tasks) == (number, 0)
        assert sum(bucket.failed for bucket in actor.timeline(Parcel)) == 0


def test_a_history_with_an_unknown_outcome(sync_archive: Database) -> None:
    """A newer release may have written it."""
    with sync_archive.begin() as actor:
        actor.add(Parcel(id=1))
    for end in (lambda task: actor.fail(task, "no stamp"), lambda task: actor.release(task)):  # noqa: PLW0108
        with sync_archive.begin() as actor:
            end(actor.claim(Parcel))
    with sync_archive.engine.begin() as connection:
        connection.execute(update(Past).where(Past.attempt == 1).values(outcome="re\x1bturned"))
    with sync_archive.begin() as actor:
        attempts = actor.history(Claim(Parcel, (1,), 0))
    assert [(each.attempt, each.outcome) for each in attempts] == [(2, "released"), (1, "re\x1bturned")]
    target = "tests.support.history:Parcel"
    assert "Attempt 1 re\\x1bturned" in told(sync_archive, "show", "1", target=target)
    shown = told(sync_archive, "show", "1", "--json", target=target)
    assert [each["outcome"] for each in shown["history"]] == ["released", "re\x1bturned"]
    dashboard = Dashboard(sessionmaker(sync_archive.engine), History, authorize=lambda _: Viewer("ada"))
    with TestClient(dashboard) as client:
        answer = client.get("/queue/past_parcel/task", params={"key": "1"})
    assert answer.status_code == 200
    assert "re\\x1bturned" in answer.text
    assert "no stamp" in answer.text


def test_pauses_with_odd_times(db: Database) -> None:
    for moment in db.case.odd_times:
        insert_oddly(db, "queue_pause (queue, paused_at, paused_by)", f"'task', {moment}, 'ada'")
        db.insert(Task, [{"id": 1}])
        with db.begin() as actor:
            (pause,) = actor.paused(Task)
            assert pause.paused_by == "ada"
            assert Cause.PAUSED in {reason.cause for reason in actor.why(_claim(1, Task)).reasons}
            assert actor.resume(Task)
            actor.execute(delete(Task))


def test_pages_that_end_at_odd_times(db: Database) -> None:
    """All tasks can be reached, although the row at which a page ends cannot be read."""
    insert_odd_times(db, "available_at", "available")
    with db.engine.begin() as connection:
        connection.execute(update(Task).values(priority=1))
    odd = statuses(db).keys()
    db.insert(Task, [{"priority": 0 if n < 5 else 2} for n in range(20)])
    readable = statuses(db).keys() - odd
    scan, after, found = 5 + len(db.case.odd_times), None, set[int]()
    for _ in range(100):
        with db.begin() as actor:
            one = actor.run(page, Task, Task.number == 0, status=Status.AVAILABLE, after=after, scan=scan)
        found |= {task.id for task in one.tasks}
        after = one.next
        if after is None:
            break
    assert after is None
    assert len(readable) == 20
    assert found >= readable


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.AVAILABLE])
@pytest.mark.parametrize("where", [(), (Task.number == 0,)])
def test_pages_on_which_no_time_can_be_read(sync_db: Database, status: Status, where: Any) -> None:
    """Their rows have positions all the same, in both directions, also in a URL."""
    times = sync_db.case.odd_times[:1] if where else ()  # MySQL confuses zero dates in a derived table
    for _ in range(6 if where else 3):
        insert_odd_times(sync_db, "available_at", status, *times)
    every = statuses(sync_db).keys()
    spec = Task.__queue_spec__
    columns = [term.column for term in (spec.ready_order if status is Status.AVAILABLE else spec.due_order)]
    found, after, before = list[int](), None, None
    while True:
        with sync_db.begin() as actor:
            one = actor.run(page, Task, *where, status=status, after=after, limit=2)
        found += [key for task in one.tasks for key in key_of(Task.__queue_spec__, task)]
        if one.next is None:
            break
        before, after = one.previous, position(columns, cursor(one.next))
    assert sorted(found) == sorted(every)
    with sync_db.begin() as actor:
        one = actor.run(page, Task, *where, status=status, before=before, limit=len(every))
    assert [key for task in one.tasks for key in key_of(Task.__queue_spec__, task)] == found[: len(one.tasks)]
    assert len(one.tasks) >= len(every) - 4


def test_the_page_of_schedules(sync_db: Database) -> None:
    for moment in sync_db.case.odd_times:
        insert_oddly(sync_db, "report (status, schedule, available_at)", f"'scheduled', '* * * * *', {moment}")
    planned = {"status": "scheduled", "schedule": "PT1H", "drift": False, "available_at": TOMORROW}
    sync_db.insert(Report, [planned])
    dashboard = Dashboard(sessionmaker(sync_db.engine), Base, authorize=lambda _: Viewer("ada", frozenset(Action)))
    with TestClient(dashboard) as client:
        answer = client.get("/schedules")
    assert answer.status_code == 200
    assert answer.text.count('<small class="quiet">* * * * *</small>') == len(sync_db.case.odd_times)
    tasks, _ = sync_db.committed.run(recurring_tasks, Report)
    assert [task.next_runs[0] for task in tasks if task.schedule == "PT1H"] == [TOMORROW]


def test_asserting_that_tasks_are_enqueued(db: Database) -> None:
    signs(db, "rose", "dove", "rose")
    with db.begin() as actor:
        assert [task.id for task in actor.run(assert_enqueued, Sign)] == [1, 3]
        with pytest.raises(AssertionError, match=r"symbol=.\(cannot be read: LookupError"):
            actor.run(assert_enqueued, Sign, id=2)


def test_stats_by(sync_db: Database) -> None:
    signs(sync_db, "rose", "dove", "rose")
    found = told(sync_db, "stats", "--json", "--by", "symbol", target="Sign")
    assert {each["value"]: each["available"] for each in found} == {"rose": 2, "dove": 1}


def test_why_of_a_row_that_was_set_aside(db: Database) -> None:
    signs(db, "dove")
    with db.begin() as actor:
        assert actor.claim(Sign) is None
    with db.begin() as actor:
        explained = actor.why(_claim(1))
        (reason, *_) = explained.reasons
        assert reason.cause is Cause.NOT_DUE
        assert "it cannot be read: LookupError" in reason.text


def test_why_of_an_unknown_status(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "bogus"}])
    with db.begin() as actor:
        explained = actor.why(_claim(1, Task))
    assert explained.status == "bogus"
    assert [reason.cause for reason in explained.reasons] == [Cause.UNKNOWN_STATUS]
    assert "'bogus'" in str(explained)


def _claim(key: int, model: Any = Sign) -> Any:
    return Claim(model, (key,), 0)


def test_check_names_keys(sync_db: Database) -> None:
    signs(sync_db, "dove", "rose", "lion")

    def findings() -> list[str]:
        with sync_db.engine.connect() as connection:
            return [each.message for each in check(connection, Sign) if each.code == "unreadable-rows"]

    assert findings() == []
    with sync_db.begin() as actor:
        actor.claim_many(Sign, limit=9)
    assert findings() == ["sign has rows that cannot be read and are postponed, with these keys: 1; 3"]
    for _ in range(10):
        sync_db.execute(update(Sign).where(Sign.status == "scheduled").values(available_at=PAST))
        with sync_db.begin() as actor:
            actor.claim_many(Sign, limit=9)
    assert {statuses(sync_db, Sign)[n] for n in (1, 3)} == {"discarded"}
    assert findings() == ["sign has rows that cannot be read and are dead letters, with these keys: 3; 1"]


def test_pages_of_the_dashboard(sync_db: Database) -> None:
    signs(sync_db, "rose", "dove", "rose")
    insert_odd_times(sync_db, "available_at", "scheduled")
    insert_odd_times(sync_db, "created_at", "available")
    sync_db.insert(Task, [{"status": "bogus"}])
    dashboard = Dashboard(
        sessionmaker(sync_db.engine),
        Base,
        authorize=lambda _: Viewer("ada", frozenset(Action)),
        columns={Sign: ["symbol"]},
    )
    paths = [
        "/",
        "/queue/sign",
        "/queue/task",
        "/queue/task?status=scheduled",
        "/queue/sign/task?key=2",
        *(f"/queue/task/task?key={key}" for key in statuses(sync_db)),
    ]
    with TestClient(dashboard) as client:
        answers = {path: client.get(path) for path in paths}
    assert {path: answer.status_code for path, answer in answers.items() if answer.status_code != 200} == {}
    assert "cannot be read" in answers["/queue/sign"].text
    assert "cannot be read" in answers["/queue/sign/task?key=2"].text
