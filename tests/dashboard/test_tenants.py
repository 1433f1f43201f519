"""A dashboard for several tenants, whose sessions see only their own rows: no page shows those of another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Identity, String, create_engine, event, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker, with_loader_criteria
from starlette.requests import Request

from sqlqueue import Every, QueueOptions, QueueSession, RecurringMixin, StageMixin, TopicMixin
from sqlqueue.dashboard import Action, Dashboard, Viewer
from sqlqueue.outbox import OutboxMixin
from tests.dashboard.clients import OWN, client
from tests.support.workers import eventually


class Base(DeclarativeBase):
    pass


class Tenanted:
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(20))


class Letter(Tenanted, TopicMixin, Base):
    __tablename__ = "letter"


class Parcel(Tenanted, StageMixin, Base):
    __tablename__ = "parcel"
    __queue__ = QueueOptions(stages=("pack", "send"))


class Digest(Tenanted, RecurringMixin, Base):
    __tablename__ = "digest"


class Event(Tenanted, OutboxMixin, Base):
    __tablename__ = "event"


class TenantSession(QueueSession):
    pass


tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
NUMBERS = {"amber": 3, "violet": 5}
"""How many tasks of each queue each tenant has."""
PAGES = [
    "/",
    "/errors",
    "/schedules",
    "/outbox",
    "/pipelines",
    "/metrics",
    "/queue/letter",
    "/queue/letter?status=retryable",
    "/queue/letter?newer=1d",
    "/queue/parcel",
    "/search?search=topic",
    "/queue/digest",
    "/queue/event",
    "/queue/letter/task?key=1",
    "/queue/letter/task?key=4",
    "/queue/parcel/task?key=1",
    "/queue/letter/confirm/cancel?scope=filter",
]


@event.listens_for(TenantSession, "do_orm_execute")
def _only_own(state: Any) -> None:
    whose = tenant.get()
    if whose is not None and state.is_select and not state.is_column_load and not state.is_relationship_load:
        own = with_loader_criteria(Tenanted, lambda each: each.tenant == whose, include_aliases=True)
        state.statement = state.statement.options(own)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[Any]]:
    engine = create_engine(f"sqlite:///{tmp_path / 'tenants.db'}", connect_args={"timeout": 60})
    Base.metadata.create_all(engine)
    made = sessionmaker(engine, class_=TenantSession)
    with made.begin() as session:
        for name, number in NUMBERS.items():
            for _ in range(number):
                session.add(Letter(tenant=name, topic=f"{name} topic"))
                session.add(Parcel(tenant=name, stage="pack"))
                session.add(Digest(tenant=name, schedule=Every(timedelta(days=number))))
                session.add(Event(tenant=name, message_key=f"{name} message", destination="x", payload={}))
    with made.begin() as session:
        for name in NUMBERS:
            task = session.claim(Letter, Letter.tenant == name)
            session.fail(task, f"{name} error", retry_in=timedelta(days=1))
    yield made
    engine.dispose()


def by_header(request: Request) -> Viewer:
    name = request.headers["x-tenant"]
    tenant.set(name)
    return Viewer("ada", frozenset(Action), scope=name)


async def by_header_too(request: Request) -> Viewer:
    return by_header(request)


def seen(sessions: sessionmaker[Any], authorize: Callable[[Request], Any]) -> Callable[[str, str], str]:
    """Return a function that returns a page as a tenant sees it, without durations, which differ at each read."""
    columns = {model: ["tenant"] for model in (Letter, Parcel, Digest, Event)}
    app = client(Dashboard(sessions, Base, authorize=authorize, columns=columns), **OWN)

    def page(path: str, name: str) -> str:
        answer = app.get(path, headers={"x-tenant": name})
        text = re.sub(r"<time.*?</time>|[\d.]+ (ms|s|min|h)\b|seconds\{.*", "", answer.text)
        return f"{answer.status_code} {text}"

    return page


@pytest.mark.parametrize(("authorize", "pages"), [(by_header, PAGES), (by_header_too, PAGES[:1])])
def test_no_page_shows_what_another_tenant_has_read(
    sessions: sessionmaker[Any], authorize: Callable[[Request], Any], pages: list[str]
) -> None:
    alone = {name: seen(sessions, authorize) for name in NUMBERS}
    shared = seen(sessions, authorize)
    for path in pages:
        assert alone["amber"](path, "amber") != alone["violet"](path, "violet")
        for name, other in (("amber", "violet"), ("violet", "amber"), ("amber", "violet")):
            text = shared(path, name)
            assert text == alone[name](path, name)
            assert other not in text


def test_viewers_of_a_tenant_share_what_pages_have_read(sessions: sessionmaker[Any]) -> None:
    page = seen(sessions, by_header)
    first = page("/queue/letter", "amber")
    with sessions.begin() as session:
        session.add(Letter(tenant="amber", topic="amber too"))
    assert page("/queue/letter", "amber") == first
    assert "amber" not in page("/queue/letter", "violet")


@pytest.mark.parametrize("batch", [2, 100_000])
def test_actions_change_all_tasks_of_the_tenant_and_no_others(
    sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Even if those of others come first, in any number."""
    monkeypatch.setattr("sqlqueue.operations.bulk.PAGE", batch)
    app = client(Dashboard(sessions, Base, authorize=by_header), **OWN)
    others, own = range(1, 4), range(4, 9)
    for data in ({"key": [str(key) for key in (*others, 5)]}, {"scope": "filter"}):
        answer = app.post("/queue/letter/cancel", data=data, headers={"x-tenant": "violet"}, follow_redirects=False)
        id = answer.headers["location"].partition("change=")[2]
        eventually(lambda id=id: "Done:" in app.get(f"/?change={id}", headers={"x-tenant": "violet"}).text)
        cancelled = [5] if "key" in data else list(own)
        with sessions() as session:
            assert session.scalars(select(Letter.id).where(Letter.status == "cancelled").order_by(Letter.id)).all() == (
                cancelled
            )


def test_a_tenant_neither_sees_nor_stops_the_change_of_another(sessions: sessionmaker[Any]) -> None:
    """Even of a viewer with the same name."""
    app = client(Dashboard(sessions, Base, authorize=by_header), **OWN)
    answer = app.post(
        "/queue/letter/cancel", data={"scope": "filter"}, headers={"x-tenant": "amber"}, follow_redirects=False
    )
    id = answer.headers["location"].partition("change=")[2]
    assert "3 of 3 tasks changed" in app.get(f"/?change={id}", headers={"x-tenant": "amber"}).text
    assert "Progress unknown" in app.get(f"/?change={id}", headers={"x-tenant": "violet"}).text
    assert app.post(f"/changes/{id}/stop", headers={"x-tenant": "violet"}).status_code == 404
