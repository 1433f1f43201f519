"""The table of SQL tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Boolean, Float, Identity, Integer, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ..dialects import long_text_type, text_type
from ..kinds import LimitMixin, RecurringMixin, SlotMixin
from ..queue.options import QueueOptions

LONGEST_USER = 128


def sql_task_options(slots: type[SlotMixin], **options: Any) -> QueueOptions:
    """Return options for a model that derives from :class:`SQLTaskMixin`: one attempt, one task of a queue at a time.

    ``options`` are other arguments of :class:`.QueueOptions`; ``limit`` is how many tasks of a queue run at once.
    """
    columns = {"limit_key": "queue", "schedule": "repeat", **options.pop("columns", {})}
    return QueueOptions(**{"slots": slots, "max_attempts": 1, "columns": columns, **options})


class SQLTaskMixin(RecurringMixin, LimitMixin):
    """A task that consists of SQL: a worker executes its ``request`` and stores the ``response``.

    ::

        class SQLSlot(SlotMixin, Base):
            __tablename__ = "sql_slot"

        class SQLTask(SQLTaskMixin, Base):
            __tablename__ = "sql_task"
            __queue__ = sql_task_options(SQLSlot)

    Any program can enqueue with ``INSERT INTO sql_task (request) VALUES ('...')``, optionally with an ``available_at``
    in UTC, before which it does not start, or a ``repeat``, an interval or schedule at which it runs again.  Register
    the model with a worker with :func:`handle_sql_tasks`.
    """

    __abstract__ = True

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True)
    request: Mapped[str] = mapped_column(long_text_type())
    """One statement, in the SQL of its database."""
    response: Mapped[str | None] = mapped_column(long_text_type())
    """The result of the last successful run, as JSON: ``columns`` (name and type), ``rows``, ``row_count`` and whether
    it was ``truncated``; values that JSON cannot represent are text."""
    timeout: Mapped[float | None] = mapped_column(Float)
    """Seconds after which the statement is stopped and rolled back; ``NULL``: the scheduler's limit."""
    run_as: Mapped[str | None] = mapped_column(text_type(LONGEST_USER))
    """The name of one of the scheduler's users; ``NULL``: the default user."""
    delete_when_done: Mapped[bool | None] = mapped_column(Boolean)
    """Whether the row is deleted once it has succeeded, unless it is repeated."""


class SQLTaskModels(NamedTuple):
    """The models of the SQL tasks of one schema, and their metadata."""

    task: type[SQLTaskMixin]
    slot: type[SlotMixin]
    metadata: MetaData


def sql_task_models(schema: str | None = None, *, table: str = "sql_task") -> SQLTaskModels:
    """Return new models of the tables ``table`` and ``<table>_slot``, for use without an application's models."""

    class Base(DeclarativeBase):
        metadata = MetaData(schema=schema)

    class SQLSlot(SlotMixin, Base):
        __tablename__ = f"{table}_slot"

    class SQLTask(SQLTaskMixin, Base):
        __tablename__ = table
        __queue__ = sql_task_options(SQLSlot)

    return SQLTaskModels(SQLTask, SQLSlot, Base.metadata)
