"""The page of workers: what each runs now, and what others run."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue import utcnow
from tests.dashboard.models import Email
from tests.dashboard.serving import register


def rows(page: str) -> dict[str, str]:
    """Return the text of each row of the page's tables, by its heading."""
    found = re.findall(r'<tr>\s*<th scope="row">(.*?)(?:<br>.*?)?</th>(.*?)</tr>', page, re.DOTALL)
    return {name: " ".join(re.sub("<[^>]*>", " ", rest).split()) for name, rest in found}


def test_a_worker_shows_what_it_runs_and_for_how_long(app: TestClient, sessions: sessionmaker[Any]) -> None:
    with sessions.begin() as session:
        claimed = update(Email).where(Email.status == "running", Email.claimed_by == "mailer:2")
        session.execute(claimed.values(claimed_at=utcnow(-timedelta(hours=2)), available_at=utcnow(timedelta(hours=1))))
    register(sessions, "mailer:2", "mailer:3")
    page = app.get("/workers").text
    found = rows(page)
    assert '<a href="/queue/email/task?key=70">email 70</a>' in page
    assert re.search(
        "3 of 4 email email 70 billing for 2 h email 71 news for 2 h email 72 news for 2 h ", found["mailer:2"]
    )
    assert "email nothing" in found["mailer:3"]
    assert re.fullmatch("crawl 1 for [^a-z]*[a-z]+ crawl 2 for [^a-z]*[a-z]+", found["crawler:1"])
    assert page.index("Running elsewhere") < page.index("crawler:1")


def test_many_running_tasks_are_folded_and_those_that_are_not_read_are_mentioned(
    app: TestClient, sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(sessions, "mailer:2")
    with sessions.begin() as session:
        session.claim_many(Email, limit=15, claimed_by="mailer:2")
    found = rows(app.get("/workers").text)["mailer:2"]
    assert found.count(" for ") == 18
    assert "8 more" in found
    monkeypatch.setattr("sqlqueue.dashboard.pages.RUNNING", 10)
    monkeypatch.setattr("sqlqueue.dashboard.site.TIMES", 0)
    app.post("/queue/email/pause", data={})  # drops what was read
    page = app.get("/workers").text
    assert rows(page)["mailer:2"].count(" for ") == 10
    assert "There may be more running tasks than are shown of email." in page


def test_an_abandoned_task_is_marked(app: TestClient, sessions: sessionmaker[Any]) -> None:
    with sessions.begin() as session:
        session.execute(update(Email).where(Email.status == "running").values(available_at=utcnow(-timedelta(hours=1))))
    assert rows(app.get("/workers").text)["mailer:2"].count("abandoned: its lease ended 1 h ago") == 3


def test_what_to_do_without_workers(app: TestClient) -> None:
    assert "start one with sqlqueue work" in app.get("/workers").text
