"""`check` reports foreign keys without an index that refer to a queue whose tasks are deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, ForeignKeyConstraint, Identity, Index, Integer, MetaData, String, Table, text
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import Finding, QueueMixin, QueueOptions
from tests.check.checking import findings
from tests.support.harness import Database

Check = Callable[..., list[Finding]]


def models(*parts: Any, columns: tuple[str, ...] = ("parent_id",), **options: Any) -> type[Any]:
    """Return a queue, and a table in its metadata that refers to it and to its pair of columns."""

    class Own(DeclarativeBase):
        metadata = MetaData()

    class Parent(QueueMixin, Own):
        __tablename__ = "referred"
        __table_args__ = (Unique("line", "number", name="uq_referred"),)
        __queue__ = QueueOptions(**options)

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        line: Mapped[str] = mapped_column(String(20), default="")
        number: Mapped[int] = mapped_column(Integer, default=0)

    pair = ForeignKeyConstraint(["line", "number"], ["referred.line", "referred.number"])
    Table(
        "referring",
        Own.metadata,
        Column("id", Integer, Identity(), primary_key=True),
        Column("parent_id", ForeignKey("referred.id") if "parent_id" in columns else None, type_=Integer),
        Column("line", String(20)),
        Column("number", Integer),
        *parts,
        *([pair] if "line" in columns else []),
    )
    return Parent


@pytest.fixture
def look(sync_db: Database) -> Iterator[Check]:
    """Return what `check` finds after the tables of a model have been created."""
    made: list[MetaData] = []
    level = "SERIALIZABLE" if sync_db.case.one_writer else "READ COMMITTED"
    strict = sync_db.variant(on_connect=sync_db.case.foreign_keys_sql, isolation_level=level)

    def check(model: type[Any], db: Database = strict) -> list[Finding]:
        if model.metadata not in made:
            made.append(model.metadata)
            model.metadata.create_all(sync_db.engine)
        return findings(db, model)

    yield check
    sync_db.end_test()
    for metadata in made:
        metadata.drop_all(sync_db.engine)


DELETING: tuple[dict[str, Any], ...] = (
    {"on_complete": "delete"},
    {"retention": timedelta(days=1)},
    {"discarded_retention": timedelta(days=1)},
)


@pytest.mark.parametrize("options", DELETING, ids=lambda options: next(iter(options)))
def test_a_reference_without_an_index(sync_db: Database, look: Check, options: dict[str, Any]) -> None:
    found = look(models(**options))
    if sync_db.case.indexes_foreign_keys:
        assert found == []
        return
    (finding,) = found
    assert (finding.severity, finding.code, finding.table) == ("warning", "unindexed-reference", "referred")
    assert "referring refers to referred by parent_id" in finding.message
    assert "index=True" in finding.fix


INDEXED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "an index": (lambda: Index("ix_referring", "parent_id"), ("parent_id",)),
    "its first column": (lambda: Index("ix_referring", "parent_id", "number"), ("parent_id",)),
    "unique": (lambda: Unique("parent_id", name="uq_referring"), ("parent_id",)),
    "two columns, in any order": (lambda: Index("ix_referring", "number", "line"), ("line", "number")),
}


@pytest.mark.parametrize("name", INDEXED)
def test_references_with_an_index(look: Check, name: str) -> None:
    make, columns = INDEXED[name]
    assert look(models(make(), columns=columns, on_complete="delete")) == []


NOT_SERVED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "another column first": (lambda: Index("ix_referring", "number", "parent_id"), ("parent_id",)),
    "one of two columns": (lambda: Index("ix_referring", "line"), ("line", "number")),
}


@pytest.mark.parametrize("name", NOT_SERVED)
def test_references_with_another_index(sync_db: Database, look: Check, name: str) -> None:
    make, columns = NOT_SERVED[name]
    codes = [finding.code for finding in look(models(make(), columns=columns, on_complete="delete"))]
    assert codes == ([] if sync_db.case.indexes_foreign_keys else ["unindexed-reference"])


@pytest.mark.requires("partial_indexes")
@pytest.mark.parametrize(("where", "served"), [("parent_id IS NOT NULL", True), ("number = 1", False)])
def test_references_with_a_partial_index(look: Check, where: str, served: bool) -> None:
    options = {f"{dialect}_where": text(where) for dialect in ("postgresql", "sqlite", "mssql")}
    found = look(models(Index("ix_referring", "parent_id", **options), on_complete="delete"))
    assert [finding.code for finding in found] == ([] if served else ["unindexed-reference"])


def test_references_to_a_queue_that_keeps_its_tasks(look: Check) -> None:
    assert look(models()) == []


def test_references_that_are_not_there(sync_db: Database, look: Check) -> None:
    model = models(on_complete="delete")
    look(model)
    model.metadata.tables["referring"].drop(sync_db.engine)
    assert look(model) == []


@pytest.mark.requires("foreign_keys_sql")
def test_references_that_the_connection_does_not_enforce(sync_db: Database, look: Check) -> None:
    model = models(on_complete="delete")
    assert [finding.code for finding in look(model)] == ["unindexed-reference"]
    assert look(model, sync_db.variant(isolation_level="SERIALIZABLE")) == []
