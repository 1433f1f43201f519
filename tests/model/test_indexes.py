"""The indexes that a class definition adds to its table; no database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Dialect, Index, Integer, String, UniqueConstraint
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateIndex

from sqlqueue import QueueMixin, QueueOptions, TopicMixin
from tests.model.declaring import indexes
from tests.support import models

DIALECTS: dict[str, Dialect] = {
    "postgresql": postgresql.dialect(),
    "sqlite": sqlite.dialect(),
    "mssql": mssql.dialect(),
    "mysql": mysql.dialect(),
    "oracle": oracle.dialect(),
}
PARTIAL = {"postgresql", "sqlite", "mssql"}


@pytest.mark.parametrize("name", DIALECTS)
def test_an_index_serves_every_engine(name: str) -> None:
    ddl = {str(i.name): str(CreateIndex(i).compile(dialect=DIALECTS[name])) for i in models.Task.__table__.indexes}
    assert set(ddl) == {"ix_task_claim", "ix_task_due", "ix_task_errors"}
    assert "(status, priority, available_at, id)" in ddl["ix_task_claim"]
    assert "(status, available_at, id)" in ddl["ix_task_due"]
    assert ("WHERE status = 'available'" in ddl["ix_task_claim"]) == (name in PARTIAL)
    assert ("WHERE status IN ('scheduled', 'retryable', 'running')" in ddl["ix_task_due"]) == (name in PARTIAL)
    assert "(error_group, id)" in ddl["ix_task_errors"]
    assert ("WHERE error_group IS NOT NULL" in ddl["ix_task_errors"]) == (name in PARTIAL)


def test_each_engine_renders_the_predicate_in_its_own_sql(base: type[DeclarativeBase]) -> None:
    class Thing(QueueMixin, base):  # type: ignore[misc, valid-type]
        __tablename__ = "thing"
        __queue__ = QueueOptions(columns={"status": "queueStatus"})
        id: Mapped[int] = mapped_column(primary_key=True)

    (index,) = (index for index in Thing.__table__.indexes if index.name == "ix_thing_claim")
    # a migration renders them unchanged on every engine
    words = {option: str(predicate) for option, predicate in index.dialect_kwargs.items()}
    assert words == {
        "postgresql_where": '"queueStatus" = \'available\' OR "queueStatus" < "queueStatus"',
        "mssql_where": "[queueStatus] = 'available'",
        "sqlite_where": "\"queueStatus\" = 'available'",
    }


def test_an_index_follows_the_order_and_the_topic() -> None:
    assert indexes(models.Mail) == {
        "ix_mail_claim",
        "ix_mail_due",
        "ix_mail_topic_claim",
        "ix_mail_topic_due",
        "ix_mail_errors",
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
    assert indexes(models.Reminder) == {"ix_notice_claim", "ix_notice_due", "ix_notice_errors"}
    assert indexes(models.CreditNote) == set()


def test_long_index_names_are_shortened_and_distinct(base: Any) -> None:
    names: list[str] = []
    for suffix in ("", "b", "c"):
        namespace = {"__tablename__": "x" * 80 + suffix, "id": mapped_column(Integer, primary_key=True)}
        names += indexes(type(f"Long{suffix}", (TopicMixin, base), namespace))
    assert len(set(names)) == 15
    assert max(len(name.encode()) for name in names) <= 63


def test_long_index_names_with_other_characters(base: Any) -> None:
    namespace = {"__tablename__": "ü" * 55, "id": mapped_column(Integer, primary_key=True)}
    assert max(len(name.encode()) for name in indexes(type("Long", (QueueMixin, base), namespace))) <= 63
