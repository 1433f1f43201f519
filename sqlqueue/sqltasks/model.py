"""The table of SQL tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Boolean, Float, Identity, Integer, MetaData, Text, Unicode
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ..kinds import LimitMixin, RecurringMixin, SlotMixin
from ..queue.options import QueueOptions

LONGEST_USER = 128


def sql_task_options(slots: type[SlotMixin], **options: Any) -> QueueOptions:
    """The options of a model that derives from :class:`SQLTaskMixin`: one attempt, one task of a queue at a time.

    Whatever else :class:`.QueueOptions` takes can be given; ``limit`` is how many of a queue run at once.
    """
    columns = {"limit_key": "queue", "schedule": "repeat", **options.pop("columns", {})}
    return QueueOptions(**{"slots": slots, "max_attempts": 1, "columns": columns, **options})


class SQLTaskMixin(RecurringMixin, LimitMixin):
    """A task whose work is SQL: its ``request`` is executed, by a worker that is told to, and leaves its ``response``.

    ::

        class SQLSlot(SlotMixin, Base):
            __tablename__ = "sql_slot"

        class SQLTask(SQLTaskMixin, Base):
            __tablename__ = "sql_task"
            __queue__ = sql_task_options(SQLSlot)

    Any program enqueues with ``INSERT INTO sql_task (request) VALUES ('...')``, with an ``available_at`` in UTC if it
    is not to start before, or a ``repeat`` to run at that interval or those times.
    """

    __abstract__ = True

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True)
    request: Mapped[str] = mapped_column(Text)
    """One statement, in the words of the database."""
    response: Mapped[str | None] = mapped_column(Text)
    """What the last successful run returned, as JSON: ``columns`` (name and type), ``rows``, ``row_count`` and whether
    it was ``truncated``; values that JSON has no word for are text."""
    timeout: Mapped[float | None] = mapped_column(Float)
    """Seconds after which the statement is ended and rolled back; the scheduler's limit if it has none."""
    run_as: Mapped[str | None] = mapped_column(Unicode(LONGEST_USER))
    """As which of the scheduler's users; ``NULL``: the one for all that say nothing."""
    delete_when_done: Mapped[bool | None] = mapped_column(Boolean)
    """Whether the row is deleted once it has succeeded and is not repeated."""


class SQLTaskModels(NamedTuple):
    """The models of one schema."""

    task: type[SQLTaskMixin]
    slot: type[SlotMixin]
    metadata: MetaData


def sql_task_models(schema: str | None = None, *, table: str = "sql_task") -> SQLTaskModels:
    """Models for databases that no application's models describe: ``table``, and ``<table>_slot`` beside it."""

    class Base(DeclarativeBase):
        metadata = MetaData(schema=schema)

    class SQLSlot(SlotMixin, Base):
        __tablename__ = f"{table}_slot"

    class SQLTask(SQLTaskMixin, Base):
        __tablename__ = table
        __queue__ = sql_task_options(SQLSlot)

    return SQLTaskModels(SQLTask, SQLSlot, Base.metadata)
