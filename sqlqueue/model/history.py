"""The model that stores the finished attempts of all queues."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sqlalchemy import Identity, Index, Integer, MetaData, String, Table, event
from sqlalchemy.orm import Mapped, Mapper
from sqlalchemy.sql.elements import conv

from .._support.exc import ConfigurationError
from ..dialects import error_type, key_type, long_text_type, serial_type, text_type, timestamp_type
from ..queue.history import HistoryOptions
from ..queue.spec import index_name
from ..sql.clock import utcdefault
from .columns import LONGEST_KEY, LONGEST_NAME
from .companions import CompanionMixin

_LONGEST = 257
"""The length of a schema, a dot and a table."""


class History(NamedTuple):
    """The table and options of the history for the queues of one ``MetaData``."""

    table: Table
    options: HistoryOptions


def _columns() -> dict[str, dict[str, Any]]:
    required = {"nullable": False}
    return {
        "id": {"type_": serial_type(), "items": (Identity(),), "primary_key": True},
        "queue": {"type_": key_type(_LONGEST), **required},
        "task": {"type_": key_type(LONGEST_KEY), **required},
        "attempt": {"type_": Integer(), **required},
        "claimed_by": {"type_": text_type(LONGEST_NAME), "nullable": True},
        "started_at": {"type_": timestamp_type(), "nullable": True},
        "finished_at": {"type_": timestamp_type(), "server_default": utcdefault(), **required},
        "outcome": {"type_": String(16), **required},
        "error": {"type_": error_type(), "nullable": True},
        "traceback": {"type_": long_text_type(), "nullable": True},
    }


class HistoryMixin(CompanionMixin):
    """A mixin for the model that stores the history of all queues of the same ``MetaData``: one row for each finished
    attempt.

    >>> class QueueHistory(HistoryMixin, Base):
    ...     __tablename__ = "queue_history"
    ...     __history__ = HistoryOptions(retention=timedelta(days=30))

    Each settlement writes its rows in the same transaction, with one more statement for each batch. If a claimer
    crashes, the attempt is recorded when its task is taken over. :func:`.history` reads the rows.
    """

    __companion_columns__ = staticmethod(_columns)
    __history__: ClassVar[HistoryOptions] = HistoryOptions()

    if TYPE_CHECKING:
        id: Mapped[int]
        queue: Mapped[str]
        """The queue's table."""
        task: Mapped[str]
        """The primary key of the task as text."""
        attempt: Mapped[int]
        claimed_by: Mapped[str | None]
        """The name of the claimer."""
        started_at: Mapped[datetime | None]
        """When it was claimed; ``None`` if only a lock held the row, which stores no time."""
        finished_at: Mapped[datetime]
        outcome: Mapped[str]
        """The :class:`.AttemptOutcome`."""
        error: Mapped[str | None]
        traceback: Mapped[str | None]
        """The application's frames, without local variables."""


_KEY = "sqlqueue.history"


def history_of(metadata: MetaData) -> History | None:
    """Return the history of the queues of ``metadata``, if the application has one."""
    found: History | None = metadata.info.get(_KEY)
    return found


def _mapped(mapper: Mapper[Any], cls: type[HistoryMixin]) -> None:
    """Add the indexes to the table, and register it as the history of its ``MetaData``."""
    table = mapper.local_table
    if not isinstance(table, Table) or mapper.inherits is not None:
        return
    before = history_of(table.metadata)
    if before is not None and before.table is not table:
        raise ConfigurationError(
            f"the history of all queues belongs in one table, not in {before.table} and {table}: derive only one"
            " model from HistoryMixin"
        )
    if not isinstance(cls.__history__, HistoryOptions):
        raise ConfigurationError(f"{cls.__name__}.__history__ must be a HistoryOptions, not {cls.__history__!r}")
    for name, columns in (("task", ("queue", "task", "id")), ("outcome", ("queue", "outcome", "finished_at"))):
        Index(conv(index_name(table.name, name)), *(table.c[column] for column in columns))
    table.metadata.info[_KEY] = History(table, cls.__history__)


event.listen(HistoryMixin, "after_mapper_constructed", _mapped, propagate=True)
