"""Models of the tests of the plugin, and indexes that differ from theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, Identity, Index, MetaData, Table, desc, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import QueueOptions, TopicMixin, UniqueMixin
from sqlqueue.diagnostics.drift import drift
from sqlqueue.dialects import adapter_for
from sqlqueue.model.declaration import queues
from tests.support.harness import Database


class Base(DeclarativeBase):
    pass


class Job(TopicMixin, Base):
    __tablename__ = "plugin_job"
    __queue__ = QueueOptions(columns={"status": "state"}, order_by=(desc("weight"), "id"))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    weight: Mapped[int]


class Parcel(UniqueMixin, Base):
    __tablename__ = "plugin_parcel"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Bystander(Base):
    """Not a queue, although its indexes are named like those of one."""

    __tablename__ = "plugin_bystander"
    __table_args__ = (Index("ix_plugin_bystander_claim", "weight"), Index("ix_plugin_bystander_due", "id"))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    weight: Mapped[int]


CLAIM, DUE = "ix_plugin_job_claim", "ix_plugin_job_due"
COMES_DUE = "state IN ('scheduled', 'retryable', 'running')"


def messages(db: Database) -> list[str]:
    with db.engine.connect() as connection:
        return [difference.message for difference in drift(connection, queues(Base.metadata))]


def replace_index(
    db: Database, name: str, terms: Iterable[Any], condition: str | None, table: str = "plugin_job"
) -> None:
    """Replace the index of this name by another one."""
    option = adapter_for(db.engine.dialect).inspection.predicate_option
    options = {option: text(condition)} if option and condition else {}
    names = {term if isinstance(term, str) else term.element.element for term in terms}
    there = Table(table, MetaData(), *map(Column, names))
    index = Index(name, *terms, _table=there, **options)
    with db.engine.begin() as connection:
        index.drop(connection)
        index.create(connection)
