"""What a class definition makes of a model, and what it refuses; no database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    desc,
)
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql, sqlite
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    declarative_base,
    declared_attr,
    mapped_column,
    registry,
    relationship,
)
from sqlalchemy.schema import CreateIndex

from sqlqueue import (
    ArgumentError,
    ConfigurationError,
    ExponentialBackoff,
    QueueMixin,
    QueueOptions,
    ResultMixin,
    StageMixin,
    TopicMixin,
    UniqueMixin,
)
from sqlqueue.queue.spec import QUEUE_ROLES
from tests.support import models

COLUMNS = set(QUEUE_ROLES)


@pytest.fixture
def base() -> type[DeclarativeBase]:
    class Base(DeclarativeBase):
        pass

    return Base


def columns(model: Any) -> set[str]:
    return {column.name for column in model.__table__.columns}


def indexes(model: Any) -> set[str]:
    return {str(index.name) for index in model.__table__.indexes}


# -- ways to declare ---------------------------------------------------------------------------------------------------


def _declared() -> Iterator[type[Any]]:
    class Base(DeclarativeBase):
        pass

    class First(QueueMixin, Base):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True)

    yield First


def _base_first() -> Iterator[type[Any]]:
    class Base(DeclarativeBase):
        pass

    class Last(Base, QueueMixin):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True)

    yield Last


def _on_the_base() -> Iterator[type[Any]]:
    class Base(QueueMixin, DeclarativeBase):
        pass

    class Thing(Base):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True)

    yield Thing


def _by_decorator() -> Iterator[type[Any]]:
    @registry().mapped
    class Thing(QueueMixin):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True)

    yield Thing


def _by_dataclass_decorator() -> Iterator[type[Any]]:
    @registry().mapped_as_dataclass
    class Thing(QueueMixin):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True, init=False)

    yield Thing


def _by_metaclass() -> Iterator[type[Any]]:
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


def _abstract() -> Iterator[type[Any]]:
    class Base(DeclarativeBase):
        pass

    class Abstract(QueueMixin, Base):
        __abstract__ = True
        id: Mapped[int] = mapped_column(primary_key=True)

    class Thing(Abstract):
        __tablename__ = "thing"

    yield Thing


def _mixin_of_mixins() -> Iterator[type[Any]]:
    class Base(DeclarativeBase):
        pass

    class Queued(QueueMixin):
        id: Mapped[int] = mapped_column(primary_key=True)

    class Thing(Queued, Base):
        __tablename__ = "thing"

    yield Thing


def _dataclass() -> Iterator[type[Any]]:
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    class Thing(QueueMixin, Base):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True, init=False)

    yield Thing


def _own_table() -> Iterator[type[Any]]:
    class Base(DeclarativeBase):
        pass

    class Thing(QueueMixin, Base):
        __table__ = models.Task.__table__.to_metadata(Base.metadata, name="thing")

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
def test_columns_and_indexes_whatever_the_way(way: Any) -> None:
    for model in way():
        assert columns(model) >= COLUMNS
        assert indexes(model) >= {"ix_thing_claim", "ix_thing_due"}
        assert model().status is None


@pytest.mark.parametrize("way", [_dataclass, _declared, _base_first, _abstract, _mixin_of_mixins])
def test_queue_columns_in_the_constructor(way: Any) -> None:
    for model in way():
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
    assert indexes(Cat) == {"ix_cat_claim", "ix_cat_due"}
    assert indexes(Animal) == set()


# -- indexes -----------------------------------------------------------------------------------------------------------

DIALECTS: dict[str, Dialect] = {
    "postgresql": postgresql.dialect(),
    "sqlite": sqlite.dialect(),
    "mssql": mssql.dialect(),
    "mysql": mysql.dialect(),
    "oracle": oracle.dialect(),
}
PARTIAL = {"postgresql", "sqlite", "mssql"}


@pytest.mark.parametrize("name", DIALECTS)
def test_one_object_serves_every_engine(name: str) -> None:
    ddl = {str(i.name): str(CreateIndex(i).compile(dialect=DIALECTS[name])) for i in models.Task.__table__.indexes}
    assert set(ddl) == {"ix_task_claim", "ix_task_due"}
    assert "(status, priority, available_at, id)" in ddl["ix_task_claim"]
    assert "(finished_at, available_at, id)" in ddl["ix_task_due"]
    assert ("WHERE status = 'available'" in ddl["ix_task_claim"]) == (name in PARTIAL)
    assert ("WHERE status IN ('scheduled', 'retryable', 'running')" in ddl["ix_task_due"]) == (name in PARTIAL)


def test_each_engine_renders_the_predicate_in_its_own_sql(base: type[DeclarativeBase]) -> None:
    class Thing(QueueMixin, base):  # type: ignore[misc, valid-type]
        __tablename__ = "thing"
        __queue__ = QueueOptions(columns={"status": "queueStatus"})
        id: Mapped[int] = mapped_column(primary_key=True)

    (index,) = (index for index in Thing.__table__.indexes if index.name == "ix_thing_claim")
    # a migration renders them unchanged on every engine
    words = {option: str(predicate) for option, predicate in index.dialect_kwargs.items()}
    assert words == {
        "postgresql_where": "\"queueStatus\" = 'available'",
        "mssql_where": "[queueStatus] = 'available'",
        "sqlite_where": "\"queueStatus\" = 'available'",
    }


def test_an_index_follows_the_order_and_the_topic() -> None:
    assert indexes(models.Mail) == {
        "ix_mail_claim",
        "ix_mail_due",
        "ix_mail_topic_claim",
        "ix_mail_topic_due",
        "ix_mail_finished",  # it has a retention
    }
    ddl = [str(CreateIndex(index)) for index in models.Ticket.__table__.indexes if index.name == "ix_ticket_claim"]
    assert "(status, severity DESC, id, available_at)" in ddl[0]


@pytest.mark.parametrize(
    "arguments",
    [
        (UniqueConstraint("name"),),
        (Index("ix_mine", "name"), {"comment": "mine"}),
        {"schema": "elsewhere"},
        {"mysql_engine": "InnoDB", "info": {"a": 1}},
    ],
)
def test_beside_what_the_model_declares(base: Any, arguments: Any) -> None:
    class Thing(QueueMixin, base):
        __tablename__ = "thing"
        __table_args__ = arguments
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str] = mapped_column(String(10))

    assert indexes(Thing) >= {"ix_thing_claim", "ix_thing_due"}
    if isinstance(arguments, tuple):
        assert "ix_mine" in indexes(Thing) or any(isinstance(c, UniqueConstraint) for c in Thing.__table__.constraints)


def test_inheriting_classes_add_no_indexes() -> None:
    assert indexes(models.Reminder) == {"ix_notice_claim", "ix_notice_due"}
    assert indexes(models.CreditNote) == set()


def test_long_names_stay_short_and_different(base: Any) -> None:
    names: list[str] = []
    for suffix in ("", "b", "c"):
        namespace = {"__tablename__": "x" * 80 + suffix, "id": mapped_column(Integer, primary_key=True)}
        names += indexes(type(f"Long{suffix}", (TopicMixin, base), namespace))
    assert len(set(names)) == 12
    assert max(len(name.encode()) for name in names) <= 63


def test_long_names_beyond_ascii(base: Any) -> None:
    namespace = {"__tablename__": "ü" * 55, "id": mapped_column(Integer, primary_key=True)}
    assert max(len(name.encode()) for name in indexes(type("Long", (QueueMixin, base), namespace))) <= 63


# -- collisions --------------------------------------------------------------------------------------------------------


def _own(base: Any, mixin: type[QueueMixin] = QueueMixin, **attributes: Any) -> type[Any]:
    return type(
        "Thing",
        (mixin, base),
        {"__tablename__": "thing", "id": mapped_column(Integer, primary_key=True), **attributes},
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"status": mapped_column(String(10))},
        {"status": Column(String(10))},
        {"state": mapped_column("status", String(10))},
        {"status": relationship("Other")},
        {"status": property(lambda self: "x")},
        {"status": declared_attr(lambda cls: mapped_column(String(10)))},
        {"__annotations__": {"status": Mapped[str]}},
        {"status": mapped_column(String(10)), "__queue__": QueueOptions(columns={"error": "problem"})},
    ],
    ids="-".join,
)
def test_a_collision_names_both_and_shows_the_fix(base: Any, attributes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as collision:
        _own(base, **attributes)
    assert "'status'" in str(collision.value)
    assert "Thing.status" in str(collision.value)
    assert collision.value.model.__name__ == "Thing"  # type: ignore[union-attr]
    _, _, fix = str(collision.value).partition("__queue__ = ")
    options = eval(fix, {"QueueOptions": QueueOptions})
    assert options.columns["status"] == "queue_status"
    assert ("error" in options.columns) == ("__queue__" in attributes)


def test_the_fix_works(base: Any) -> None:
    model = _own(base, status=mapped_column(String(10)), __queue__=QueueOptions(columns={"status": "queue_status"}))
    assert columns(model) == COLUMNS | {"id", "queue_status"}


def test_a_collision_with_a_column_of_a_base(base: Any) -> None:
    class Audited:
        created_at: Mapped[int] = mapped_column(Integer)

    with pytest.raises(ConfigurationError, match=r"Audited\.created_at"):
        type(
            "Thing",
            (QueueMixin, Audited, base),
            {"__tablename__": "thing", "id": mapped_column(Integer, primary_key=True)},
        )


def test_a_topic_may_be_renamed_too(base: Any) -> None:
    class Thing(TopicMixin, base):
        __tablename__ = "thing"
        __queue__ = QueueOptions(columns={"topic": "channel"})
        id: Mapped[int] = mapped_column(primary_key=True)
        topic: Mapped[str] = mapped_column(String(10))

    assert "ix_thing_channel_claim" in indexes(Thing)


# -- refused -----------------------------------------------------------------------------------------------------------


def _refused(base: Any, mixin: type[QueueMixin] = QueueMixin, **attributes: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        _own(base, mixin, **attributes)
    assert "Thing" in str(refused.value)
    assert refused.value.model is not None
    return str(refused.value)


def test_unknown_names_in_columns(base: Any) -> None:
    text = _refused(base, __queue__=QueueOptions(columns={"statsu": "state"}))
    assert "statsu" in text
    assert "status" in text


def test_duplicate_column_names_are_kept(base: Any) -> None:
    assert "created_at" in _refused(base, __queue__=QueueOptions(columns={"status": "created_at"}))
    assert "same" in _refused(base, __queue__=QueueOptions(columns={"status": "same", "error": "same"}))


@pytest.mark.parametrize("order_by", [("nothing",), (desc("nothing"),), ("id", "nothing")])
def test_an_order_by_naming_nothing(base: Any, order_by: Any) -> None:
    assert "nothing" in _refused(base, __queue__=QueueOptions(order_by=order_by))


@pytest.mark.parametrize("options", [{"lease": 5}, None, "keep", QueueOptions])
def test_options_of_another_kind(base: Any, options: Any) -> None:
    assert "QueueOptions" in _refused(base, __queue__=options)


def test_a_table_that_lacks_columns(base: Any) -> None:
    with pytest.raises(ConfigurationError, match="available_at"):
        type(
            "Thing",
            (QueueMixin, base),
            {"__table__": Table("thing", base.metadata, Column("id", Integer, primary_key=True))},
        )


def test_an_imperative_table_that_lacks_columns() -> None:
    class Thing(QueueMixin):
        pass

    with pytest.raises(ConfigurationError, match="available_at"):
        registry().map_imperatively(Thing, Table("thing", MetaData(), Column("id", Integer, primary_key=True)))


def _root(base: Any, mixin: type[QueueMixin] = QueueMixin, **attributes: Any) -> type[Any]:
    return _own(base, mixin, kind=mapped_column(String(10)), **attributes)


POLYMORPHIC = {"polymorphic_on": "kind", "polymorphic_identity": "thing"}


def test_concrete_inheritance(base: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Part.*concrete"):
        _concrete(_root(base))


def _concrete(root: Any) -> None:
    class Part(root):
        __tablename__ = "part"
        __mapper_args__ = {"concrete": True}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)


def _joined(root: Any, **attributes: Any) -> type[Any]:
    key = mapped_column(ForeignKey("thing.id"), primary_key=True)
    return type("Part", (root,), {"__tablename__": "part", "id": key, **attributes})


def test_joined_inheritance_without_a_discriminator(base: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Part.*polymorphic_on"):
        _joined(_root(base))


def test_joined_inheritance_refuses_deletion_on_completion(base: Any) -> None:
    root = _root(base, __mapper_args__=POLYMORPHIC, __queue__=QueueOptions(on_complete="delete"))
    with pytest.raises(ConfigurationError, match=r"Part.*on_complete='delete'"):
        _joined(root, __mapper_args__={"polymorphic_identity": "part"})


@pytest.mark.parametrize("options", [QueueOptions(columns={"status": "state"}), QueueOptions(order_by=("id",))])
def test_an_inheriting_class_cannot_have_other_columns_or_another_order(base: Any, options: QueueOptions) -> None:
    """Its root's table and indexes are what there is."""
    root = _root(base, __mapper_args__=POLYMORPHIC)
    with pytest.raises(ConfigurationError, match="Part"):
        type("Part", (root,), {"__mapper_args__": {"polymorphic_identity": "part"}, "__queue__": options})


