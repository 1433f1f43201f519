"""The model of the table that records which queues are paused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData, Table, Unicode
from sqlalchemy.orm import Mapped

from .._support.exc import ConfigurationError
from ..dialects import error_type, key_type, timestamp_type
from .columns import LONGEST_NAME
from .declaration import place
from .mixins import subclasses

_LONGEST = 386
"""The maximum length of a queue's key: a schema, a table and a topic, with their separators."""


class PauseMixin:
    """A mixin for the model that records which queues are paused; :func:`.pause` and :func:`.resume` write its rows.

    >>> class QueuePause(PauseMixin, Base):
    ...     __tablename__ = "queue_pause"

    Declare one for all queues of the same ``MetaData``, in their database.  Workers find it automatically.
    """

    if TYPE_CHECKING:
        queue: Mapped[str]
        """The queue's table, followed by ``:`` and a topic if only that is paused."""
        paused_at: Mapped[datetime]
        """The time of the pause."""
        paused_by: Mapped[str]
        """The name of the process, or the one given to :func:`.pause`."""
        reason: Mapped[str | None]
        """The reason given to :func:`.pause`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if not cls.__dict__.get("__abstract__") and not any("__mapper__" in base.__dict__ for base in cls.__mro__[1:]):
            place(cls, "queue", {"type_": key_type(_LONGEST), "primary_key": True})
            place(cls, "paused_at", {"type_": timestamp_type(), "nullable": False})
            place(cls, "paused_by", {"type_": Unicode(LONGEST_NAME), "nullable": False})
            place(cls, "reason", {"type_": error_type(), "nullable": True})
        super().__init_subclass__(**kwargs)


def pause_table(metadata: MetaData) -> Table | None:
    """Return the table of paused queues in ``metadata``, or ``None``.

    Raises :class:`.ConfigurationError` if there are several.
    """
    mapped = (cls.__dict__.get("__table__") for cls in subclasses(PauseMixin))
    found = [table for table in mapped if table is not None and table.metadata is metadata]
    if len(found) > 1:
        names = ", ".join(sorted(table.fullname for table in found))
        raise ConfigurationError(
            f"a MetaData can have only one table of paused queues, not {names}: derive only one model from PauseMixin"
        )
    return found[0] if found else None
