"""The model in which running workers are registered."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Integer, MetaData, String, Table, Unicode
from sqlalchemy.orm import Mapped

from .._support.exc import ConfigurationError
from ..dialects import json_type, key_type, timestamp_type
from .columns import LONGEST_NAME
from .declaration import place
from .mixins import subclasses

_LONGEST_ID = 32
_LONGEST_COMMAND = 16


class WorkerMixin:
    """A mixin for the model that registers running workers; :func:`.workers` reads its rows.

    >>> class QueueWorker(WorkerMixin, Base):
    ...     __tablename__ = "queue_worker"

    Declare one for all queues of the same ``MetaData``, in their database. Workers find it automatically. Each writes
    its row every ten seconds, and reads from it the commands that :func:`.drain_workers`, :func:`.stop_workers` and
    :func:`.set_concurrency` write.
    """

    if TYPE_CHECKING:
        id: Mapped[str]
        """A random id for one run of a worker; a restarted worker gets a new row."""
        name: Mapped[str]
        """The worker's name, as stored in ``claimed_by`` of its tasks."""
        host: Mapped[str]
        process: Mapped[int]
        started_at: Mapped[datetime]
        seen_at: Mapped[datetime]
        """When the worker last wrote the row, by the database's clock."""
        version: Mapped[str | None]
        """The version of the application, as given to the worker."""
        handlers: Mapped[list[dict[str, Any]]]
        """The worker's handlers, one object for each, see :class:`.HandlerInfo`."""
        last_claim_at: Mapped[datetime | None]
        memory: Mapped[int | None]
        """The resident memory of the process in bytes."""
        command: Mapped[str | None]
        """``drain`` or ``stop``."""
        concurrency: Mapped[int | None]
        """How many calls each handler runs at a time; ``None``: the number with which it was registered."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if not cls.__dict__.get("__abstract__") and not any("__mapper__" in base.__dict__ for base in cls.__mro__[1:]):
            place(cls, "id", {"type_": key_type(_LONGEST_ID), "primary_key": True})
            place(cls, "name", {"type_": Unicode(LONGEST_NAME), "nullable": False})
            place(cls, "host", {"type_": Unicode(LONGEST_NAME), "nullable": False})
            place(cls, "process", {"type_": Integer(), "nullable": False})
            place(cls, "started_at", {"type_": timestamp_type(), "nullable": False})
            place(cls, "seen_at", {"type_": timestamp_type(), "nullable": False})
            place(cls, "version", {"type_": Unicode(LONGEST_NAME), "nullable": True})
            place(cls, "handlers", {"type_": json_type(), "nullable": False})
            place(cls, "last_claim_at", {"type_": timestamp_type(), "nullable": True})
            place(cls, "memory", {"type_": BigInteger(), "nullable": True})
            place(cls, "command", {"type_": String(_LONGEST_COMMAND), "nullable": True})
            place(cls, "concurrency", {"type_": Integer(), "nullable": True})
        super().__init_subclass__(**kwargs)


def worker_table(metadata: MetaData) -> Table | None:
    """Return the table in which the workers of the queues of ``metadata`` are registered, if there is one."""
    mapped = (cls.__dict__.get("__table__") for cls in subclasses(WorkerMixin))
    found = [table for table in mapped if table is not None and table.metadata is metadata]
    if len(found) > 1:
        names = ", ".join(sorted(table.fullname for table in found))
        raise ConfigurationError(f"workers are registered in one table, not in {names}: keep one WorkerMixin")
    return found[0] if found else None
