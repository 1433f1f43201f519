"""Lists of tasks: their order, the filters, and the search in all queues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Identity, Index, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from starlette.testclient import TestClient

from sqlqueue import JobMixin, QueueMixin, QueueSession, UniqueMixin, utcnow
from sqlqueue.dashboard import Action, Dashboard, Viewer
from tests.dashboard.clients import OWN
from tests.dashboard.serving import HOSTILE


class Base(DeclarativeBase):
    pass


class Job(JobMixin, UniqueMixin, Base):
    __tablename__ = "job"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Visit(QueueMixin, Base):
    __tablename__ = "visit"

    site: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(default=0)


class Parcel(QueueMixin, Base):
    __tablename__ = "parcel"
    __table_args__ = (Index("ix_parcel_created_at", "created_at"),)

    code: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[sessionmaker[Any]]:
    engine = create_engine(f"sqlite:///{tmp_path / 'queues.db'}", connect_args={"timeout": 60})
    Base.metadata.create_all(engine)
    yield sessionmaker(engine, class_=QueueSession)
    engine.dispose()


def client(made: sessionmaker[Any], **options: Any) -> TestClient:
    viewer = Viewer("ada", list(Action))
    return TestClient(Dashboard(made, Base, authorize=lambda _: viewer, **options), headers=OWN)


def found(app: TestClient, path: str, **query: str) -> list[str]:
    """Return the keys of the tasks on a page, in their order."""
    answer = app.get(path, params=query or None)
    assert answer.status_code == 200
    return re.findall(r'<th scope="row" class="of-task[^"]*"><a href="[^"]*">([^<]*)</a>', answer.text)


def test_new_tasks_come_first_whatever_the_key(made: sessionmaker[Any]) -> None:
    for site in ("m", "z", "a"):
        with made.begin() as session:
            session.add(Visit(site=site))
    assert found(client(made), "/queue/visit") == ["a", "z", "m"]


def test_of_many_tasks_some_are_sorted_unless_an_index_has_the_order(
    made: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.tasks.SORTED", 10)
    with made.begin() as session:
        for n in range(20):
            at = utcnow(timedelta(minutes=-n))
            session.add_all([Visit(site=f"s{n:02}", created_at=at), Parcel(code=f"s{n:02}", created_at=at)])
    app = client(made)
    assert found(app, "/queue/parcel")[:4] == ["s00", "s01", "s02", "s03"]
    assert "Not all tasks were examined" not in app.get("/queue/parcel").text
    assert "of more than 10 in a group of states" in app.get("/queue/visit").text
    assert "of more than 10" not in app.get("/queue/visit", params={"newer": "1d"}).text  # a filter examines more


def test_headings_sort_the_list(made: sessionmaker[Any]) -> None:
    with made.begin() as session:
        session.add_all(Visit(site=f"s{n}", number=7, priority=n % 2, available_at=utcnow()) for n in range(60))
    app = client(made, filters={Visit: ["number"]})
    first = app.get("/queue/visit", params={"column.number": "7", "sort": "priority"})
    assert 'aria-sort="ascending"><a href="/queue/visit?column.number=7&amp;sort=-priority">Priority' in first.text
    assert 'href="/queue/visit?column.number=7&amp;sort=-time">time' in first.text
    assert 'name="sort" value="priority"' in first.text  # the form of the filter keeps it
    (next_page,) = re.findall(r'rel="next" href="([^"]+)"', first.text)
    rest = found(app, next_page.replace("&amp;", "&"))
    keys = [*found(app, "/queue/visit", sort="priority"), *rest]
    assert [int(key[1:]) % 2 for key in keys] == [0] * 30 + [1] * 30
    assert len(set(keys)) == 60
    assert app.get("/queue/visit", params={"sort": "size"}).status_code == 400


def test_function_jobs_can_be_filtered_by_their_function(made: sessionmaker[Any]) -> None:
    with made.begin() as session:
        session.add_all(Job(task=name, arguments={}) for name in ("mail", "bill", "mail"))
    app = client(made)
    assert "<label>Function <input" in app.get("/queue/job").text
    assert found(app, "/queue/job", **{"column.task": "mail"}) == ["3", "1"]


def test_a_search_finds_tasks_of_all_queues(made: sessionmaker[Any]) -> None:
    with made.begin() as session:
        session.add_all(
            [
                Job(id=1, task="shop.mail", arguments={"to": "7%", "name": "Jörg"}, unique_key="Bill-7"),
                Job(id=7, task="shop.bill", arguments={}),
                Visit(site="shop.example.org", number=7),
                Visit(site="7"),
            ]
        )
        session.discard(session.claim(Visit, Visit.site == "7"), "Timeout: no answer")
    app = client(made, filters={Job: ["arguments"], Visit: ["number"]})
    for text, keys in {
        "shop.mail": ["1"],
        "SHOP": ["7", "1"],  # not the primary keys of visits, which are compared as a whole
        "bill": ["7", "1"],  # a function and a unique key
        "timeout": ["7"],
        "7": ["7", "1", "7", "shop.example.org"],  # primary keys first
        "7%": ["1"],  # no wildcard
        "jörg": ["1"],  # stored with an escape
        "nothing": [],
    }.items():
        assert found(app, "/search", search=text) == keys, text
    assert "No matching tasks" not in app.get("/search").text
    assert found(app, "/queue/job", search="shop", **{"column.task": "shop.bill"}) == ["7"]
    assert found(client(made), "/search", search="jörg") == []  # the application has not permitted it
    assert app.get("/search", params={"search": "\0"}).status_code == 400
    assert HOSTILE not in app.get("/search", params={"search": HOSTILE}).text


def test_a_search_says_that_it_is_partial(made: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.tasks.SCAN", 10)
    with made.begin() as session:
        session.add_all(Job(id=n, task="a" if n == 15 else "b", arguments={}, unique_key=f"k{n}") for n in range(1, 31))
    app = client(made)
    text = app.get("/search", params={"search": "a"}).text
    assert "Searched only partly: job." in text
    assert "No matching tasks among those that were examined" in text
    assert found(app, "/search", search="15") == ["15"]  # keys are found by their index
    assert found(app, "/search", search="k15")[0] == "15"
    assert "Not all tasks were examined" in app.get("/queue/job", params={"search": "a"}).text
