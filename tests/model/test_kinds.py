"""A kind of queue needs only one module: the kind below is defined outside the package."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import ClassVar

import pytest
from sqlalchemy import Engine, Identity, case, create_engine, inspect, literal_column, null
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import StaticPool

from sqlqueue import ArgumentError, ConfigurationError, QueueMixin, QueueOptions, QueueSession, verify_schema
from sqlqueue._support import checks
from sqlqueue.dialects import key_type
from sqlqueue.lifecycle.kind import Kind, KindIndex
from sqlqueue.model.declaration import counter, optional
from sqlqueue.queue.spec import Criterion, QueueSpec
from sqlqueue.sql import Assignment


class Reviews(Kind):
    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        return "what is deleted has no reviewer" if "reviewer" in roles and options.on_complete == "delete" else None

    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        yield KindIndex("reviewer", [spec["reviewer"]], spec["reviewer"].is_not(None))

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        return [(spec["rounds"], spec["rounds"] + literal_column("1"))]

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        return [(spec["reviewer"], case((running, spec["reviewer"]), else_=null()))]


REVIEWS = Reviews(
    columns={"reviewer": lambda _: optional(key_type(20)), "rounds": lambda _: counter()},
    checks={"reviewer": checks.key},
    written_by_queue=("rounds",),
)


class ReviewMixin(QueueMixin):
    __queue_kind__: ClassVar[Kind | None] = REVIEWS


class Base(DeclarativeBase): ...


class Paper(ReviewMixin, Base):
    __tablename__ = "paper"
    __queue__ = QueueOptions(max_attempts=2)
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_a_kind_adds_columns_and_an_index(engine: Engine) -> None:
    found = inspect(engine)
    assert {"reviewer", "rounds", "status"} <= {column["name"] for column in found.get_columns("paper")}
    assert "ix_paper_reviewer" in {index["name"] for index in found.get_indexes("paper")}
    with engine.connect() as connection:
        verify_schema(connection, Base.metadata)


def test_a_kind_takes_part_when_a_task_is_made_available_again(engine: Engine) -> None:
    with QueueSession(engine) as session, session.begin():
        session.enqueue(Paper, [{"id": 1, "reviewer": "ada"}])
        paper = session.claim(Paper)
        assert paper is not None
        session.discard(paper, "no")
        assert session.retry(Paper) == 1
        assert (paper.rounds, paper.reviewer) == (1, "ada")  # type: ignore[attr-defined]
        session.cancel(Paper)
        session.enqueue(Paper, [{"id": 1}], on_conflict="replace")
        session.refresh(paper)
        assert (paper.status, paper.rounds, paper.reviewer) == ("available", 1, None)  # type: ignore[attr-defined]


def test_a_kind_refuses_values_and_options(engine: Engine) -> None:
    with QueueSession(engine) as session, pytest.raises(ArgumentError, match="reviewer=''"):
        session.enqueue(Paper, [{"reviewer": ""}])
    with pytest.raises(ConfigurationError, match="what is deleted has no reviewer"):
        type("Draft", (ReviewMixin, Base), {"__tablename__": "draft", "__queue__": QueueOptions(on_complete="delete")})
