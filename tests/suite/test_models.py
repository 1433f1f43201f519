"""Models of many kinds are queues: their keys, columns, relationships, inheritance, and ways to be declared."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import ForeignKey, Identity, Integer, String, inspect
from sqlalchemy.orm import (
    Mapped,
    Session,
    column_property,
    deferred,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
)

from sqlqueue import QueueMixin, claim_of
from tests.support.harness import Database
from tests.support.models import (
    Base,
    CreditNote,
    Document,
    Invoice,
    Letter,
    Notice,
    Order,
    Parcel,
    Reminder,
    Seat,
    Task,
    Ticket,
)

pytestmark = pytest.mark.sync_only


class Folder(Base):
    __tablename__ = "folder"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


class Scan(QueueMixin, Base):
    """A model with foreign keys in both directions and to itself, and eagerly loaded relationships."""

    __tablename__ = "scan"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    folder_id: Mapped[int | None] = mapped_column(ForeignKey("folder.id"))
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("scan.id", ondelete="SET NULL"))
    folder: Mapped[Folder | None] = relationship(lazy="joined")
    pages: Mapped[list[Page]] = relationship(lazy="selectin", order_by="Page.id")
    parent: Mapped[Scan | None] = relationship(remote_side="Scan.id", lazy="joined", join_depth=1)


class Page(Base):
    __tablename__ = "page"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    scan_id: Mapped[int] = mapped_column(ForeignKey("scan.id"))


class Computed(QueueMixin, Base):
    """A model with deferred and computed columns, and a version."""

    __tablename__ = "computed"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    body: Mapped[str] = deferred(mapped_column(String(50), default="body"))
    version: Mapped[int] = mapped_column(Integer)
    doubled: Mapped[int] = column_property(2 * version)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Quoted(QueueMixin, Base):
    """A model with names that need quotes, and attributes whose names differ from their columns."""

    __tablename__ = "Order line"

    key: Mapped[int] = mapped_column("select", Identity(), primary_key=True)
    group: Mapped[str] = mapped_column("Group by", String(20), default="")


MODELS: list[tuple[type[Any], Callable[[int], dict[str, Any]]]] = [
    (Task, lambda n: {"id": n}),
    (Document, lambda n: {"id": f"key {n}"}),
    (Parcel, lambda n: {"id": uuid.UUID(int=n << 64)}),
    (Seat, lambda n: {"line": "a", "number": n}),
    (Order, lambda n: {"id": n, "status": "paid"}),
    (Ticket, lambda n: {"id": n, "severity": -n}),
    (Notice, lambda n: {"id": n}),
    (Reminder, lambda n: {"id": n, "about": "milk"}),
    (Invoice, lambda n: {"id": n}),
    (CreditNote, lambda n: {"id": n, "amount": n}),
    (Letter, lambda n: {"recipient": f"ada {n}", "priority": n}),
    (Scan, lambda n: {"id": n, "folder": Folder(name="a"), "pages": [Page(), Page()]}),
    (Quoted, lambda n: {"key": n, "group": "g"}),
    (Computed, lambda n: {"id": n}),
]
models = pytest.mark.parametrize(("model", "values"), MODELS, ids=[model.__name__ for model, _ in MODELS])


@models
def test_a_task_of_each_model_goes_through_its_states(
    sync_db: Database, model: type[Any], values: Callable[[int], dict[str, Any]]
) -> None:
    tasks = {n: model(**values(n)) for n in (3, 1, 2)}
    for n, task in tasks.items():
        task.priority = n
    with sync_db.begin() as session:
        session.add_all([tasks[3], tasks[1]])
        session.enqueue(tasks[2])
    keys = [inspect(tasks[n]).identity for n in (1, 2, 3)]
    with sync_db.begin() as session:
        first = session.claim(model)
        assert [claim_of(task).identity for task in (first, *session.claim_many(model, limit=5))] == keys
        session.fail(first, "no", timedelta(0))
    with sync_db.begin() as session:
        again = session.claim(model)
        assert (claim_of(again).entity, claim_of(again).identity, claim_of(again).attempt) == (model, keys[0], 2)
        session.heartbeat(again)
        session.complete(again)
    with sync_db.begin() as session:
        stats = session.stats(model)
        assert (stats["completed"], stats["running"], stats.total) == (1, 2, 3)


@models
def test_rows_that_are_claimed_without_a_lease(
    sync_db: Database, model: type[Any], values: Callable[[int], dict[str, Any]]
) -> None:
    columns = {prop.key for prop in inspect(model).column_attrs}
    given = [{name: value for name, value in values(n).items() if name in columns} for n in (1, 2)]
    sync_db.committed.enqueue(model, given)
    with sync_db.begin() as session:
        tasks = session.claim_many(model, limit=3, lease=None)
        assert [{name: getattr(task, name) for name in row} for task, row in zip(tasks, given, strict=True)] == given
        session.complete(tasks)
        assert [getattr(task, model.__queue_spec__.attributes["status"]) for task in tasks] == ["completed"] * 2


# -- queues of classes that inherit, and of models with relationships -------------------------------------------------


def test_single_table_inheritance(db: Database) -> None:
    db.committed.add_all([Notice(id=1), Reminder(id=2, about="milk"), Reminder(id=3, about="tea")])
    with db.begin() as session:
        assert session.claim(Reminder, Reminder.about == "tea").id == 3
        assert session.claim(Reminder).about == "milk"
        assert session.claim(Reminder) is None
        assert type(session.claim(Notice)) is Notice


def test_the_root_gives_instances_of_its_classes(db: Database) -> None:
    db.committed.add_all([Notice(id=1), Reminder(id=2, about="milk"), Invoice(id=1), CreditNote(id=2, amount=7)])
    with db.begin() as session:
        notices, invoices = session.claim_many(Notice, limit=5), session.claim_many(Invoice, limit=5)
        assert [type(task) for task in (*notices, *invoices)] == [Notice, Reminder, Invoice, CreditNote]
        assert session.run(lambda _: invoices[1].amount) == 7
        session.complete(notices)
        session.complete(invoices)


def test_joined_table_inheritance(db: Database) -> None:
    db.committed.add_all([Invoice(id=1), *(CreditNote(id=n, amount=n) for n in (2, 3, 4))])
    with db.begin() as session:
        note = session.claim(CreditNote, CreditNote.amount > 2, CreditNote.kind == "credit_note")
        assert (note.id, note.amount, note.status) == (3, 3, "running")
        assert session.claim(CreditNote, CreditNote.amount > 2, CreditNote.priority == 0).id == 4
        assert session.claim(Invoice, CreditNote.amount == 2).id == 2
        assert session.claim(CreditNote) is None
        session.complete(note)


def _scans(db: Database) -> None:
    with db.begin() as session:
        session.add(Folder(id=1, name="inbox"))
        session.add(Scan(id=1, folder_id=1, pages=[Page(), Page()]))
        session.flush()
        session.add(Scan(id=2, parent_id=1, pages=[Page()]))


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("options", [[], [selectinload(Scan.parent), joinedload(Scan.pages)]], ids=["own", "options"])
def test_relationships_that_load_with_the_row(db: Database, options: list[Any], lease: Any) -> None:
    _scans(db)
    with db.begin() as session:
        first, second = session.claim_many(Scan, limit=2, options=options, lease=lease)
        assert first.__dict__["folder"].name == "inbox"
        assert [len(scan.__dict__["pages"]) for scan in (first, second)] == [2, 1]
        assert second.__dict__["parent"] is first
        first.folder = None
        second.pages.append(Page())
        session.complete([first, second])
    with Session(db.engine) as session:
        assert session.get_one(Scan, 1).folder is None
        assert len(session.get_one(Scan, 2).pages) == 2


def test_only_the_mapper_sets_a_version(db: Database) -> None:
    db.committed.add(Computed(id=1))
    with db.begin() as session:
        task = session.claim(Computed)
        assert (task.version, task.doubled, "body" in task.__dict__) == (1, 2, False)
        task.body = "new"
        session.complete(task)
    with Session(db.engine) as session:
        stored = session.get_one(Computed, 1)
        assert (stored.version, stored.body, stored.status) == (2, "new", "completed")
