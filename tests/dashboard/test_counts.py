"""Counts that stop at a cap are shown as lower bounds."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import delete, update
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue import utcnow
from tests.dashboard.clients import OWN
from tests.dashboard.models import Email, Event
from tests.dashboard.serving import dashboard


def cells(page: str, queue: str) -> list[str]:
    (row,) = re.findall(rf'<tr>\s*<th scope="row"><a href="/queue/{queue}">.*?</tr>', page, re.DOTALL)
    return re.findall(r'<td class="n"[^>]*>(.*?)</td>', row, re.DOTALL)


def test_a_plus_marks_a_count_that_ended_at_the_cap(app: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.pages.CAP", 10)
    claimable, _, running, *_ = cells(app.get("/").text, "email")
    assert re.search(r">1[0-4]\+<", claimable)  # with those to be retried, if they are due
    assert ">3<" in running
    assert "<b>10+</b>" in app.get("/queue/email").text


def test_a_confirmation_says_that_it_does_not_count_all(
    app: TestClient, sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.actions.CAP", 10)
    filter = {"scope": "filter", "status": "available"}
    question = app.get("/queue/email/confirm/cancel", params=filter).text
    assert "At least <b>10</b> tasks will be changed: 10 available" in question
    assert "At least" not in app.get("/queue/email/confirm/run-now", params={"scope": "filter"}).text
    assert " 78 tasks changed" in app.post("/queue/email/cancel", data=filter).text


def test_an_action_can_be_confirmed_although_none_of_its_tasks_was_counted(
    app: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No index finds discarded tasks: only the last final task is examined, which has another error."""
    monkeypatch.setattr("sqlqueue.dashboard.actions.SCAN", 1)
    params = {"scope": "filter", "error": "Disconnected"}
    question = app.get("/queue/email/confirm/retry", params=params).text
    assert "At least <b>0</b> tasks will be changed" in question
    assert "disabled" not in question
    assert "None of these tasks" not in question
    assert "5 tasks changed" in app.post("/queue/email/retry", data=params).text


def test_dead_letters_that_were_not_found_are_not_shown_as_a_problem(
    app: TestClient, sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 'class="bad"' in cells(app.get("/").text, "email")[5]
    monkeypatch.setattr("sqlqueue.dashboard.pages.CAP", 2)
    with sessions.begin() as session:
        session.execute(delete(Email).where(Email.status == "discarded"))
        session.execute(update(Event.__table__).values(status="completed", finished_at=utcnow()))
    other = TestClient(dashboard(sessions), headers=OWN)
    for page, queue in (("/", "email"), ("/outbox", "event")):
        found = cells(other.get(page).text, queue)[5]
        assert ">0+<" in found
        assert "bad" not in found