STAGED = {"__queue__": QueueOptions(stages=("fetch", "parse"))}
REFUSED: dict[str, tuple[type[QueueMixin], dict[str, Any], str]] = {
    "no stages": (StageMixin, {}, "stages= is missing"),
    "stages of no pipeline": (QueueMixin, STAGED, "derive from StageMixin"),
    "a stage with a long name": (StageMixin, {"__queue__": QueueOptions(stages=("x" * 65,))}, "at most 64 characters"),
    "a result without a reader": (
        ResultMixin,
        {"__queue__": QueueOptions(on_complete="delete")},
        "would delete the result with the task",
    ),
    "a key that is taken": (UniqueMixin, {"unique_key": mapped_column(String(10))}, "'queue_unique_key'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mixin_without_its_required_options_is_refused(base: Any, name: str) -> None:
    mixin, attributes, words = REFUSED[name]
    assert words in _refused(base, mixin, **attributes)


def test_an_inheriting_class_has_the_stages_of_its_base(base: Any) -> None:
    root = _root(base, StageMixin, **STAGED, __mapper_args__=POLYMORPHIC)
    for name, options, words in (
        ("Part", QueueOptions(lease=timedelta(seconds=1)), "stages= is missing"),
        ("Piece", QueueOptions(stages=("parse",)), "slots and stages; set them on the base class"),
    ):
        own = {"__mapper_args__": {"polymorphic_identity": name}, "__queue__": options}
        with pytest.raises(ConfigurationError, match=words):
            type(name, (root,), own)


def test_an_inheriting_class_may_have_another_lease(base: Any) -> None:
    root = _root(base, __mapper_args__=POLYMORPHIC)
    own = {"__mapper_args__": {"polymorphic_identity": "part"}, "__queue__": QueueOptions(lease=timedelta(seconds=1))}
    assert type("Part", (root,), own).__queue_spec__.options.lease == timedelta(seconds=1)


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", timedelta(0)),
        ("lease", -timedelta(seconds=1)),
        ("lease", 300),
        ("max_attempts", 0),
        ("max_attempts", "3"),
        ("on_complete", "remove"),
        ("retention", -timedelta(days=1)),
        ("retention", 7),
        ("order_by", ["id"]),
        ("order_by", "id"),
        ("stages", ["fetch"]),
        ("stages", ("fetch", "fetch")),
        ("stages", ("fetch", "")),
        ("retry", timedelta(seconds=5)),
        ("columns", ["status"]),
    ],
)
def test_invalid_options_are_rejected(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        QueueOptions(**{name: value})


@pytest.mark.parametrize(
    "arguments", [{"base": 15}, {"base": -timedelta(1)}, {"factor": 0.5}, {"jitter": 2}, {"cap": 60}]
)
def test_invalid_backoffs_are_rejected(arguments: Any) -> None:
    with pytest.raises(ArgumentError):
        ExponentialBackoff(**arguments)


def test_a_backoff() -> None:
    backoff = ExponentialBackoff(timedelta(seconds=15), factor=4, cap=timedelta(hours=1), jitter=0)
    assert [backoff(attempt).total_seconds() for attempt in (1, 2, 3, 4, 5, 6, 9999)] == [
        15,
        60,
        240,
        960,
        3600,
        3600,
        3600,
    ]
    shaken = {ExponentialBackoff(timedelta(seconds=10), jitter=0.1)(1).total_seconds() for _ in range(200)}
    assert 9 <= min(shaken) < 9.5
    assert 10.5 < max(shaken) <= 11
