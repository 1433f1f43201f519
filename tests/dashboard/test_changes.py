"""Changes to many tasks: their progress, its visibility, and the log."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue.dashboard import Action, Viewer
from tests.dashboard.clients import OWN
from tests.dashboard.serving import dashboard
from tests.support.workers import eventually


def test_another_process_says_that_it_does_not_know_the_progress(
    app: TestClient, sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with several processes sends requests to any of them; two dashboards of one database stand in for
    that."""
    other, url = TestClient(dashboard(sessions), headers=OWN), sessions.kw["bind"].url
    monkeypatch.setattr("sqlqueue.dashboard.site.SOON", 0)
    with app, closing(sqlite3.connect(url.database, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")  # blocks the change
        data = {"scope": "filter", "status": "available", "topic": "news"}
        begun = app.post("/queue/email/cancel", data=data, follow_redirects=False).headers["location"]
        assert "In progress:" in app.get(begun).text
        answer = other.get(begun)
        assert answer.status_code == 200
        assert "Progress unknown:" in answer.text
        assert "data-soon" not in answer.text
        assert 'id="change" data-live' in answer.text  # the next request may reach the process that knows
        assert 'href="?status=available&amp;topic=news">Dismiss' in answer.text
        id = begun.partition("change=")[2]
        stopped = other.post(f"/changes/{id}/stop")
        assert (stopped.status_code, "Nothing was stopped" in stopped.text) == (404, True)
        assert "In progress:" in app.get(begun).text
        writer.execute("ROLLBACK")
        eventually(lambda: "Done:" in app.get(begun).text)
    assert "Progress unknown:" in other.get(begun).text
    assert "Progress unknown:" not in other.get("/queue/email").text


def test_a_change_is_shown_only_to_the_viewer_who_began_it(sessions: sessionmaker[Any]) -> None:
    app = TestClient(
        dashboard(sessions, authorize=lambda request: Viewer(request.headers["user"], list(Action))), headers=OWN
    )
    begun = app.post("/queue/email/cancel", data={"key": "150"}, headers={"user": "ada"}, follow_redirects=False)
    page = begun.headers["location"]
    assert "Done:" in app.get(page, headers={"user": "ada"}).text
    assert "Progress unknown:" in app.get(page, headers={"user": "grace"}).text
    id = page.partition("change=")[2]
    assert app.post(f"/changes/{id}/stop", headers={"user": "grace"}).status_code == 404


def test_each_change_is_logged_with_its_viewer_in_lines_of_its_own(
    sessions: sessionmaker[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "sqlqueue.dashboard")
    monkeypatch.setattr("sqlqueue.dashboard.site.SOON", 0)
    viewer = Viewer("ada\ngrace", list(Action))
    with (
        TestClient(dashboard(sessions, authorize=lambda _: viewer), headers=OWN) as app,
        closing(sqlite3.connect(sessions.kw["bind"].url.database, isolation_level=None)) as writer,
    ):
        writer.execute("BEGIN IMMEDIATE")  # blocks the change
        data = {"key": "150", "reason": "a\nb"}
        begun = app.post("/queue/email/discard", data=data, follow_redirects=False).headers["location"]
        id = begun.partition("change=")[2]
        assert app.post(f"/changes/{id}/stop", follow_redirects=False).status_code == 303
        writer.execute("ROLLBACK")
        eventually(lambda: "Stopped:" in app.get(begun).text)
    what = r"ada\ngrace: {}discard email 150: a\nb{}"
    assert caplog.messages == [
        what.format("", ""),
        what.format("stop: ", ""),
        what.format("", ": stopped, 1 tasks changed"),
    ]


def test_a_change_that_failed_says_so_without_the_databases_error(app: TestClient, sessions: sessionmaker[Any]) -> None:
    trigger = "CREATE TRIGGER t BEFORE UPDATE ON email BEGIN SELECT RAISE(ABORT, 'a detail'); END"
    with sessions.begin() as session:
        session.connection().exec_driver_sql(trigger)
    with app:
        text = app.post("/queue/email/cancel", data={"key": "150"}).text
    assert "Failed:" in text
    assert "a detail" not in text


def test_changes_that_ended_long_ago_are_forgotten(app: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.site.MAX_CHANGES", 2)
    with app:
        pages = [
            app.post("/queue/email/cancel", data={"key": key}, follow_redirects=False).headers["location"]
            for key in ("150", "149", "148")
        ]
        assert ["Done:" in app.get(page).text for page in pages] == [False, True, True]
