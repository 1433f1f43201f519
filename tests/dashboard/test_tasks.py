"""What pages say of single tasks, and the actions that they offer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue import utcnow
from sqlqueue.dashboard import Action, Viewer
from sqlqueue.dashboard.rendering import ago, since, told
from tests.dashboard.clients import OWN
from tests.dashboard.models import Email, Event
from tests.dashboard.serving import dashboard

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
MINUTES = timedelta(minutes=3)


def offered(app: TestClient, key: int) -> list[str]:
    text = app.get("/queue/email/task", params={"key": str(key)}).text
    return re.findall(rf'href="/queue/email/confirm/([a-z-]+)\?key={key}"', text)


def change(sessions: sessionmaker[Any], **values: Any) -> None:
    with sessions.begin() as session:
        session.execute(update(Email.__table__).where(Email.__table__.c.id == 150).values(values))


@pytest.mark.parametrize(
    ("values", "actions"),
    [
        ({"status": "available"}, ["cancel", "discard"]),
        ({"status": "scheduled"}, ["run-now", "cancel", "discard"]),
        ({"status": "retryable"}, ["retry", "run-now", "cancel", "discard"]),
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
    every = {action.value for action in Action} & {"retry", "rerun", "run-now", "cancel", "discard"}
    for other in every.difference(actions):
        question = app.get(f"/queue/email/confirm/{other}", params={"key": "150"}).text
        assert "<b>0</b> tasks will be changed" in question
        assert "primary" not in question  # nothing to confirm


def test_a_task_has_the_actions_that_its_viewer_may_perform(sessions: sessionmaker[Any]) -> None:
    app = TestClient(dashboard(sessions, authorize=lambda _: Viewer("ada", [Action.CANCEL, Action.RETRY])), headers=OWN)
    assert offered(app, 150) == ["cancel"]


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
