"""Metrics of the queues for Prometheus."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from sqlqueue.dashboard import Dashboard
from sqlqueue.dashboard.standalone import Token, with_login
from tests.dashboard.clients import TOKEN
from tests.dashboard.models import Base, Email, Latch
from tests.dashboard.serving import dashboard, fill_batch


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_metrics_are_those_of_each_queue(sessions: sessionmaker[Any]) -> None:
    app = TestClient(Starlette(routes=[Mount("/ops/queues", dashboard(sessions))]))
    fill_batch(sessions)
    answer = app.get("/ops/queues/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = samples(answer.text)
    with sessions() as session:
        overview = session.overview(Email)
    for status, number in overview.counts.items():
        assert found["sqlqueue_tasks", "email", status] == number
    assert found["sqlqueue_tasks", "crawl", "running"] == 2
    assert found["sqlqueue_oldest_claimable_seconds", "email"] > 0
    assert found["sqlqueue_tasks_abandoned", "email"] == 0
    assert found["sqlqueue_batches_unfinished", Latch.__tablename__] == 1
    assert found["sqlqueue_oldest_batch_seconds", Latch.__tablename__] > 0


def test_many_scrapers_cost_as_much_as_one(sessions: sessionmaker[Any]) -> None:
    statements: list[str] = []
    event.listen(sessions.kw["bind"], "before_cursor_execute", lambda *given: statements.append(given[2]))
    with TestClient(dashboard(sessions)) as app:
        app.get("/metrics")
    once, statements[:] = len(statements), []
    with TestClient(dashboard(sessions)) as app, ThreadPoolExecutor(8) as threads:
        texts = set(threads.map(lambda _: app.get("/metrics").text, range(24)))
    assert once > 0
    assert (len(statements), len(texts)) == (once, 1)


def test_metrics_need_the_permission_to_read(sessions: sessionmaker[Any]) -> None:
    token = Token(TOKEN, [])
    app = TestClient(with_login(Dashboard(sessions, Base, authorize=token), token), follow_redirects=False)
    for headers in ({}, {"Accept": "text/html"}, {"Authorization": "Bearer wrong"}):
        refused = app.get("/metrics", headers=headers)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert "sqlqueue_tasks" not in refused.text
    assert "sqlqueue_tasks" in app.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text
    refusing = TestClient(dashboard(sessions, authorize=lambda _: None))
    assert refusing.get("/metrics").status_code == 403


def test_without_the_client_library_the_response_names_the_extra(
    sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.pages.HAS_PROMETHEUS", False)
    answer = TestClient(dashboard(sessions)).get("/metrics")
    assert answer.status_code == 404
    assert "sqlalchemy-queue[prometheus]" in answer.text
