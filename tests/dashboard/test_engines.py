"""The dashboard on each engine: its pages, the time limit of its statements, and the command that serves it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from html import unescape
from typing import Any

import httpx2
import pytest
from sqlalchemy import Select, event, func, select
from sqlalchemy.orm import (
    ORMExecuteState,
    Session,
    aliased,
    object_session,
    sessionmaker,
    with_loader_criteria,
)
from starlette.testclient import TestClient

from sqlqueue.dashboard import Action, Dashboard, Viewer
from tests.dashboard.clients import OWN, TOKEN
from tests.support.flows import Flow, Note, Page, sync_flow
from tests.support.harness import Database
from tests.support.models import Mail
from tests.support.rows import PAST, TOMORROW
from tests.support.workers import eventually

__all__ = ["sync_flow"]

PAGES = (
    "/",
    "/queue/mail",
    "/queue/mail?status=running",
    "/queue/mail?error=none&topic=a",
    "/search?search=no",
    "/errors",
    "/metrics",
)


def store(db: Database) -> None:
    common = {"topic": "a", "attempt": 1}
    db.insert(Mail, [{**common, "status": "discarded", "error": "no", "available_at": PAST, "finished_at": PAST}] * 3)
    db.insert(Mail, [{**common, "status": "scheduled", "available_at": TOMORROW}] * 2)


def test_pages(sync_db: Database) -> None:
    store(sync_db)
    with TestClient(Dashboard(sessionmaker(sync_db.engine), Mail, authorize=lambda _: Viewer("ada"))) as client:
        texts = {path: client.get(path) for path in PAGES}
        assert {path: answer.status_code for path, answer in texts.items() if answer.status_code != 200} == {}
    assert 'sqlqueue_tasks{queue="mail",status="discarded"} 3.0' in texts["/metrics"].text
    assert re.search(r'<a href="/queue/mail\?error_group=\w+">3</a>', texts["/errors"].text)


def test_a_whole_batch_is_retried_and_cancelled(sync_flow: Database) -> None:
    with sync_flow.begin() as session, session.batch("import 7") as batch:
        batch.add(Page, [{} for _ in range(2)])
        batch.add(Note(name="member"))
    with sync_flow.begin() as session:
        for model in (Page, Note):
            session.discard(session.claim(model), "boom")
    app = Dashboard(sessionmaker(sync_flow.engine), Flow, authorize=lambda _: Viewer("ada", list(Action)))
    with TestClient(app, headers=OWN) as client:
        for action, told in (("retry", "2 of 2"), ("cancel", "3 of 3")):
            (path,) = set(re.findall(rf'href="([^"]*/confirm/{action}[^"]*)"', client.get("/batch?key=import+7").text))
            form = client.get(unescape(path)).text
            fields = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]+)"', form))
            done = client.post(path.partition("?")[0].replace("confirm/", ""), data=fields, follow_redirects=True)
            assert f"{action} batch import 7. {told} tasks changed" in " ".join(done.text.split())
        assert "/confirm/" not in client.get("/batch?key=import+7").text
    assert sync_flow.committed.progress(Page, "import 7").cancelled == 3


@pytest.mark.parametrize(
    "query",
    [
        "since=0001-01-01T00:00&until=9999-12-31T23:59",
        "older=5200w&newer=5200w",
        "key=9223372036854775807",
        "topic=%F0%9F%92%8C&error=%25%25%5C",
    ],
)
def test_extreme_filters_are_not_errors(sync_db: Database, query: str) -> None:
    with TestClient(Dashboard(sessionmaker(sync_db.engine), Mail, authorize=lambda _: Viewer("ada"))) as client:
        answer = client.get(f"/queue/mail?{query}")
    assert answer.status_code == 200 or "too large for its column" in answer.text


def endless() -> Select[Any]:
    first, *others = (aliased(Mail) for _ in range(14))  # 5 to the power of 14 rows
    found = select(func.sum(sum((each.id for each in others), first.id))).select_from(first)
    for each in others:
        found = found.join(each, first.id < each.id + 1_000_000)
    return found


def impatient(sessions: sessionmaker[Any], **options: Any) -> TestClient:
    """Return a client of a dashboard whose statements may take 0.3 seconds."""
    limit = timedelta(milliseconds=300)
    may = Viewer("ada", list(Action))
    return TestClient(Dashboard(sessions, Mail, authorize=lambda _: may, statement_limit=limit, **options), headers=OWN)


def test_a_statement_that_takes_longer_than_the_limit_is_ended(sync_db: Database) -> None:
    store(sync_db)

    def link(task: Any) -> str:
        object_session(task).scalar(endless())
        return "/"

    with sync_db.begin() as session:
        key = min(mail.id for mail in session.find(Mail))
    with impatient(sessionmaker(sync_db.engine), link=link) as client:
        assert client.get("/queue/mail/task", params={"key": str(key)}).status_code == 503
        assert client.get("/queue/mail").status_code == 200  # the connection can be used again


def test_counting_before_an_action_has_the_limit_as_well(sync_db: Database) -> None:
    """The application's own criteria may take long: they are added to each statement that counts tasks."""
    store(sync_db)
    sessions = sessionmaker(sync_db.engine, class_=type("Slow", (Session,), {}))

    @event.listens_for(sessions, "do_orm_execute")
    def restrict(state: ORMExecuteState) -> None:
        state.statement = state.statement.options(with_loader_criteria(Mail, endless().scalar_subquery() > 0))

    filter = {"scope": "filter"}
    with impatient(sessions) as client:
        assert client.get("/queue/mail/confirm/cancel", params=filter).status_code == 503
        assert client.post("/queue/mail/cancel", data=filter).status_code == 503
    with sync_db.begin() as session:
        assert session.stats(Mail)["cancelled"] == 0


@contextmanager
def command(db: Database, *options: str) -> Iterator[httpx2.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = db.url.set(drivername=db.case.sync_driver).render_as_string(hide_password=False)
    arguments = ["dashboard", "tests.support.models:Mail", "--url", url, "--port", str(port), *options]
    process = subprocess.Popen(
        [sys.executable, "-c", "from sqlqueue.cli import main; main()", *arguments],
        env={**os.environ, "SQLQUEUE_DASHBOARD_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            assert process.stdout is not None
            assert f"http://127.0.0.1:{port}/" in process.stdout.readline()
            eventually(lambda: _answers(client), within=90)
            yield client
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.communicate()


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/login").status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.requires("partial_indexes")  # an embedded engine and one with a server are enough
def test_the_command(sync_db: Database) -> None:
    store(sync_db)
    with command(sync_db) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/", headers={"Accept": "text/html"}).headers["location"] == "/login"
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert "mail" in client.get("/").text
        assert 'status="discarded"} 3.0' in client.get("/metrics").text
