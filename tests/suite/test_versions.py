"""Queues with a `version_id_col`: by a counter, by a generator, and by the server."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import FetchedValue, Identity, Integer, String, delete, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.orm.exc import StaleDataError

from sqlqueue import ArgumentError, QueueSession, UniqueMixin, claim_of
from tests.suite.settlements import ENDINGS, SETTLINGS
from tests.support.harness import Actor, Database
from tests.support.models import Base, Listing
from tests.support.rows import load_all

pytestmark = pytest.mark.sync_only


class Draft(UniqueMixin, Base):
    """A model with an integer version."""

    __tablename__ = "draft"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    text: Mapped[str] = mapped_column(String(20), default="")
    counter: Mapped[int] = mapped_column("version", Integer, nullable=False)
    __mapper_args__ = {"version_id_col": counter}  # noqa: RUF012 - as SQLAlchemy has it


class Edition(UniqueMixin, Base):
    """A model with generated version strings."""

    __tablename__ = "edition"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    text: Mapped[str] = mapped_column(String(20), default="")
    counter: Mapped[str] = mapped_column(String(32), nullable=False)
    __mapper_args__ = {"version_id_col": counter, "version_id_generator": lambda _: uuid.uuid4().hex}  # noqa: RUF012


class Apart(DeclarativeBase):
    """A base for models that not every engine supports."""


class Press(UniqueMixin, Apart):
    """A model whose versions the server generates."""

    __tablename__ = "press"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    text: Mapped[str] = mapped_column(String(20), default="")
    row_version: Mapped[int] = mapped_column("xmin", Integer, system=True, server_default=FetchedValue())
    __mapper_args__ = {"version_id_col": row_version, "version_id_generator": False}  # noqa: RUF012


MODELS = (Draft, Edition)


def one(db: Database, model: Any) -> Any:
    return db.committed.run(lambda session: session.scalars(select(model)).one())


@pytest.mark.parametrize("model", MODELS)
def test_a_new_row_has_a_version(db: Database, model: Any) -> None:
    for on_conflict in ("raise", "ignore", "replace", "rerun"):
        db.committed.enqueue(model, [{"unique_key": f"row, {on_conflict}"}], on_conflict=on_conflict)
        db.committed.enqueue(model(unique_key=f"instance, {on_conflict}"), on_conflict=on_conflict)
    if db.case.copies:
        db.committed.enqueue(model, [{"unique_key": "k"}], copy=True)
    counters = [each.counter for each in load_all(db, model)]
    assert len(counters) == 8 + db.case.copies
    assert all(counter == 1 if model is Draft else len(counter) == 32 for counter in counters)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("on_conflict", ["ignore", "replace", "rerun"])
def test_a_row_that_is_replaced_is_another_version(db: Database, model: Any, on_conflict: Any) -> None:
    db.committed.enqueue(model(unique_key="k"))
    with db.begin() as actor:
        draft = one(db, model)
        seen = draft.counter
        actor.enqueue(model(unique_key="k", text="new"), on_conflict=on_conflict)
    assert (one(db, model).counter == seen) is (on_conflict == "ignore")
    with db.session() as actor:
        actor.add(draft)
        draft.text = "mine"
        if on_conflict == "ignore":
            actor.commit()
        else:
            with pytest.raises(StaleDataError):
                actor.flush()
            actor.rollback()


@pytest.mark.parametrize("model", MODELS)
def test_the_third_replacement_is_not_the_first_version_again(db: Database, model: Any) -> None:
    seen = set()
    for _ in range(4):
        db.committed.enqueue(model, [{"unique_key": "k"}], on_conflict="replace")
        seen.add(one(db, model).counter)
    assert len(seen) == 4


def test_a_late_change_creates_no_version(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Draft, [{"id": 5, "text": "b"}], on_conflict="replace", version=Draft.text)
        actor.enqueue(Draft, [{"id": 5, "text": "a"}], on_conflict="replace", version=Draft.text)
    assert one(db, Draft).counter == 1


@pytest.mark.parametrize("model", MODELS)
def test_a_version_may_decide_which_row_is_newer(db: Database, model: Any) -> None:
    with db.begin() as actor:
        rows = [{"id": 5, "counter": value} for value in ((3, 7, 5) if model is Draft else "acb")]
        for row in rows:
            actor.enqueue(model, [row], on_conflict="replace", version=model.counter)
    assert one(db, model).counter == (7 if model is Draft else "c")


def change(actor: Actor, task: Any, text: str) -> None:
    def write(_: Any) -> None:
        task.text = text

    actor.run(write)
    actor.flush()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("lease", ["default", None])
def test_a_claimed_instance_is_written_by_the_orm_too(db: Database, model: Any, lease: Any) -> None:
    for call in ENDINGS:
        db.committed.enqueue(model(unique_key="k"))
        with db.begin() as actor:
            task = actor.claim(model, lease=lease)
            change(actor, task, "first")
            if lease is not None:
                actor.heartbeat(task)
                change(actor, task, "second")
            SETTLINGS[call](actor, task)
            change(actor, task, "third")
        assert one(db, model).text == "third", call
        db.execute(delete(model))


@pytest.mark.parametrize("model", MODELS)
def test_a_claim_that_was_committed_is_written_by_the_orm_too(db: Database, model: Any) -> None:
    db.committed.enqueue(model(unique_key="k"))
    task = db.committed.claim(model)
    db.committed.heartbeat(claim_of(task))
    with db.begin() as actor:
        actor.add(task)
        change(actor, task, "first")
        actor.complete(task)
        change(actor, task, "second")
    assert (one(db, model).text, one(db, model).status) == ("second", "completed")


@pytest.mark.requires("row_version")
def test_a_server_generated_version_is_read_again(db: Database) -> None:
    assert Press.row_version.expression.name == db.case.row_version
    Press.metadata.create_all(db.engine)
    try:
        db.committed.enqueue(Press(unique_key="k"), on_conflict="replace")
        with db.session() as actor:  # on this server, all versions within a transaction are equal
            task = actor.claim(Press)
            for call in (actor.heartbeat, actor.complete):
                change(actor, task, "before")
                actor.commit()
                call(task)
                actor.commit()
            change(actor, task, "at last")
            actor.commit()
        assert one(db, Press).text == "at last"
    finally:
        Press.metadata.drop_all(db.engine)


def test_the_columns_of_the_queue_are_not_version_columns() -> None:
    with QueueSession() as session, pytest.raises(ArgumentError, match="version="):
        session.enqueue(Listing, [{"unique_key": "k", "priority": 1}], on_conflict="replace", version=Listing.priority)
