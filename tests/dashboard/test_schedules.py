"""The page of schedules: what a recurring task is called, when it runs, and what can be done with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Identity, create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from starlette.testclient import TestClient

from sqlqueue import Cron, Every, JobMixin, QueueSession, RecurringMixin, UniqueMixin
from sqlqueue.dashboard import Action, Dashboard, Viewer
from sqlqueue.dashboard.rendering import in_words
from tests.dashboard.clients import OWN


class Bare(DeclarativeBase):
    pass


class Chore(JobMixin, UniqueMixin, RecurringMixin, Bare):
    __tablename__ = "chore"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


@pytest.fixture
def chores(tmp_path: Path) -> Iterator[sessionmaker[Any]]:
    engine = create_engine(f"sqlite:///{tmp_path / 'chores.db'}")
    Bare.metadata.create_all(engine)
    yield sessionmaker(engine, class_=QueueSession)
    engine.dispose()


def viewed(sessions: sessionmaker[Any], *may: Action) -> TestClient:
    app = Dashboard(sessions, Bare, authorize=lambda _: Viewer("ada", may))
    return TestClient(app, headers=OWN)


def text_of(page: str) -> str:
    """Return the text of the table, without markup."""
    return " ".join(re.sub("<[^>]*>", " ", page[page.index("<tbody>") : page.index("</tbody>")]).split())


def test_a_recurring_task_shows_its_name_its_plan_and_its_runs(chores: sessionmaker[Any]) -> None:
    with chores.begin() as session:
        schedule = Cron("30 2 * * mon-fri", "Europe/Berlin")
        session.add(Chore(task="app.report", arguments={}, unique_key="nightly", schedule=schedule))
        session.flush()
        planned = datetime(2040, 1, 2, 1, 30, tzinfo=UTC)  # a Monday
        session.execute(update(Chore).values(available_at=planned, claimed_at=datetime(2020, 1, 1, tzinfo=UTC)))
    page = viewed(chores).get("/schedules").text
    text = text_of(page)
    assert "nightly key 1 function app.report" in text
    assert "At 02:30, Monday through Friday (Europe/Berlin) 30 2 * * mon-fri Europe/Berlin" in text
    assert '<time datetime="2020-01-01T00:00:00+00:00" title="2020-01-01 00:00:00 UTC">' in page
    for day in ("Mon 02", "Tue 03", "Wed 04"):
        assert f"{day} Jan 2040 02:30 CET, 01:30 UTC in " in text
    assert "Action" not in page


def test_actions_on_a_schedule(chores: sessionmaker[Any]) -> None:
    with chores.begin() as session:
        session.add(Chore(task="app.sweep", arguments={}, unique_key="sweep", schedule=Every(timedelta(hours=1))))
    app = viewed(chores, Action.RUN_NOW, Action.UNSCHEDULE, Action.RESCHEDULE)
    text = text_of(app.get("/schedules").text)
    assert text.endswith("Run now Stop Reschedule")
    assert "Every 1 h PT3600S" in text
    assert "Task <b>1</b>: no further run." in app.get("/queue/chore/confirm/unschedule?key=1").text
    answer = app.post("/queue/chore/unschedule", data={"key": "1"})
    assert answer.url.path == "/schedules"
    text = text_of(answer.text)
    assert text.startswith("sweep key 1")  # the key that it has given up
    assert text.endswith("cancelled not yet stopped Restart")
    assert app.post("/queue/chore/unschedule", data={}).status_code == 400
    text = text_of(app.post("/queue/chore/reschedule", data={"key": "1", "schedule": "PT3600S"}).text)
    assert "scheduled not yet" in text
    app.post("/queue/chore/run-now", data={"key": "1"})
    with chores.begin() as session:
        assert session.claim(Chore, claimed_by="a") is not None
    text = text_of(viewed(chores, *Action).get("/schedules").text)
    assert text.endswith("Stop Reschedule")
    assert "Run now" not in text
    assert viewed(chores, Action.RESCHEDULE).post("/queue/chore/unschedule", data={"key": "1"}).status_code == 403


def test_what_to_do_without_schedules(chores: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "declare some with declare_schedules" in viewed(chores).get("/schedules").text
    with chores.begin() as session:
        plan = Every(timedelta(hours=1))
        session.add_all(Chore(task="a", arguments={}, unique_key=f"k{n}", schedule=plan) for n in range(3))
    monkeypatch.setattr("sqlqueue.dashboard.pages.SCHEDULE_ROWS", 2)
    page = viewed(chores).get("/schedules").text
    assert "At most 2 of the recurring tasks" in page
    assert ">k1<" in page
    assert ">k2<" not in page


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("PT5400S", "Every 1 h 30 min"),
        ("0 3 * * * UTC", "At 03:00 (UTC)"),
        ("0 0 1 * 1 Europe/Berlin", "At 00:00, on day 1 of the month, or on Monday (Europe/Berlin)"),
        ("now and then", "now and then"),
        ("0 3 * * * Nowhere/Here", "0 3 * * * Nowhere/Here"),
    ],
)
def test_schedules_are_told_in_words(schedule: str, words: str) -> None:
    assert in_words(schedule) == words
