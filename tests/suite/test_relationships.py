"""Instances enqueued with `on_conflict` store the foreign keys of their relationships."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Identity, String, Table, event, select
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

import sqlqueue
from sqlqueue import ArgumentError, UniqueMixin
from tests.support.harness import Database
from tests.support.models import Base

pytestmark = pytest.mark.sync_only

HOWS = ("ignore", "replace", "rerun")
labelling = Table(
    "labelling",
    Base.metadata,
    Column("errand_id", ForeignKey("errand.id"), primary_key=True),
    Column("label_id", ForeignKey("errand_label.id"), primary_key=True),
)


class Client(Base):
    """A parent whose key the server generates."""

    __tablename__ = "client"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    code: Mapped[str] = mapped_column(String(20), unique=True)
    errands: Mapped[list[Errand]] = relationship(back_populates="client")
    favours: Mapped[list[Favour]] = relationship(cascade="all, delete-orphan")


class Errand(UniqueMixin, Base):
    __tablename__ = "errand"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    client_id: Mapped[int | None] = mapped_column(ForeignKey("client.id"))
    client_code: Mapped[str | None] = mapped_column(String(20))
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("errand.id"))
    client: Mapped[Client | None] = relationship(back_populates="errands")
    aloof: Mapped[Client | None] = relationship(
        foreign_keys=client_code, primaryjoin="foreign(Errand.client_code) == Client.code", cascade=""
    )
    parent: Mapped[Errand | None] = relationship(remote_side=id)
    steps: Mapped[list[Step]] = relationship(back_populates="errand")
    labels: Mapped[list[Label]] = relationship(secondary=labelling)


class Favour(UniqueMixin, Base):
    """A task to which only its client has a relationship."""

    __tablename__ = "favour"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    client_id: Mapped[int | None] = mapped_column(ForeignKey("client.id"))


class Step(Base):
    __tablename__ = "errand_step"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    errand_id: Mapped[int] = mapped_column(ForeignKey("errand.id"))
    errand: Mapped[Errand] = relationship(back_populates="steps")


class Label(Base):
    __tablename__ = "errand_label"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


def found(db: Database, column: Any = Errand.client_id) -> dict[str, Any]:
    with db.engine.connect() as connection:
        rows: Any = connection.execute(select(Errand.unique_key, column))
        return dict(rows.all())


def clients(db: Database) -> list[int]:
    with db.engine.connect() as connection:
        return list(connection.scalars(select(Client.id).order_by(Client.id)))


@pytest.mark.parametrize("on_conflict", HOWS)
@pytest.mark.parametrize("there", [False, True])
def test_a_new_parent_is_inserted_and_referred_to(db: Database, on_conflict: Any, there: bool) -> None:
    if there:
        db.insert(Errand, [{"unique_key": "k"}])
    with db.begin() as actor:
        client = Client(code="a")
        actor.enqueue(Errand(unique_key="k", client=client), on_conflict=on_conflict)
        assert client in actor.sync_session
    (number,) = clients(db)
    assert found(db) == {"k": None if there and on_conflict == "ignore" else number}


def test_a_parent_of_the_session_is_referred_to(db: Database) -> None:
    with db.begin() as actor:
        pending = Client(code="a")
        actor.add(pending)
        actor.enqueue(Errand(unique_key="pending", client=pending), on_conflict="replace")
    with db.begin(expire_on_commit=True) as actor:
        persistent = actor.run(lambda session: session.scalars(select(Client)).one())
        actor.sync_session.expire(persistent)
        actor.enqueue(Errand(unique_key="persistent", client=persistent), on_conflict="replace")
    (number,) = clients(db)
    assert found(db) == {"pending": number, "persistent": number}


@pytest.mark.parametrize("loaded", [False, True])
def test_an_append_to_the_parents_collection_counts(db: Database, loaded: bool) -> None:
    db.insert(Client, [{"id": 7, "code": "a"}])
    with db.begin() as actor:
        client = actor.run(lambda session: session.get_one(Client, 7))
        if loaded:
            assert actor.run(lambda session: client.errands) == []
        errands = [Errand(unique_key=key) for key in ("k", "l")]
        actor.run(lambda session: client.errands.extend(errands))
        actor.enqueue(errands, on_conflict="replace")
        assert [each.client for each in errands] == [client, client]
        assert not actor.sync_session.new
        actor.enqueue([Errand(unique_key="k", client=client)], on_conflict="replace")
    assert found(db) == {"k": 7, "l": 7}


def test_an_instance_may_be_enqueued_again_after_a_rollback(db: Database) -> None:
    client, errand = Client(code="a"), Errand(unique_key="k")
    with db.session() as actor:
        actor.add(client)
        actor.commit()
        errand.client = client
        for end in (actor.rollback, actor.commit):
            actor.run(lambda session: client.id)
            actor.enqueue(errand, on_conflict="replace")
            end()
    assert found(db) == {"k": clients(db)[0]}


def test_pending_instances_are_not_inserted_twice(db: Database) -> None:
    db.insert(Errand, [{"unique_key": "k"}])
    with db.begin() as actor:
        errand = Errand(unique_key="k")
        actor.add(errand)
        actor.enqueue(errand, on_conflict="ignore")
    assert found(db) == {"k": None}


def test_a_relationship_takes_precedence_over_its_columns(db: Database) -> None:
    db.insert(Client, [{"id": 7, "code": "a"}])
    with db.begin() as actor:
        client = actor.run(lambda session: session.get_one(Client, 7))
        actor.enqueue(Errand(unique_key="to", client_id=8, client=client), on_conflict="ignore")
        actor.enqueue(Errand(unique_key="none", client_id=7, client=None), on_conflict="ignore")
        actor.enqueue(Errand(unique_key="by column", client_id=7), on_conflict="ignore")
        actor.enqueue(Errand(unique_key="by code", aloof=client), on_conflict="ignore")
    assert found(db) == {"to": 7, "none": None, "by column": 7, "by code": None}
    assert found(db, Errand.client_code)["by code"] == "a"


def test_a_stored_instance_is_enqueued_with_its_current_values(db: Database) -> None:
    db.insert(Client, [{"id": 7, "code": "a"}, {"id": 8, "code": "b"}])
    db.insert(Errand, [{"id": 1, "unique_key": "k", "client_id": 7, "status": "running"}])
    with db.begin() as actor:
        errand = actor.run(lambda session: session.get_one(Errand, 1))
        errand.client = actor.run(lambda session: session.get_one(Client, 8))
        errand.status = "available"
        actor.enqueue(errand, on_conflict="rerun")
        assert errand in actor.sync_session
    assert found(db) == {"k": 8}


@pytest.mark.one_engine
@pytest.mark.parametrize("on_conflict", HOWS)
def test_related_rows_that_cannot_be_stored_are_rejected(db: Database, on_conflict: Any) -> None:
    with db.session() as actor, db.session() as other:
        elsewhere, away = Client(code="a"), Client(code="b")
        other.add_all([elsewhere, away])
        other.commit()
        other.expunge(away)
        gone = Client(code="c")
        actor.add(gone)
        actor.flush()
        actor.delete(gone)
        client = Client(code="d")
        parent = Errand(unique_key="parent")
        favour = Favour(unique_key="k")
        client.favours.append(favour)
        for refused, reason in (
            ([Errand(unique_key="k", client=elsewhere)], "another session"),
            ([Errand(unique_key="k", client=away)], "detached"),
            ([Errand(unique_key="k", client=gone)], "deleted"),
            ([Errand(unique_key="k", aloof=Client(code="e"))], "does not cascade"),
            ([Errand(unique_key="k", steps=[Step()])], "Errand.steps is not empty"),
            ([Errand(unique_key="k", labels=[Label()])], "Errand.labels is not empty"),
            ([parent, Errand(unique_key="k", parent=parent)], "by the same call"),
            ([favour], "Client.favours contains this Favour"),
        ):
            with pytest.raises(ArgumentError, match=reason):
                actor.enqueue(refused, on_conflict=on_conflict)
        actor.rollback()
    assert found(db) == {}


def test_a_parent_that_is_just_being_flushed(db: Database) -> None:
    """Its key is not known before the flush; a plain insert waits for it."""
    for on_conflict in ("ignore", "raise"):
        with db.session() as actor:

            @event.listens_for(actor.sync_session, "before_flush", once=True)
            def enqueue(session: Session, *_: object, how: Any = on_conflict) -> None:
                (parent,) = session.new
                sqlqueue.enqueue(session, Errand(unique_key="a", client=parent), on_conflict=how)

            actor.add(Client(code="c"))
            with pytest.raises(ArgumentError, match="has no key yet") if on_conflict == "ignore" else nullcontext():
                actor.commit()
    assert db.committed.claim(Errand).client_id is not None
