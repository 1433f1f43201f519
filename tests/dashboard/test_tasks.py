"""What pages say of single tasks, and the actions that they offer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from html import unescape
from typing import Any

import pytest
from sqlalchemy import insert, null, update
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue import ArgumentError, utcnow
from sqlqueue.dashboard import Action, Viewer
from sqlqueue.dashboard.rendering import ago, since, told
from sqlqueue.dashboard.requests import CHANGES
from sqlqueue.sql import NEVER
from tests.dashboard.clients import OWN
from tests.dashboard.models import Email, Event, Order
from tests.dashboard.serving import dashboard

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
MINUTES = timedelta(minutes=3)


def offered(app: TestClient, key: int) -> list[str]:
    text = app.get("/queue/email/task", params={"key": str(key)}).text
    return re.findall(rf'href="/queue/email/confirm/([a-z-]+)\?key={key}[&"]', text)


def change(sessions: sessionmaker[Any], **values: Any) -> None:
    with sessions.begin() as session:
        session.execute(update(Email.__table__).where(Email.__table__.c.id == 150).values(values))


@pytest.mark.parametrize(
    ("values", "actions"),
    [
        ({"status": "available"}, ["set-priority", "set-time", "cancel", "discard"]),
        ({"status": "scheduled"}, ["run-now", "set-priority", "set-time", "cancel", "discard"]),
        ({"status": "retryable"}, ["retry", "run-now", "set-priority", "set-time", "cancel", "discard"]),
        ({"status": "running", "available_at": utcnow(MINUTES)}, ["cancel", "discard"]),
        ({"status": "running", "available_at": utcnow(-MINUTES)}, ["retry", "cancel", "discard"]),  # abandoned
        ({"status": "completed", "finished_at": utcnow()}, ["rerun"]),
        ({"status": "discarded", "finished_at": utcnow()}, ["retry", "rerun"]),
    ],
)
def test_a_task_has_the_actions_that_change_it(
    app: TestClient, sessions: sessionmaker[Any], values: dict[str, Any], actions: list[str]
) -> None:
    change(sessions, claimed_at=utcnow(), **values)
    assert offered(app, 150) == actions
    for other in CHANGES.keys() - set(actions):
        question = app.get(f"/queue/email/confirm/{other}", params={"key": "150"}).text
        assert "<b>0</b> tasks will be changed" in question
        assert "primary" not in question  # nothing to confirm


def test_a_task_has_the_actions_that_its_viewer_may_perform(sessions: sessionmaker[Any]) -> None:
    app = TestClient(dashboard(sessions, authorize=lambda _: Viewer("ada", [Action.CANCEL, Action.RETRY])), headers=OWN)
    assert offered(app, 150) == ["cancel"]


def test_a_task_shows_its_progress_and_its_notes(app: TestClient, sessions: sessionmaker[Any]) -> None:
    noted = {"at": "2026-11-27T08:20:17+00:00", "attempt": 1, "text": "<b>began</b>"}
    reported = {"value": 0.29, "text": "page 2", "attempt": 1, "notes": [noted], "dropped": 3}
    with sessions.begin() as session:
        ids = [session.execute(insert(Order).values(progress=each)).inserted_primary_key[0] for each in (reported, [])]
    page, other = (app.get("/queue/orders/task", params={"key": str(key)}).text for key in ids)
    assert '<progress max="1" value="0.29" aria-label="Progress">' in page
    assert "29 %: page 2" in page
    assert "(attempt 1)" in page  # the task is at another one
    assert "3 older notes are not kept" in page
    assert "&lt;b&gt;began&lt;/b&gt;" in page
    assert "Progress" not in other


def test_priority_and_time_of_tasks_that_have_not_begun(app: TestClient, sessions: sessionmaker[Any]) -> None:
    page = app.get("/queue/email/task", params={"key": "150"}).text
    assert 'confirm/set-priority?key=150&amp;priority=0"' in page
    question = app.get("/queue/email/confirm/set-priority", params={"key": "150", "priority": "0"}).text
    assert 'name="priority" type="number" required autofocus value="0"' in question
    assert 'type="hidden" name="priority"' not in question
    done = app.post("/queue/email/set-priority", data={"key": ["150", "1"], "priority": "-7"}).text
    assert "set-priority email 150, 1: -7" in done
    assert "1 of 1 tasks changed" in done  # the other one is completed
    app.post("/queue/email/set-time", data={"key": "150", "time": "2031-02-03T04:05"})
    with sessions() as session:
        (email,) = session.find(Email, Email.id == 150)
        at = datetime(2031, 2, 3, 4, 5, tzinfo=UTC)
        assert (email.priority, email.status, email.available_at) == (-7, "scheduled", at)
        assert session.get_one(Email, 1).priority == 0
    for action, data in {"set-priority": {"priority": "x"}, "set-time": {"time": "soon"}}.items():
        for given in (data, {}):
            assert app.post(f"/queue/email/{action}", data={"key": "150", **given}).status_code == 400
    assert app.post("/queue/email/set-priority", data={"key": "150", "priority": str(2**31)}).status_code == 400


def editor(sessions: sessionmaker[Any], *may: Action) -> TestClient:
    editable = {Event: ["payload", "headers"], Email: ["recipient"]}
    viewer = Viewer("ada", may)
    return TestClient(dashboard(sessions, editable=editable, authorize=lambda _: viewer), headers=OWN)


def form(app: TestClient, queue: str, key: str, column: str) -> dict[str, str]:
    """Return the fields of the form that changes a column."""
    text = app.get(f"/queue/{queue}/edit", params={"key": key, "column": column}).text
    (value,) = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", text, re.DOTALL)
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text))
    return {**fields, "value": unescape(value)}


def test_columns_are_edited_where_the_application_permits_it(sessions: sessionmaker[Any]) -> None:
    app = editor(sessions, Action.EDIT)
    assert "edit?key=1&amp;column=payload" in app.get("/queue/event/task", params={"key": "1"}).text
    fields = form(app, "event", "1", "payload")
    assert fields["value"] == '{\n  "secret": "payload-secret"\n}'
    wrong = app.post("/queue/event/edit", data={**fields, "value": "{1}"})
    assert (wrong.status_code, "this is not JSON" in wrong.text, "{1}</textarea>" in wrong.text) == (400, True, True)
    saved = app.post("/queue/event/edit", data={**fields, "value": '{"n": [1,\r\n"ü"]}'})
    assert saved.url.path == "/queue/event/task"
    assert app.post("/queue/event/edit", data=fields).status_code == 409  # the form shows an old value
    app.post("/queue/event/edit", data={**form(app, "event", "2", "headers"), "value": '{"a": 1}'})
    app.post("/queue/event/edit", data={**form(app, "event", "2", "headers"), "value": ""})
    with sessions() as session:
        assert [event.payload for event in session.find(Event)][:2] == [{"n": [1, "ü"]}, {"secret": "payload-secret"}]
        assert len(session.find(Event, Event.headers.is_(null()))) == 3


def test_what_may_not_be_edited(sessions: sessionmaker[Any]) -> None:
    app, reader = editor(sessions, Action.EDIT), editor(sessions)
    fields = form(app, "event", "1", "payload")
    assert "edit?" not in reader.get("/queue/event/task", params={"key": "1"}).text
    for client, queue, data, status in [
        (reader, "event", fields, 403),
        (app, "event", {**fields, "column": "destination"}, 403),
        (app, "event", {**fields, "key": "99"}, 404),
        (app, "email", {"key": "1", "column": "recipient", "value": "x"}, 409),  # completed
        (app, "email", {"key": "72", "column": "recipient", "value": "x"}, 409),  # running
        (app, "email", {"key": "151", "column": "recipient", "value": "x", "was": ""}, 409),
    ]:
        assert client.post(f"/queue/{queue}/edit", data=data).status_code == status
        if "was" not in data or status != 409:
            assert client.get(f"/queue/{queue}/edit", params=data).status_code == status
    assert app.get("/queue/email/edit", params={"key": "151", "column": "recipient"}).status_code == 409  # unprintable
    assert app.post("/queue/event/edit", data=fields, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    for names in (["id"], ["status"], ["max_attempts"], ["nothing"]):
        with pytest.raises(ArgumentError):
            dashboard(sessions, editable={Event: names})


def test_structures_are_shown_as_json(sessions: sessionmaker[Any]) -> None:
    app = TestClient(dashboard(sessions, columns={Event: ["payload", "headers"]}), headers=OWN)
    page = app.get("/queue/event/task", params={"key": "1"}).text
    assert "{\n  &#34;secret&#34;: &#34;payload-secret&#34;\n}</pre>" in page
    assert ">{&#34;secret&#34;: &#34;payload-secret&#34;}</td>" in app.get("/queue/event").text


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        ("it's", "it's"),
        (Colour.RED, "red"),
        (b"\x01\xff", "0x01ff"),
        ({"a": [None, True, "ü"], "b": Colour.RED}, '{"a": [null, true, "ü"], "b": "red"}'),
        ([Point(1), {2, 1}], '[{"x": 1}, ["1", "2"]]'),
        (Point(1), '{"x": 1}'),
    ],
)
def test_no_value_is_shown_as_python_code(value: object, text: str) -> None:
    assert told(value) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"status": "available", "available_at": NOW - MINUTES}, "for 3 min"),
        ({"status": "available", "available_at": NOW + MINUTES}, "due in 3 min"),
        ({"status": "scheduled", "available_at": NOW + MINUTES}, "due in 3 min"),
        ({"status": "retryable", "available_at": NOW - MINUTES}, "due 3 min ago"),
        ({"status": "waiting", "available_at": NOW + MINUTES}, "due in 3 min"),
        ({"status": "waiting", "available_at": NEVER}, ""),
        ({"status": "running", "available_at": NOW + MINUTES, "claimed_at": NOW - 2 * MINUTES}, "for 6 min"),
        (
            {"status": "running", "available_at": NOW - MINUTES, "claimed_at": NOW - 2 * MINUTES},
            "for 6 min abandoned: its lease ended 3 min ago",
        ),
        ({"status": "running", "available_at": NOW + MINUTES, "claimed_at": None}, ""),  # enqueued again
        ({"status": "completed", "available_at": NOW, "finished_at": NOW - MINUTES}, "3 min ago"),
        ({"status": "completed", "available_at": NOW, "finished_at": None}, ""),  # before it became a queue
        ({"status": "scheduled", "available_at": "(cannot be read: x)"}, "due (cannot be read: x)"),
    ],
)
def test_how_long_a_task_has_been_in_its_state(values: dict[str, Any], text: str) -> None:
    shown = since({"claimed_at": None, "finished_at": None, **values}, NOW)
    assert re.sub(r"<.*?>", "", shown) == text


def test_relative_times_have_the_absolute_one_as_their_title() -> None:
    assert ago(NOW - MINUTES, NOW) == (
        '<time datetime="2026-11-26T11:57:00+00:00" title="2026-11-26 11:57:00 UTC">3 min ago</time>'
    )
    assert ">now</time>" in ago(NOW, NOW)
