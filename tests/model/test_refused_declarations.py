"""Class definitions that are rejected, and the fixes in the errors; no database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Column, Enum, ForeignKey, Integer, MetaData, String, Table, Uuid, desc
from sqlalchemy.orm import Mapped, declared_attr, mapped_column, registry, relationship

from sqlqueue import (
    ConfigurationError,
    LimitMixin,
    QueueMixin,
    QueueOptions,
    ResultMixin,
    StageMixin,
    TopicMixin,
    UniqueMixin,
)
from sqlqueue.outbox import OutboxMixin
from tests.model.declaring import COLUMNS, columns, indexes
from tests.support.models import Slot


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


def test_all_collisions_are_named_at_once(base: Any) -> None:
    with pytest.raises(ConfigurationError) as collision:
        _own(base, status=mapped_column(String(10)), created_at=mapped_column(Integer))
    assert "columns 'status' and 'created_at', but Thing.status and Thing.created_at are" in str(collision.value)
    _, _, fix = str(collision.value).partition("__queue__ = ")
    model = _own(
        base,
        status=mapped_column(String(10)),
        created_at=mapped_column(Integer),
        __queue__=eval(fix, {"QueueOptions": QueueOptions}),
    )
    assert {"status", "created_at", "queue_status", "queue_created_at"} <= columns(model)


def test_the_suggested_fix_works(base: Any) -> None:
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


def test_a_table_without_the_queue_columns_is_rejected(base: Any) -> None:
    with pytest.raises(ConfigurationError, match="available_at"):
        type(
            "Thing",
            (QueueMixin, base),
            {"__table__": Table("thing", base.metadata, Column("id", Integer, primary_key=True))},
        )


def test_an_imperative_table_without_the_queue_columns_is_rejected() -> None:
    class Thing(QueueMixin):
        pass

    with pytest.raises(ConfigurationError, match="available_at"):
        registry().map_imperatively(Thing, Table("thing", MetaData(), Column("id", Integer, primary_key=True)))


def _root(base: Any, mixin: type[QueueMixin] = QueueMixin, **attributes: Any) -> type[Any]:
    return _own(base, mixin, kind=mapped_column(String(10)), **attributes)


POLYMORPHIC = {"polymorphic_on": "kind", "polymorphic_identity": "thing"}


def test_concrete_inheritance_is_rejected(base: Any) -> None:
    root, key = _root(base), mapped_column(Integer, primary_key=True)
    with pytest.raises(ConfigurationError, match=r"Part.*concrete"):
        type("Part", (root,), {"__tablename__": "part", "id": key, "__mapper_args__": {"concrete": True}})


def _joined(root: Any, **attributes: Any) -> type[Any]:
    key = mapped_column(ForeignKey("thing.id"), primary_key=True)
    return type("Part", (root,), {"__tablename__": "part", "id": key, **attributes})


def test_joined_inheritance_without_a_discriminator_is_rejected(base: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Part.*polymorphic_on"):
        _joined(_root(base))


def test_joined_inheritance_refuses_deletion_on_completion(base: Any) -> None:
    root = _root(base, __mapper_args__=POLYMORPHIC, __queue__=QueueOptions(on_complete="delete"))
    with pytest.raises(ConfigurationError, match=r"Part.*on_complete='delete'"):
        _joined(root, __mapper_args__={"polymorphic_identity": "part"})


@pytest.mark.parametrize("options", [QueueOptions(columns={"status": "state"}), QueueOptions(order_by=("id",))])
def test_an_inheriting_class_cannot_have_other_columns_or_another_order(base: Any, options: QueueOptions) -> None:
    """It uses the table and indexes of its root class."""
    root = _root(base, __mapper_args__=POLYMORPHIC)
    with pytest.raises(ConfigurationError, match="Part"):
        type("Part", (root,), {"__mapper_args__": {"polymorphic_identity": "part"}, "__queue__": options})


def _queue(**options: Any) -> dict[str, Any]:
    return {"__queue__": QueueOptions(**options)}


COLUMN: Any = mapped_column(String(9))
STAGED = _queue(stages=("fetch", "parse"))
REFUSED: dict[str, tuple[type[QueueMixin], dict[str, Any], str]] = {
    "an unknown column": (QueueMixin, _queue(columns={"statsu": "state"}), r"statsu.*\bstatus\b"),
    "the name of another column": (QueueMixin, _queue(columns={"status": "created_at"}), "created_at"),
    "one name twice": (QueueMixin, _queue(columns={"status": "same", "error": "same"}), "same"),
    "an order by an unknown column": (QueueMixin, _queue(order_by=("nothing",)), "nothing"),
    "a descending order by one": (QueueMixin, _queue(order_by=(desc("nothing"),)), "nothing"),
    "an order by a known and an unknown one": (QueueMixin, _queue(order_by=("id", "nothing")), "nothing"),
    "a share by an unknown column": (QueueMixin, _queue(fair="nothing"), "fair names 'nothing'"),
    "a share by a column without an order": (
        QueueMixin,
        {"state": mapped_column(Enum("a", "b", name="letters")), **_queue(fair="state")},
        "does not have one order on every engine",
    ),
    "a share by a column that changes": (
        QueueMixin,
        _queue(fair="status"),
        "fair names 'status', which claims write to",
    ),
    "a sequence by one": (QueueMixin, _queue(sequential="attempt"), "which claims write to"),
    "a share by another column than that of limits": (
        LimitMixin,
        _queue(fair="id", slots=Slot),
        "a queue has one key: with LimitMixin, give fair='limit_key'",
    ),
    "a share of an outbox": (OutboxMixin, _queue(fair="message_key"), "have rules of their own"),
    "an order of an unknown key": (QueueMixin, _queue(sequential="nothing"), "sequential names 'nothing'"),
    "an order of an outbox": (OutboxMixin, _queue(sequential="message_key"), "have rules of their own"),
    "an order by keys that do not ascend": (
        QueueMixin,
        {"id": mapped_column(Uuid(), primary_key=True), "account": COLUMN, **_queue(sequential="account")},
        "must ascend",
    ),
    "a dictionary of options": (QueueMixin, {"__queue__": {"lease": 5}}, "QueueOptions"),
    "no options": (QueueMixin, {"__queue__": None}, "QueueOptions"),
    "a text as options": (QueueMixin, {"__queue__": "keep"}, "QueueOptions"),
    "a class as options": (QueueMixin, {"__queue__": QueueOptions}, "QueueOptions"),
    "no stages": (StageMixin, {}, "stages= is missing"),
    "stages of no pipeline": (QueueMixin, STAGED, "derive from StageMixin"),
    "a stage with a long name": (StageMixin, _queue(stages=("x" * 65,)), "at most 64 characters"),
    "a result without a reader": (ResultMixin, _queue(on_complete="delete"), "would delete the result with the task"),
    "a key that is taken": (UniqueMixin, {"unique_key": mapped_column(String(10))}, "'queue_unique_key'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_and_columns_that_are_rejected(base: Any, name: str) -> None:
    mixin, attributes, words = REFUSED[name]
    with pytest.raises(ConfigurationError, match=words) as refused:
        _own(base, mixin, **attributes)
    assert "Thing" in str(refused.value)
    assert refused.value.model is not None


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
