"""Pages read only what they show, and only the beginning of long values."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import ForeignKey, Identity, LargeBinary, String, Text, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from starlette.testclient import TestClient

from sqlqueue import QueueMixin, QueueSession
from sqlqueue.dashboard import Dashboard, Viewer
from tests.support.harness import Database
from tests.support.models import Mail


class Heirs(DeclarativeBase):
    pass


class Document(QueueMixin, Heirs):
    __tablename__ = "document"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    __mapper_args__: ClassVar[dict[str, str]] = {"polymorphic_on": "kind", "polymorphic_identity": "document"}


class Letter(Document):
    __tablename__ = "letter"

    id: Mapped[int] = mapped_column(ForeignKey(Document.id), primary_key=True)
    body: Mapped[str] = mapped_column(Text)
    __mapper_args__: ClassVar[dict[str, str]] = {"polymorphic_identity": "letter"}


SIZE = 2_000_000
ROWS = 20


class Base(DeclarativeBase):
    pass


class Blob(QueueMixin, Base):
    __tablename__ = "blob"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    body: Mapped[str] = mapped_column(Text)
    data: Mapped[bytes] = mapped_column(LargeBinary)


@pytest.fixture
def blobs(tmp_path: Path) -> Any:
    engine = create_engine(f"sqlite:///{tmp_path / 'blobs.db'}", connect_args={"timeout": 60})
    Base.metadata.create_all(engine)
    made = sessionmaker(engine, class_=QueueSession)
    for _ in range(ROWS):
        with made.begin() as session:
            session.add(Blob(body="x" * SIZE, data=b"y" * SIZE))
    yield made
    engine.dispose()


@pytest.mark.parametrize("columns", [{}, {Blob: ["body"]}])
def test_the_memory_of_a_page_does_not_depend_on_the_size_of_values(blobs: Any, columns: Any) -> None:
    with TestClient(Dashboard(blobs, Base, authorize=lambda _: Viewer("ada"), columns=columns)) as app:
        for path in ("/queue/blob?newer=1d", "/queue/blob/task?key=1"):
            app.get(path.replace("1", "2"))  # imports and caches
            tracemalloc.start()
            text = app.get(path).text
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert ("xxx" in text) == bool(columns)
            assert peak < 2 * SIZE


def test_no_page_reads_columns_that_it_does_not_show(blobs: Any) -> None:
    seen: list[str] = []
    event.listen(blobs.kw["bind"], "before_cursor_execute", lambda *given: seen.append(given[2]))
    with TestClient(Dashboard(blobs, Base, authorize=lambda _: Viewer("ada"))) as app:
        for path in ("/", "/errors", "/queue/blob", "/queue/blob?error=x", "/queue/blob/task?key=1"):
            assert app.get(path).status_code == 200
    assert seen
    assert not any("body" in each or "data" in each for each in seen)


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # a cartesian product would show in the texts
def test_texts_of_joined_tables_are_those_of_their_task(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'letters.db'}", connect_args={"timeout": 60})
    Heirs.metadata.create_all(engine)
    sessions = sessionmaker(engine, class_=QueueSession)
    with sessions.begin() as session:
        session.add_all([Letter(id=1, body="first"), Letter(id=2, body="second")])
    app = TestClient(Dashboard(sessions, Letter, authorize=lambda _: Viewer("ada"), columns={Letter: ["body", "kind"]}))
    (name,) = re.findall(r'href="/queue/(\w+)"', app.get("/").text)
    text = app.get(f"/queue/{name}").text
    assert re.findall(r">(first|second|letter)</td>", text) == ["second", "letter", "first", "letter"]
    assert "<dd>first</dd>" in app.get(f"/queue/{name}/task?key=1").text
    engine.dispose()


def test_long_texts_are_cut_by_the_database(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the page of a queue before that of a task."""
    monkeypatch.setattr("sqlqueue.dashboard.tasks.CELL", 10)
    monkeypatch.setattr("sqlqueue.dashboard.tasks.LONGEST", 20)
    sync_db.insert(
        Mail,
        [{"id": 1, "topic": "a", "subject": "äbcdefghijklmnopqrstuvwxyz"}, {"id": 2, "topic": "a", "subject": "short"}],
    )
    given: list[tuple[int, object]] = []

    def redact(task: Any, name: str, value: object) -> object:
        given.append((task.id, value))
        return value

    sessions, columns = sessionmaker(sync_db.engine), {Mail: ["subject"]}
    app = TestClient(Dashboard(sessions, Mail, authorize=lambda _: Viewer("ada"), columns=columns, redact=redact))
    text = app.get("/queue/mail").text
    assert ">äbcdefghij…</td>" in text
    assert ">short</td>" in text
    assert set(given) == {(1, "äbcdefghijk"), (2, "short")}  # one more shows that it was cut
    assert "<dd>äbcdefghijklmnopqrst…</dd>" in app.get("/queue/mail/task?key=1").text
