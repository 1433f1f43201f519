"""Models of many kinds are queues: their keys, columns, and ways to be declared."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Column, Identity, Integer, String, inspect, select
from sqlalchemy.orm import Mapped, MappedAsDataclass, declarative_base, mapped_column, registry

from sqlqueue import QueueMixin, TopicMixin, claim_of
from tests.suite.kinds_of_models import Computed, Export, Folder, Import, Page, Scan
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

METADATA = Base.metadata
"""Its tables exist on every engine."""


class Quoted(QueueMixin, Base):
    """A model with names that need quotes, and attributes whose names differ from their columns."""

    __tablename__ = "Order line"

    key: Mapped[int] = mapped_column("select", Identity(), primary_key=True)
    group: Mapped[str] = mapped_column("Group by", String(20), default="")


class Versioned(QueueMixin, Base):
    __tablename__ = "versioned"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Divided(TopicMixin):
    """A mixin that combines mixins."""

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Parcelled(Divided, Base):
    __tablename__ = "parcelled"


_registry = registry(metadata=METADATA)


@_registry.mapped
class Decorated(QueueMixin):
    __tablename__ = "decorated"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Classic(QueueMixin, declarative_base(metadata=METADATA)):  # type: ignore[misc]
    __tablename__ = "classic"

    id = Column(Integer, Identity(), primary_key=True)


class Dated(MappedAsDataclass, QueueMixin, Base):
    """A dataclass model on a base whose models are not dataclasses."""

    __tablename__ = "dated"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True, init=False)
    name: Mapped[str] = mapped_column(String(20), default="x", kw_only=True)


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
    (Versioned, lambda n: {"id": n}),
    (Export, lambda n: {"id": n}),
    (Import, lambda n: {"id": n}),
    (Parcelled, lambda n: {"id": n}),
    (Decorated, lambda n: {"id": n}),
    (Classic, lambda n: {"id": n}),
    (Dated, lambda n: {"name": str(n)}),
]
models = pytest.mark.parametrize(("model", "values"), MODELS, ids=[model.__name__ for model, _ in MODELS])


def status_of(task: Any) -> str:
    return getattr(task, task.__queue_spec__.attributes["status"])


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
def test_each_model_is_claimed_without_a_lease(
    sync_db: Database, model: type[Any], values: Callable[[int], dict[str, Any]]
) -> None:
    with sync_db.begin() as session:
        session.add_all([model(**values(n)) for n in (1, 2)])
    with sync_db.begin() as session:
        tasks = session.claim_many(model, limit=2, lease=None)
        session.complete(tasks)
        assert [status_of(task) for task in tasks] == ["completed", "completed"]


@models
def test_rows(sync_db: Database, model: type[Any], values: Callable[[int], dict[str, Any]]) -> None:
    columns = {prop.key for prop in inspect(model).column_attrs}
    given = [{name: value for name, value in values(n).items() if name in columns} for n in (1, 2)]
    with sync_db.begin() as session:
        session.enqueue(model, given)
    with sync_db.begin() as session:
        tasks = session.claim_many(model, limit=3)
        assert [{name: getattr(task, name) for name in row} for task, row in zip(tasks, given, strict=True)] == given
        session.complete(tasks)


def test_rows_of_a_versioned_model_have_a_version(sync_db: Database) -> None:
    with sync_db.begin() as session:
        session.enqueue(Versioned, [{"id": 1}, {"id": 2}])
        assert list(session.scalars(select(Versioned.version))) == [1, 1]
