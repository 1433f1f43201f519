"""The model of the table that records which queues are paused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData, Table
from sqlalchemy.orm import Mapped

from ..dialects import error_type, key_type, text_type, timestamp_type
from .columns import LONGEST_NAME
from .companions import CompanionMixin, companion_table

_LONGEST = 386
"""The maximum length of a queue's key: a schema, a table and a topic, with their separators."""


def _columns() -> dict[str, dict[str, Any]]:
    required = {"nullable": False}
    return {
        "queue": {"type_": key_type(_LONGEST), "primary_key": True},
        "paused_at": {"type_": timestamp_type(), **required},
        "paused_by": {"type_": text_type(LONGEST_NAME), **required},
        "reason": {"type_": error_type(), "nullable": True},
    }


class PauseMixin(CompanionMixin):
    """A mixin for the model that records which queues are paused; :func:`.pause` and :func:`.resume` write its rows.

    >>> class QueuePause(PauseMixin, Base):
    ...     __tablename__ = "queue_pause"

    Declare one for all queues of the same ``MetaData``, in their database.  Workers find it automatically.
    """

    __companion_columns__ = staticmethod(_columns)

    if TYPE_CHECKING:
        queue: Mapped[str]
        """The queue's table, followed by ``:`` and a topic if only that is paused."""
        paused_at: Mapped[datetime]
        """The time of the pause."""
        paused_by: Mapped[str]
        """The name of the process, or the one given to :func:`.pause`."""
        reason: Mapped[str | None]
        """The reason given to :func:`.pause`."""


def pause_table(metadata: MetaData) -> Table | None:
    """Return the table of paused queues in ``metadata``, or ``None``.

    Raises :class:`.ConfigurationError` if there are several.
    """
    return companion_table(PauseMixin, metadata)
