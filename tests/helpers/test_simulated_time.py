"""`drain(ahead=...)` lets one simulated clock pass for schedules, intervals, delays and retries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import StaticPool, create_engine, select
from sqlalchemy.orm import sessionmaker

from sqlqueue import Cron, Every, QueueSession, Retry, Snooze, Worker, utcnow
from sqlqueue.testing import drain, perform
from tests.support.harness import Database
from tests.support.models import Base, Report, Task
from tests.support.rows import clock
from tests.support.workers import with_session, without_session

pytestmark = pytest.mark.one_engine
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def planned(schedule: Cron | Every, start: datetime, ahead: timedelta) -> list[datetime]:
    times, moment = [], start
    while (moment := schedule.after(moment)) <= start + ahead:
        times.append(moment)
    return times


def opposite(now: datetime) -> str:
    """Return the cron expression of the time of day that is furthest from now, so that no run is at the end."""
    return f"{now.minute} {(now.hour + 12) % 24} * * *"


@pytest.mark.every_engine
@pytest.mark.parametrize("committed", [False, True])
def test_each_planned_run_happens_once_at_its_time(db: Database, committed: bool) -> None:
    now = clock(db)
    nightly, often = Cron(opposite(now)), Every(7 * HOUR)
    seen: list[tuple[str, datetime]] = []
    worker = Worker(db.sessions())
    worker.handler(Report)(without_session(db, lambda task: seen.append((task.schedule, task.scheduled_for))))
    with db.session() as session:
        session.add_all([Report(schedule=nightly), Report(schedule=often)])
        session.commit()
        sessions = db.sessions() if committed else None
        counts = session.pass_to(lambda session: drain(worker, sessions or session, ahead=4 * DAY))
        assert counts == {"completed": 4 + 13}
    expected = [(str(nightly), moment) for moment in planned(nightly, now, 4 * DAY)]
    assert [each for each in seen if each[0] == str(nightly)] == expected
    times = [moment for _, moment in seen]
    assert times == sorted(times)
    intervals = [moment for schedule, moment in seen if schedule == str(often)]
    assert {after - before for before, after in pairwise(intervals)} == {7 * HOUR}


def test_runs_follow_the_clock_of_their_time_zone_through_a_year() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    worker, seen = Worker(sessionmaker(engine, class_=QueueSession)), list[datetime]()

    @worker.handler(Report)
    def see(report: Report) -> None:
        assert report.scheduled_for is not None
        seen.append(report.scheduled_for)

    now = datetime.now(UTC)
    schedule = Cron(opposite(now).replace("* * *", "* * SUN"), "Europe/Berlin")  # clocks change on Sundays
    with QueueSession(engine) as session:
        session.add(Report(schedule=schedule))
        drain(worker, session, ahead=370 * DAY)
    expected = planned(schedule, now, 369 * DAY)
    assert seen[: len(expected)] == expected
    assert len({moment.hour for moment in seen}) == 2, "summer and winter"
    engine.dispose()


@pytest.mark.every_engine
def test_the_clock_of_handlers_is_that_of_their_tasks(db: Database) -> None:
    """A task that snoozes, one that fails, and what they enqueue: all times are those of the simulated clock."""
    start, seen = clock(db), list[tuple[str, int]]()

    def handle(session: Any, task: Any) -> None:
        hours = (session.scalar(select(utcnow())) - start) / HOUR
        seen.append((task.name, round(hours)))
        if task.attempt == 1 and task.name == "snoozes":
            raise Snooze(5 * HOUR)
        if task.attempt == 1 and task.name == "fails":
            raise Retry(3 * HOUR)
        if task.name == "fails":
            session.add(Report(schedule=Every(2 * HOUR)))
            session.enqueue(Task(name="follows"), delay=timedelta(hours=4))

    worker = Worker(db.sessions())
    worker.handler(Task)(with_session(db, handle))
    times = list[datetime]()
    worker.handler(Report)(without_session(db, lambda task: times.append(task.scheduled_for)))
    with db.session() as session:
        for name, hours in (("snoozes", 1), ("fails", 2), ("later", 100)):
            session.enqueue(Task(name=name, max_attempts=3), delay=hours * HOUR)
        session.commit()
        session.pass_to(lambda session: drain(worker, session, ahead=10 * HOUR))
    assert seen == [("snoozes", 1), ("fails", 2), ("fails", 5), ("snoozes", 6), ("follows", 9)]
    assert [round((moment - start) / HOUR) for moment in times] == [7, 9]


def test_nothing_else_sees_the_simulated_clock(db: Database) -> None:
    def handle(session: Any, task: Any) -> None:
        session.add(Task(name="added"))
        session.enqueue(Task, [{"name": "enqueued"}])
        session.flush()

    worker = Worker(db.sessions())
    worker.handler(Task, Task.name == "first")(with_session(db, handle))
    with db.session() as session:
        session.enqueue(Task(name="first"), delay=DAY)
        session.commit()
        assert session.pass_to(lambda session: drain(worker, session, ahead=2 * DAY)) == {"completed": 1}
        session.commit()
    with db.begin() as session:
        session.add(Task(name="now"))
        session.enqueue(Task(name="later"), delay=HOUR)
        session.enqueue(Task(name="tomorrow"), delay=DAY)
    before = clock(db)
    with db.begin() as session:
        claimed = session.claim_many(Task, limit=9)
        assert "now" in {task.name for task in claimed}
        assert not {"later", "tomorrow"} & {task.name for task in claimed}
        assert all(task.available_at < before + HOUR for task in claimed)
        now = session.scalars(select(utcnow())).one()
        assert now < before + HOUR


def test_each_call_begins_at_the_present(db: Database) -> None:
    worker = Worker(db.sessions())
    worker.handler(Task)(without_session(db))
    with db.session() as session:
        for days in (1, 3):
            session.enqueue(Task(), delay=days * DAY)
        for ahead, counts in ((2, {"completed": 1}), (2, {}), (4, {"completed": 1})):
            session.commit()
            assert session.pass_to(lambda session: drain(worker, session, ahead=ahead * DAY)) == counts  # noqa: B023


def test_the_outcome_can_be_read_at_once(db: Database) -> None:
    def fail(session: Any, task: Any) -> None:
        raise ValueError("no")

    worker = Worker(db.sessions())
    worker.handler(Task)(with_session(db, fail))
    with db.session() as session:
        performed, drained = Task(max_attempts=2), Task(max_attempts=1)
        session.add(performed)
        session.commit()
        told = session.pass_to(lambda session: perform(worker, session, performed, raise_errors=False))
        assert (told, performed.status, performed.error) == ("failed", "retryable", "ValueError: no")
        session.add(drained)
        counts = session.pass_to(lambda session: drain(worker, session, raise_errors=False))
        assert counts == {"discarded": 1}
        assert (drained.status, drained.error, drained.attempt) == ("discarded", "ValueError: no", 1)
        counts = session.pass_to(lambda session: drain(worker, session, raise_errors=False, ahead=DAY))
        assert (counts, performed.status) == ({"discarded": 1}, "discarded")
