"""The dashboard on each engine: its pages, the time limit of its statements, and the command that serves it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import aliased, object_session, sessionmaker
from starlette.testclient import TestClient

from sqlqueue.dashboard import Dashboard, Viewer
from tests.support.harness import Database
from tests.support.models import Mail
from tests.support.rows import PAST, TOMORROW
from tests.support.workers import eventually

TOKEN = "a-token-of-some-length"
PAGES = ("/", "/queue/mail", "/queue/mail?status=running", "/queue/mail?error=none&topic=a", "/errors", "/metrics")


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
    assert '<td class="n">3</td>' in texts["/errors"].text


def test_a_statement_that_takes_longer_than_the_limit_is_ended(sync_db: Database) -> None:
    store(sync_db)

    def link(task: Any) -> str:
        first, *others = (aliased(Mail) for _ in range(14))  # 5 to the power of 14 rows
        endless = select(func.sum(sum((each.id for each in others), first.id))).select_from(first)
        for each in others:
            endless = endless.join(each, first.id < each.id + 1_000_000)
        object_session(task).scalar(endless)
        return "/"

    with sync_db.begin() as session:
        key = min(mail.id for mail in session.find(Mail))
    app = Dashboard(
        sessionmaker(sync_db.engine),
        Mail,
        authorize=lambda _: Viewer("ada"),
        link=link,
        statement_limit=timedelta(milliseconds=300),
    )
    with TestClient(app) as client:
        assert client.get("/queue/mail/task", params={"key": str(key)}).status_code == 503
        assert client.get("/queue/mail").status_code == 200  # the connection can be used again


@contextmanager
def command(db: Database) -> Iterator[httpx2.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = db.url.set(drivername=db.case.sync_driver).render_as_string(hide_password=False)
    arguments = ["dashboard", "tests.support.models:Mail", "--url", url, "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from sqlqueue.cli import main; main()", *arguments],
        env={**os.environ, "SQLQUEUE_DASHBOARD_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
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
        assert "Mail" in client.get("/").text
        assert 'status="discarded"} 3.0' in client.get("/metrics").text
