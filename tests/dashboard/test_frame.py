"""What surrounds every page: its title, and the colours that a viewer chooses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.dashboard.clients import OWN, client
from tests.dashboard.serving import dashboard

TITLES = {
    "/": "Overview",
    "/queue/email": "email",
    "/queue/email/task?key=62": "email 62",
    "/queue/email/confirm/run-now?key=62": "Run now: email",
    "/workers/confirm/stop-workers?scope=all": "Stop workers",
    "/errors": "Errors",
    "/schedules": "Schedules",
    "/limits": "Limits",
    "/workers": "Workers",
    "/outbox": "Outbox",
    "/pipelines": "Pipelines",
    "/nothing": "Request failed",
}


def test_each_page_has_a_title_of_its_own(sessions: sessionmaker[Any]) -> None:
    app = TestClient(dashboard(sessions, title="Shop"))
    found = {path: re.findall(r"\n<title>(.*?)</title>", app.get(path).text) for path in TITLES}
    assert found == {path: [f"{title} \N{EN DASH} Shop"] for path, title in TITLES.items()}


@pytest.mark.parametrize("prefix", ["", "/ops"])
def test_a_viewer_chooses_colours(sessions: sessionmaker[Any], prefix: str) -> None:
    app = client(Starlette(routes=[Mount(prefix or "/", dashboard(sessions))]), **OWN)
    assert "data-theme" not in app.get(f"{prefix}/errors").text
    page = f"http://localhost:8090{prefix}/queue/email?status=running&topic=a+b"
    for theme in ("dark", "light"):
        answer = app.post(f"{prefix}/theme", data={"theme": theme}, headers={"referer": page})
        assert str(answer.url) == page
        assert f'<html lang="en" data-theme="{theme}">' in answer.text
        assert f'value="{theme}" aria-describedby="theme" aria-pressed="true"' in answer.text
    for theme in ("", "pink", '"><script>'):
        assert "data-theme" not in app.post(f"{prefix}/theme", data={"theme": theme}).text
    assert "data-theme" not in app.get(f"{prefix}/errors", headers={"cookie": "sqlqueue_theme=pink"}).text


@pytest.mark.parametrize(
    "referer",
    ["", "http://[::1", "//", "https://a//evil.example.org/x", "https://a/\\evil.example.org", "x:/\r"],
)
def test_choosing_colours_leads_to_a_page_of_the_dashboard(sessions: sessionmaker[Any], referer: str) -> None:
    app = client(dashboard(sessions))
    headers = {**OWN, "referer": referer}
    answer = app.post("/theme", data={"theme": "dark"}, headers=headers, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] in ("/", "/%5Cevil.example.org")
