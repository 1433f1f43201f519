"""The model that holds which queues are paused."""

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
"""Of a schema, a table and a topic, and what is between them."""


class PauseMixin:
    """Makes a model the place where it is written which queues are paused; :func:`.pause` and :func:`.resume` write it.

    >>> class QueuePause(PauseMixin, Base):
    ...     __tablename__ = "queue_pause"

    One for all queues of the same ``MetaData``, in their database.  Workers find it by themselves.
    """

    if TYPE_CHECKING:
        queue: Mapped[str]
        """The queue's table, followed by ``:`` and a topic if only that is paused."""
        paused_at: Mapped[datetime]
        paused_by: Mapped[str]
        reason: Mapped[str | None]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if not cls.__dict__.get("__abstract__") and not any("__mapper__" in base.__dict__ for base in cls.__mro__[1:]):
            place(cls, "queue", {"type_": key_type(_LONGEST), "primary_key": True})
            place(cls, "paused_at", {"type_": timestamp_type(), "nullable": False})
            place(cls, "paused_by", {"type_": Unicode(LONGEST_NAME), "nullable": False})
            place(cls, "reason", {"type_": error_type(), "nullable": True})
        super().__init_subclass__(**kwargs)


def pause_table(metadata: MetaData) -> Table | None:
    """Where it is written which queues of ``metadata`` are paused."""
    mapped = (cls.__dict__.get("__table__") for cls in subclasses(PauseMixin))
    found = [table for table in mapped if table is not None and table.metadata is metadata]
    if len(found) > 1:
        names = ", ".join(sorted(table.fullname for table in found))
        raise ConfigurationError(f"one table says which queues are paused, not {names}: leave one PauseMixin")
    return found[0] if found else None
