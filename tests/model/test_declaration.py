"""The ways to declare a queue model; no database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, declarative_base, mapped_column, registry

from sqlqueue import QueueMixin, QueueOptions
from tests.model.declaring import COLUMNS, columns, indexes
from tests.support import models


def _declared(base: Any) -> Iterator[type[Any]]:
    class First(QueueMixin, base):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True)

    yield First


def _base_first(base: Any) -> Iterator[type[Any]]:
    class Last(base, QueueMixin):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True)

    yield Last


def _on_the_base(_: Any) -> Iterator[type[Any]]:
    class Base(QueueMixin, DeclarativeBase):
        pass

    class Thing(Base):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True)

    yield Thing


def _by_decorator(_: Any) -> Iterator[type[Any]]:
    @registry().mapped
    class Thing(QueueMixin):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True)

    yield Thing


def _by_dataclass_decorator(_: Any) -> Iterator[type[Any]]:
    @registry().mapped_as_dataclass
    class Thing(QueueMixin):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True, init=False)

    yield Thing


def _by_metaclass(_: Any) -> Iterator[type[Any]]:
    Base = declarative_base()

    class First(QueueMixin, Base):  # type: ignore[misc, valid-type]
        __tablename__ = "thing"
        id = Column(Integer, primary_key=True)

    yield First

    class Last(Base, QueueMixin):  # type: ignore[misc, valid-type]
        __tablename__ = "thing"
        __table_args__ = {"extend_existing": True}  # noqa: RUF012
        id = Column(Integer, primary_key=True)

    yield Last


def _abstract(base: Any) -> Iterator[type[Any]]:
    class Abstract(QueueMixin, base):
        __abstract__ = True
        id: Mapped[int] = mapped_column(primary_key=True)

    class Thing(Abstract):
        __tablename__ = "thing"

    yield Thing


def _mixin_of_mixins(base: Any) -> Iterator[type[Any]]:
    class Queued(QueueMixin):
        id: Mapped[int] = mapped_column(primary_key=True)

    class Thing(Queued, base):
        __tablename__ = "thing"

    yield Thing


def _dataclass(_: Any) -> Iterator[type[Any]]:
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    class Thing(QueueMixin, Base):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True, init=False)

    yield Thing


def _own_table(base: Any) -> Iterator[type[Any]]:
    class Thing(QueueMixin, base):
        __table__ = models.Task.__table__.to_metadata(base.metadata, name="thing")

    yield Thing


WAYS = [
    _declared,
    _base_first,
    _on_the_base,
    _by_decorator,
    _by_dataclass_decorator,
    _by_metaclass,
    _abstract,
    _mixin_of_mixins,
    _dataclass,
    _own_table,
]


@pytest.mark.parametrize("way", WAYS)
def test_columns_and_indexes_whatever_the_way(base: Any, way: Any) -> None:
    for model in way(base):
        assert columns(model) >= COLUMNS
        assert indexes(model) >= {"ix_thing_claim", "ix_thing_due"}
        assert model().status is None


@pytest.mark.parametrize("way", [_dataclass, _declared, _base_first, _abstract, _mixin_of_mixins])
def test_queue_columns_in_the_constructor(base: Any, way: Any) -> None:
    for model in way(base):
        assert model(priority=3).priority == 3


def test_dataclasses_omit_values_that_were_not_given() -> None:
    letter = models.Letter("ada", priority=1)
    assert repr(letter) == "Letter(id=None, recipient='ada')"
    assert letter == models.Letter("ada")
    with pytest.raises(TypeError):
        models.Letter("ada", 1)  # type: ignore[call-arg]


def test_the_columns_of_each_class_are_its_own(base: Any) -> None:
    class One(QueueMixin, base):
        __tablename__ = "one"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Two(QueueMixin, base):
        __tablename__ = "two"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert One.__table__.c.status is not Two.__table__.c.status
    assert One.status.property.columns[0].table is One.__table__


def test_options_of_a_base_and_their_replacement(base: Any) -> None:
    class Queued(QueueMixin):
        __queue__ = QueueOptions(max_attempts=2)
        id: Mapped[int] = mapped_column(primary_key=True)

    class Two(Queued, base):
        __tablename__ = "two"

    class Nine(Queued, base):
        __tablename__ = "nine"
        __queue__ = QueueOptions(max_attempts=9)

    assert [model.__table__.c.max_attempts.server_default.arg.text for model in (Two, Nine)] == ["2", "9"]


def test_renamed_below_an_abstract_base_and_a_mixin(base: Any) -> None:
    class Abstract(QueueMixin, base):
        __abstract__ = True
        id: Mapped[int] = mapped_column(primary_key=True)

    class Mixin(QueueMixin):
        id: Mapped[int] = mapped_column(primary_key=True)

    class One(Abstract):
        __tablename__ = "one"
        __queue__ = QueueOptions(columns={"status": "state"})

    class Two(Mixin, base):
        __tablename__ = "two"
        __queue__ = QueueOptions(columns={"status": "state"})

    assert columns(One) == columns(Two) == (COLUMNS - {"status"}) | {"state", "id"}


def test_only_the_inheriting_class_is_a_queue(base: Any) -> None:
    class Animal(base):
        __tablename__ = "animal"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str] = mapped_column(String(10))

    class Cat(QueueMixin, Animal):
        __tablename__ = "cat"
        __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(ForeignKey("animal.id"), primary_key=True)

    assert columns(Cat) >= COLUMNS
    assert indexes(Cat) == {"ix_cat_claim", "ix_cat_due", "ix_cat_errors"}
    assert indexes(Animal) == set()
