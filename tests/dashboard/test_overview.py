"""What ended: counted alike on all pages, from the history where there is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Identity, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from starlette.testclient import TestClient

from sqlqueue import QueueMixin, QueueOptions, QueueSession
from sqlqueue.dashboard import Dashboard, Viewer
from tests.dashboard.models import Crawl, Event, Page, Step
from tests.dashboard.serving import ERROR


def row(page: str, queue: str) -> str:
    (found,) = re.findall(rf'<tr>\s*<th scope="row"><a href="/queue/{queue}">.*?</tr>', page, re.DOTALL)
    return found


def test_a_page_counts_what_ended_once_and_by_one_word(app: TestClient, sessions: sessionmaker[Any]) -> None:
    """Of 66 final tasks four more attempts have failed, which are to be retried."""
    page, queue = app.get("/").text, app.get("/queue/email").text
    assert "ended attempts, last hour<b>70</b>10 failed" in page
    assert 'data-label="Ended">70</td>' in row(page, "email")
    assert "Ended attempts, last hour</th>" in page
    assert "Ended attempts, last hour: <b>70</b>, of which <b>10</b> failed." in queue
    for text in (page, queue):
        assert "Ended attempts, last hour: 60 completed, 10 failed, 0 cancelled" in text
    for period in ("day", "week"):
        assert f"ended attempts, last {period}<b>70</b>" in app.get("/", params={"period": period}).text
    assert app.get("/", params={"period": "age"}).text == page


def test_tasks_that_cannot_start_are_counted(app: TestClient, sessions: sessionmaker[Any]) -> None:
    """Those of a key at its limit, and those that wait for others."""
    with sessions.begin() as session:
        session.enqueue(Crawl, [{"limit_key": "full"}] * 5)
        session.claim_many(Crawl, Crawl.limit_key == "full", limit=5)
        session.enqueue(Step(), after="delivery")
        limited, waiting = session.overview(Crawl).limited, session.stats(Step)["waiting"]
    page = app.get("/").text
    assert f"+ {limited} at limits" in row(page, "crawl")
    assert f"; {limited} more at limits" in page
    assert min(limited, waiting) > 0
    assert f'data-label="Later">{waiting}<' in row(page, "step")


def test_a_page_says_whose_waiting_times_are_not_known(app: TestClient, sessions: sessionmaker[Any]) -> None:
    with sessions.begin() as session:
        session.add(Page(address="/"))
        session.flush()
        session.complete(session.claim(Page, Page.address == "/"))
    assert "Waiting times of page are not known" in app.get("/").text
    assert "Waiting times of page are not known" in app.get("/queue/page").text
    assert "are not known" not in app.get("/queue/email").text


def test_messages_that_were_published_and_deleted_are_counted(app: TestClient, sessions: sessionmaker[Any]) -> None:
    with sessions.begin() as session:
        for _ in range(2):  # one after another, as they have the same key
            session.complete(session.claim(Event))
        session.fail(session.claim(Event), ERROR)
        assert session.stats(Event).total == 1
    assert 'data-label="Published">2</td><td class="n" data-label="Failed">1</td>' in row(
        app.get("/outbox").text, "event"
    )
    assert 'data-label="Ended">3</td>' in row(app.get("/").text, "event")


def test_a_queue_without_an_index_of_finished_tasks_is_not_read(app: TestClient, sessions: sessionmaker[Any]) -> None:
    """Only its attempts are."""
    app.get("/")
    read: list[str] = []
    event.listen(sessions.kw["bind"], "before_cursor_execute", lambda *given: read.append(given[2]))
    app.get("/", params={"period": "week"})
    assert [
        table for table in ("email", "orders", "page", "event") if any(f"FROM {table} " in each for each in read)
    ] == [
        "email",
        "orders",
    ]
    assert any("FROM attempt " in each for each in read)


class Bare(DeclarativeBase):
    pass


class Plain(QueueMixin, Bare):
    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Kept(QueueMixin, Bare):
    __tablename__ = "kept"
    __queue__ = QueueOptions(retention=timedelta(days=1))
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Gone(QueueMixin, Bare):
    __tablename__ = "gone"
    __queue__ = QueueOptions(retention=timedelta(days=1), on_complete="delete")
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[sessionmaker[Any]]:
    engine = create_engine(f"sqlite:///{tmp_path / 'bare.db'}")
    Bare.metadata.create_all(engine)
    yield sessionmaker(engine, class_=QueueSession)
    engine.dispose()


def test_without_a_history_pages_say_what_counts_tasks(bare: sessionmaker[Any]) -> None:
    with bare.begin() as session:
        session.add_all([Plain(), Kept(), Gone()])
        session.flush()
        for model in (Plain, Kept, Gone):
            session.complete(session.claim(model))
    app = TestClient(Dashboard(bare, Bare, authorize=lambda _: Viewer("ada")))
    page = app.get("/").text
    assert 'data-label="Ended">1</td>' in row(page, "kept")
    assert [name for name in ("plain", "gone") if "not known" not in row(page, name)] == []
    assert "What ended is not known of gone, plain: give the application a HistoryMixin" in page
    assert "or this queue a retention" in app.get("/queue/plain").text
    assert "give the application a HistoryMixin." in app.get("/queue/gone").text
    (kept,) = re.findall("Ended tasks, last hour: .*?</p>", app.get("/queue/kept").text)
    assert kept == "Ended tasks, last hour: <b>1</b>, of which <b>0</b> failed.</p>"
